#!/usr/bin/env bash
# Priorities of clients' keys in a real vLLM decoder that runs one request at a time: with `--scheduling-policy priority` and
# engine.priority_scheduling the key decides who is next, whatever the client claims; without either of them it does not.
# More in priority.py.
#
# Needs what run.sh needs; five minutes. PD_PROXY names a program that is built. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
. tests/real/connectors.sh
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
work=$(mktemp -d)
ended() {
  "$rig/stop.sh" proxy prefill decode >/dev/null
  rm -rf "$work"
}
trap ended EXIT
port=${GATEWAY_PORT:-9000}
for class in low normal high; do
  "$program" api-key new --name "$class" >>"$work/keys.toml" 2>"$work/said"
  echo "priority = \"$class\"" >>"$work/keys.toml"
  sed 's/.*: //' "$work/said" >"$work/$class"
done

# gateway SCHEDULING : starts it anew with this engine.priority_scheduling
gateway() {
  "$rig/stop.sh" proxy >/dev/null
  PROXY_EXTRA="--set dialect.name=$(dialect_of plain) --set auth.keys_file=$work/keys.toml --set engine.priority_scheduling=$1" \
    PD_PROXY=$program "$rig/start_proxy.sh" pd-proxy "$port"
}

status=0
export MAX_SEQS=1
for case in "priority true false" "fcfs true"; do
  read -r policy settings <<<"$case"
  echo "== engines with --scheduling-policy $policy"
  EXTRA="--scheduling-policy $policy" "$rig/start_pair.sh" plain
  for scheduling in $settings; do
    gateway "$scheduling"
    "$VENV/bin/python" tests/real/priority.py "http://127.0.0.1:$port" "http://127.0.0.1:$D_PORT" "$work" "$policy" "$scheduling" || status=1
  done
  "$rig/stop.sh" proxy prefill decode >/dev/null
done
[ "$status" != 0 ] || echo "all as it should be"
exit "$status"
