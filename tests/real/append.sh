#!/usr/bin/env bash
# Two real vLLM engines with NixlConnector, the gateway with route.append_gap_ms, and a plain engine: conversations of six turns whose
# later prompts the decoder computes alone. More in append.py.
#
# Needs what run.sh needs, and 8 GiB of memory; five minutes. PD_PROXY names a program that is built. Exit status 0: texts equal those of
# the plain engine, and the decoder had what was predicted.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
. tests/real/connectors.sh
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
trap '"$rig/stop.sh" >/dev/null' EXIT
"$rig/start_pair.sh" ref
"$rig/start_pair.sh" nixl
# Engines that share two cores are slow: what they are predicted to take is learned from the first prompts.
port=${GATEWAY_PORT:-9000}
PROXY_EXTRA="--set dialect.name=kv_transfer --set route.append_gap_ms=100 --set prompt.tokens=engine --set prompt.budget_ms=5000 --set hash.seed=${HASHSEED:-0}" \
  PD_PROXY=$program "$rig/start_proxy.sh" pd-proxy "$port"
"$VENV/bin/python" tests/real/append.py "http://127.0.0.1:$port" "http://127.0.0.1:$P_PORT" "http://127.0.0.1:$D_PORT" "http://127.0.0.1:$REF_PORT"
