# What the gateway is told of each connector of rigs/vllm/start_pair.sh, and what a decoder counts; sourced by run.sh and matrix.sh.

# dialect_of CONNECTOR : its name in dialect.name
dialect_of() {
  case $1 in
    nixl | nixl-bidir | multi) echo kv_transfer;;
    nixl-push) echo nixl_push;;
    mooncake) echo mooncake;;
    mooncake-store | example | plain) echo pool;;
  esac
}

# flags_of CONNECTOR [TOKENS] : what the gateway is told beside its dialect, with prompts named by TOKENS (prompt.tokens) where it needs names
flags_of() {
  local named="--set prompt.tokens=${2:-engine} --set prompt.budget_ms=2000 --set hash.seed=${HASHSEED:-0}"
  case $1 in
    nixl-bidir) echo "$named --set dialect.bidirectional=true";;
    mooncake) echo "--set dialect.bootstrap_port=${BOOT_PORT:-8998}";;
    # The pool is asked between the legs, so that no decoder looks before its prefiller has stored.
    mooncake-store) echo "$named --set key.preset=mooncake-store --set pool.kind=mooncake --set pool.deadline_ms=500" \
      "--set pool.addresses=127.0.0.1:${MC_PORT:-50151} --set dialect.pool_wait_ms=${POOL_WAIT_MS-10000}";;
  esac
}

# by_source ENGINE NAME : prompt tokens that it counts under this source
by_source() {
  curl -sf "$1/metrics" | awk -v want="source=\"$2\"" '/^vllm:prompt_tokens_by_source_total/ && index($0, want) {n += $NF} END {print n + 0}'
}

# reset_caches ENGINE… : nobody has anything in memory that a run before left there; needs DEV_MODE=1
reset_caches() {
  local engine
  for engine in "$@"; do curl -sf -X POST "$engine/reset_prefix_cache" >/dev/null; done
}
