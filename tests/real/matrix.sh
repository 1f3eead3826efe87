#!/usr/bin/env bash
# Real vLLM engines of several releases behind the gateway, connector by connector: the answers of a pair are those of one plain engine.
#
#   tests/real/matrix.sh [RELEASE…]     default: all of tests/real/rigs/vllm/releases.tsv
#
# Each release is installed beside the others (7 GB, three minutes), and each of its connectors that runs without an accelerator starts a prefiller and a
# decoder. check_equal.py compares 52 cases: both APIs, streamed and not, parsers of tools and reasoning on; text, token ids, finish and usage. Each is compared
# with the prompts sent as text to engines whose dialect is found out, and as tokens (`prompt.send_ids`) with the dialect configured. Printed is a row of
# docs/connectors.md for each. CONNECTORS and SENT_AS name less of it, PD_PROXY a program that is built; KEEP= (empty) deletes what was installed for a release when
# it is done. Needs what run.sh needs, uv's and pip's index, and half an hour a release. Exit status 0: what could be compared is equal.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
rig=$root/tests/real/rigs/vllm
. "$root/tests/real/connectors.sh"
connectors=${CONNECTORS:-plain nixl nixl-bidir nixl-push mooncake mooncake-store multi example offload}
sent_as=${SENT_AS:-text tokens}
port=${PORT:-9000}
cases=${CASES:-52}
[[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked
proxy=${PD_PROXY:-$root/target/release/pd-proxy}

# class_of CONNECTOR : its name in --kv-transfer-config
class_of() {
  case $1 in
    nixl | nixl-bidir) echo NixlConnector;;
    nixl-push) echo NixlPushConnector;;
    mooncake) echo MooncakeConnector;;
    mooncake-store) echo MooncakeStoreConnector;;
    multi) echo MultiConnector;;
    example) echo ExampleConnector;;
    offload) echo OffloadingConnector;;
  esac
}

# is_there CONNECTOR : this release has it
is_there() {
  local v1=$packages/vllm/distributed/kv_transfer/kv_connector
  case $1 in
    plain) true;;
    nixl-bidir) grep -rqs bidirectional_kv_xfer "$v1/v1";;
    multi) grep -qs '"MooncakeStoreConnector"' "$v1/factory.py";;
    *) grep -qs "\"$(class_of "$1")\"" "$v1/factory.py";;
  esac
}

# reason LOG… : the first error of engines that do not start
reason() { grep -hE ' ERROR .*(Error|Exception): ' "$@" | head -1 | sed -E 's/.*(Error|Exception): //; s/\|/\//g' | cut -c1-160; }

row() { printf '| %s | %s | %s | %s | %s | %s |\n' "$release" "$1" "$2" "$3" "$4" "$(date +%F)"; }

# compare CONNECTOR SENT_AS : one row; false if answers differ
compare() {
  local connector=$1 sent=$2 flags moved computed out name=auto tokens=engine
  flags="--model-path $MODEL_DIR --set prompt.send_ids=false"
  if [ "$sent" = tokens ]; then
    name=$(dialect_of "$connector") tokens=local
    flags="--model-path $MODEL_DIR --set prompt.send_ids=true --set prompt.tokens=local"
  fi
  PROXY_EXTRA="$flags --set dialect.name=${name:-auto} $(flags_of "$connector" "$tokens")" PD_PROXY=$proxy "$rig/start_proxy.sh" pd-proxy "$port" >/dev/null
  if ! await_tokens "$sent"; then
    row "$connector" "$sent" "not compared: the gateway does not take its tokens for the engines'" -
    "$rig/stop.sh" proxy >/dev/null
    return 1
  fi
  moved=$(by_source "$decode" external_kv_transfer) computed=$(by_source "$decode" local_compute)
  out=$("$VENV/bin/python" "$rig/check_equal.py" --url "http://127.0.0.1:$port" --ref "$ref" --decode "$decode" --token-ids) || true
  moved=$(($(by_source "$decode" external_kv_transfer) - moved)) computed=$(($(by_source "$decode" local_compute) - computed))
  printf '%s\n' "$out" >"$LOGS/$release-$connector-$sent.txt"
  cp "$LOGS/proxy-pd-proxy.log" "$LOGS/$release-$connector-$sent.log"
  row "$connector" "$sent" "$(sed -n 's/^equal \([0-9]*\),.*/\1/p' <<<"$out") of $cases" "$moved, $computed"
  "$rig/stop.sh" proxy >/dev/null
  reset_caches "$prefill" "$decode"
  grep -q "^equal $cases, different 0, failed 0$" <<<"$out"
}

# await_tokens SENT_AS : the gateway has compared its tokens with the engines', and knows which of them read ids of chats
await_tokens() {
  local log=$LOGS/proxy-pd-proxy.log takers=0 at
  [ "$1" = tokens ] || return 0
  # Engines before this release are not asked if they read ids of chats.
  [ "$(printf '%s\n' 0.32.0 "$release" | sort -V | head -1)" != 0.32.0 ] || takers=2
  for ((at = 0; at < 240; at++)); do
    if grep -q "our tokens are the engine's" "$log" && [ "$(grep -c 'takes the token ids of chats' "$log")" -ge "$takers" ]; then return 0; fi
    sleep 0.5
  done
  return 1
}

# run_release : all rows of $release
run_release() {
  local connector sent status=0
  . "$rig/env.sh"
  export MODEL_DIR=$RIG/tiny-parsers DEV_MODE=1
  export EXTRA="--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3"
  # Nothing here is about speed, and compilers take minutes for each process on two cores.
  export ENGINE_ENV="TORCHDYNAMO_DISABLE=1"
  prefill=http://127.0.0.1:$P_PORT decode=http://127.0.0.1:$D_PORT ref=http://127.0.0.1:$REF_PORT
  "$rig/stop.sh" >/dev/null   # engines that a run before left would be taken for these
  [ -x "$VENV/bin/vllm" ] || MODEL_DIR=$RIG/tiny-qwen3 "$rig/setup.sh" >"$LOGS/$release-setup.txt" 2>&1 || { tail -5 "$LOGS/$release-setup.txt" >&2; return 1; }
  packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  # Parsers of reasoning and tools want their marks to be tokens.
  [ -d "$MODEL_DIR" ] || "$VENV/bin/python" "$rig/make_model.py" --out "$MODEL_DIR" --special "<think>,</think>,<tool_call>,</tool_call>" >/dev/null
  if ! "$rig/start_pair.sh" ref >"$LOGS/$release-ref-start.txt" 2>&1; then
    row "one plain engine" - "does not start: $(reason "$LOGS/ref.log")" -
    cp "$LOGS/ref.log" "$LOGS/$release-ref.log"
    return 1
  fi
  for connector in $connectors; do
    if ! is_there "$connector"; then
      row "$connector" - "not in this release" -
      continue
    fi
    if ! "$rig/start_pair.sh" "$connector" >"$LOGS/$release-$connector-start.txt" 2>&1; then
      row "$connector" - "does not start: $(reason "$LOGS/prefill.log" "$LOGS/decode.log")" -
      cp "$LOGS/prefill.log" "$LOGS/$release-$connector-prefill.log"
      "$rig/stop.sh" prefill decode >/dev/null
      continue
    fi
    for sent in $sent_as; do compare "$connector" "$sent" || status=1; done
    "$rig/stop.sh" prefill decode master >/dev/null
  done
  "$rig/stop.sh" >/dev/null
  [ -n "${KEEP-1}" ] || rm -rf "$VENV"
  return "$status"
}

trap '"$rig/stop.sh" >/dev/null' EXIT
[ $# -gt 0 ] || mapfile -t releases < <(awk '!/^#/ {print $1}' "$rig/releases.tsv")
[ $# -eq 0 ] || releases=("$@")
echo "| vLLM | connector | prompts sent as | equal | prompt tokens: by transfer, computed by the decoder | date |"
echo "|---|---|---|---|---|---|"
wrong=
for release in "${releases[@]}"; do
  # In a shell of its own: the rig's settings follow from the release.
  (export VLLM=$release && run_release) || wrong="$wrong $release"
done
[ -z "$wrong" ] || { echo "not equal, or not run:$wrong" >&2; exit 1; }
