#!/usr/bin/env bash
# Two real prefillers, a real decoder and a real pool: the second turn of a conversation goes to the prefiller that has the first,
# which reports as many cached tokens as were predicted; and when the prefillers' own caches are emptied, the pool's blocks still
# count. More in turns.py.
#
# Needs what run.sh needs, and 6 GiB of memory; four minutes. PD_PROXY names a program that is built. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
trap '"$rig/stop.sh" prefill second decode master >/dev/null' EXIT
# Emptying an engine's own cache is for developers.
export DEV_MODE=1 HASHSEED=0
# Engines that share two cores may be silent for long.
export MASTER_EXTRA="-client_ttl=120 -default_kv_lease_ttl=60000"
"$rig/start_pair.sh" multi
second='{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[
  {"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_buffer_device":"cpu"},
  {"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both","kv_connector_extra_config":{"load_async":true,"lookup_rpc_port":"q"}}]}}'
start_engine second 8101 VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=5602 UCX_TLS=tcp,self UCX_NET_DEVICES=lo \
  NIXL_PTHR_DELAY_US=500 MOONCAKE_CONFIG_PATH="$RUN/mooncake.json" MC_FORCE_TCP=1 -- \
  --num-gpu-blocks-override 1024 --kv-transfer-config "$second"
wait_engine second
"$VENV/bin/python" tests/real/turns.py --gateway "$program" --model "$MODEL_DIR" --decode "127.0.0.1:$D_PORT" \
  --prefill "127.0.0.1:$P_PORT" --second 127.0.0.1:8101 --master "127.0.0.1:${MC_PORT:-50151}" --store "127.0.0.1:${MC_METRICS:-19003}"
