#!/usr/bin/env bash
# A real vLLM decoder put to sleep and paused through the gateway, with a time to drain and without, and woken again. CPU engines free no
# memory; they stop and begin to schedule as others do. More in asleep.py.
#
# Needs what run.sh needs; three minutes. PD_PROXY names a program that is built. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
. tests/real/connectors.sh
connector=${CONNECTOR:-nixl}
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
trap '"$rig/stop.sh" proxy prefill decode >/dev/null' EXIT
# These routes are there in development mode alone.
DEV_MODE=1 "$rig/start_pair.sh" "$connector"
port=${GATEWAY_PORT:-9000}
PROXY_EXTRA="--set dialect.name=$(dialect_of "$connector") $(flags_of "$connector")" PD_PROXY=$program "$rig/start_proxy.sh" pd-proxy "$port"
"$VENV/bin/python" tests/real/asleep.py "http://127.0.0.1:$port" "http://127.0.0.1:$D_PORT"
