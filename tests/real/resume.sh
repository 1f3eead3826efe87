#!/usr/bin/env bash
# A real decoder is killed under streams: with `retry.resume` the other one goes on, and clients read what they read when nothing
# happens. More in resume.py.
#
# Needs what run.sh needs, and 6 GiB of memory; five minutes. PD_PROXY names a program that is built. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
trap '"$rig/stop.sh" prefill decode second >/dev/null' EXIT
export HASHSEED=0
"$rig/start_pair.sh" nixl
second='{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_buffer_device":"cpu","kv_load_failure_policy":"fail",
  "kv_connector_extra_config":{"num_threads":4,"kv_lease_duration":30}}'
start_engine second 8201 VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=5603 UCX_TLS=tcp,self UCX_NET_DEVICES=lo \
  NIXL_PTHR_DELAY_US=500 -- --num-gpu-blocks-override 1024 --kv-transfer-config "$second"
wait_engine second
"$VENV/bin/python" tests/real/resume.py --gateway "$program" --prefill "127.0.0.1:$P_PORT" --decode "127.0.0.1:$D_PORT" \
  --second 127.0.0.1:8201 --pid "$RUN/second.pid"
