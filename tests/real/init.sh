#!/usr/bin/env bash
# From nothing to tokens that are found in a pool, by two commands: `pd-proxy init` asks a pair of real vLLM engines with a Mooncake
# store, and the gateway runs on what it writes. `pd-proxy check` must find nothing wrong with that, and a prompt that was answered
# must be found in the pool when it comes again. Once with engines whose PYTHONHASHSEED is 0, once unset; in development mode, in
# which they describe themselves, and without it.
#
# Needs what run.sh needs; five minutes. PD_PROXY names a program that is built. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
work=$(mktemp -d)
gateway=
ended() {
  [ -z "$gateway" ] || kill "$gateway" 2>/dev/null || true
  "$rig/stop.sh" prefill decode master >/dev/null
  rm -rf "$work"
}
trap ended EXIT
export MASTER_EXTRA="-client_ttl=120 -default_kv_lease_ttl=60000" START_S=600

fail() { echo "FAILED: $1" >&2; exit 1; }

for case in "0 1" " 0"; do
  export HASHSEED=${case% *} DEV_MODE=${case#* }
  echo "== PYTHONHASHSEED '${HASHSEED}', development mode $DEV_MODE"
  "$rig/start_pair.sh" mooncake-store
  file=$work/seed-${HASHSEED:-unset}.toml
  begun=$(date +%s)
  "$program" init --output "$file" --prefill "127.0.0.1:$P_PORT" --decode "127.0.0.1:$D_PORT" \
    --pool "mooncake://127.0.0.1:$MC_PORT?admin=$MC_METRICS" --set timeout.models_ms=60000
  cat "$file"
  if [ -n "$HASHSEED" ]; then grep -q '^seed = "0"$' "$file" || fail "the seed was not found"; fi
  if [ -z "$HASHSEED" ]; then ! grep -q '^seed' "$file" || fail "a seed was set"; fi
  "$program" check --config "$file" || fail "check found faults in what init wrote"
  "$program" --config "$file" --port 8390 --log-format json >"$work/log" 2>&1 &
  gateway=$!
  until curl -sf http://127.0.0.1:8390/readyz >/dev/null; do kill -0 "$gateway" || fail "the gateway ended"; sleep 0.2; done
  prompt=$(printf 'A word %s and another one. ' $(seq 1 40))
  found=0
  # What a prefiller has computed comes into the store a moment later.
  for _ in $(seq 1 30); do
    curl -sf http://127.0.0.1:8390/v1/completions -H 'content-type: application/json' \
      -d "{\"model\":\"$MODEL_NAME\",\"prompt\":\"$prompt\",\"max_tokens\":2}" >/dev/null
    found=$(sed -n 's/.*"pooled_tokens":\([0-9]*\).*/\1/p' "$work/log" | sort -n | tail -1)
    [ "${found:-0}" -eq 0 ] || break
    sleep 1
  done
  [ "${found:-0}" -gt 0 ] || { tail -5 "$work/log"; fail "no token was found in the pool"; }
  echo "ok    pooled_tokens $found, $(($(date +%s) - begun)) s after the first command"
  kill "$gateway"; wait "$gateway" || true; gateway=
  "$rig/stop.sh" prefill decode master >/dev/null
done
echo "all as it should be"
