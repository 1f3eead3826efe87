#!/usr/bin/env bash
# From nothing to routing by caches with two commands: `pd-proxy init` asks real vLLM engines, and the gateway runs on what it writes.
# `pd-proxy check` must find nothing wrong with that. Three times it writes for
#
# * a pair with a Mooncake store, whose PYTHONHASHSEED is 0 (in development mode, in which engines describe themselves): a prompt that was
#   answered must be found in the pool when it comes again;
# * the same with the seed unset, in no development mode;
# * two prefillers and a decoder with NIXL: prompts that come again must go where they were, and be found there.
#
# Needs what run.sh needs; ten minutes. PD_PROXY names a program that is built, CASES some of the cases. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
work=$(mktemp -d)
gateway=
second() { RUN=$RIG/run-second LOGS=$RIG/logs-second P_PORT=${P2_PORT:-8101} P_NIXL_PORT=5610 "$@"; }
stop() {
  [ -z "$gateway" ] || { kill "$gateway"; wait "$gateway" || true; gateway=; }
  second "$rig/stop.sh" prefill >/dev/null
  "$rig/stop.sh" prefill decode master >/dev/null
}
ended() {
  stop
  rm -rf "$work"
}
trap ended EXIT
export MASTER_EXTRA="-client_ttl=120 -default_kv_lease_ttl=60000" START_S=600

fail() { echo "FAILED: $1" >&2; exit 1; }

# start FLAG… : writes a configuration for engines that these name, checks it, and runs the gateway on it
start() {
  begun=$(date +%s)
  "$program" init --output "$file" "$@" --set timeout.models_ms=60000
  cat "$file"
  "$program" check --config "$file" || fail "check found faults in what init wrote"
  "$program" --config "$file" --port 8390 --log-format json >"$work/log" 2>&1 &
  gateway=$!
  until curl -sf http://127.0.0.1:8390/readyz >/dev/null; do kill -0 "$gateway" || fail "the gateway ended"; sleep 0.2; done
}

# ask NUMBER : a prompt of its own
ask() {
  local prompt
  prompt="Prompt $1. $(printf 'A word %s and another one. ' $(seq 1 40))"
  curl -sf http://127.0.0.1:8390/v1/completions -H 'content-type: application/json' \
    -d "{\"model\":\"$MODEL_NAME\",\"prompt\":\"$prompt\",\"max_tokens\":2}" >/dev/null
}

# logged NAME : this member of each request's line, in their order
logged() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"]*\).*/\1/p" "$work/log"; }

# passed WHAT
passed() { echo "ok    $1, $(($(date +%s) - begun)) s after the first command"; }

# store : until a prompt is found in the pool
store() {
  "$rig/start_pair.sh" mooncake-store
  start --prefill "127.0.0.1:$P_PORT" --decode "127.0.0.1:$D_PORT" --pool "mooncake://127.0.0.1:$MC_PORT?admin=$MC_METRICS"
  if [ -n "$HASHSEED" ]; then grep -q '^seed = "0"$' "$file" || fail "the seed was not found"; fi
  if [ -z "$HASHSEED" ]; then ! grep -q '^seed' "$file" || fail "a seed was set"; fi
  # What a prefiller has computed comes into the store a moment later.
  local found=0
  for _ in $(seq 1 30); do
    ask 0
    found=$(logged pooled_tokens | sort -n | tail -1)
    [ "${found:-0}" -eq 0 ] || break
    sleep 1
  done
  [ "${found:-0}" -gt 0 ] || { tail -5 "$work/log"; fail "no token was found in the pool"; }
  passed "pooled_tokens $found"
}

# handoff : prompts that come again go to the prefiller that has them
handoff() {
  "$rig/start_pair.sh" nixl
  second "$rig/start_pair.sh" nixl p
  start --prefill "127.0.0.1:$P_PORT" --prefill "127.0.0.1:${P2_PORT:-8101}" --decode "127.0.0.1:$D_PORT"
  local first again cached
  ask 1
  passed "a first answer"
  for number in $(seq 2 12); do ask "$number"; done
  first=$(logged prefiller)
  for number in $(seq 1 12); do ask "$number"; done
  again=$(logged prefiller | tail -12) cached=$(logged cached_tokens | tail -12 | sort -n | head -1)
  [ "$(sort -u <<<"$first" | wc -l)" = 2 ] || fail "one prefiller had all prompts"
  [ "$first" = "$again" ] || fail "prompts went elsewhere: $(paste -d' ' <(echo "$first") <(echo "$again"))"
  [ "$cached" -gt 0 ] || fail "a prompt that came again was computed anew"
  passed "12 of 12 prompts went where they had been, at least $cached tokens of each were there"
}

for case in ${CASES:-store,0,1 store,,0 handoff,0,1}; do
  IFS=, read -r kind HASHSEED DEV_MODE <<<"$case"
  export HASHSEED DEV_MODE
  file=$work/$kind-${HASHSEED:-unset}.toml
  echo "== $kind: PYTHONHASHSEED '${HASHSEED}', development mode $DEV_MODE"
  "$kind"
  stop
done
echo "all as it should be"
