#!/usr/bin/env bash
# Real engines and a real pool together: after prompts went through the gateway, its own lookup of the same prompts in the
# real mooncake_master finds exactly the blocks that the engines stored, and none of prompts that differ at the beginning.
# Then the master is stopped and goes on, is killed under load and
# comes back empty. More in pool.py and pool_outage.py.
#
#   tests/real/pool.sh [CONNECTOR…]      default: mooncake-store multi; the first gets all cases, further ones a few
# CASES=few gives the first a few, too; EXTRA is more for engines, GATEWAY_MODEL another directory of the model for the gateway.
#
# Needs what run.sh needs, and a master from 0.3.12 on; five minutes. PD_PROXY names a program that is built. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
[ $# -gt 0 ] || set -- mooncake-store multi
program=${PD_PROXY:-target/debug/pd-proxy}
# With the tests' dependencies, as they are built before.
[ -n "${PD_PROXY:-}" ] || cargo test --locked --no-run --test it
trap '"$rig/stop.sh" prefill decode master >/dev/null' EXIT
# Emptying an engine's own cache is for developers.
export DEV_MODE=1 EXTRA="${EXTRA:+$EXTRA }--enable-auto-tool-choice --tool-call-parser hermes" HASHSEED=0
# Two engines on two cores may be silent for longer than the ten seconds after which a master drops what is theirs, and take longer
# to load blocks than the five for which it lends them: then they fail the request.
export MASTER_EXTRA="-client_ttl=120 -default_kv_lease_ttl=60000"
cases=${CASES:-all}
for connector; do
  echo "== $connector, $cases cases"
  "$rig/start_pair.sh" "$connector"
  "$VENV/bin/python" tests/real/pool.py --gateway "$program" --model "${GATEWAY_MODEL:-$MODEL_DIR}" --block "$BLOCK" \
    --prefill "127.0.0.1:$P_PORT" --decode "127.0.0.1:$D_PORT" --cases "$cases" --sim 8399 --pid "$RUN/master.pid" \
    --master "127.0.0.1:${MC_PORT:-50151}" --store "127.0.0.1:${MC_METRICS:-19003}" \
    --restart "'$rig/start_pair.sh' '$connector'"
  "$rig/stop.sh" prefill decode master >/dev/null
  cases=few
done
echo "all $# runs equal"
