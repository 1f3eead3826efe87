#!/usr/bin/env bash
# Two fleets of real vLLM engines behind one gateway: another model and tokenizer in each, one pool for both. Answers are those of one
# plain engine of each model, interleaved, by name and by alias; each fleet finds its own blocks in the pool; and no request for an
# adapter that only some engines have is refused. More in fleets.py.
#
# Needs what run.sh needs, 14 GiB of memory for seven engines, and a quarter of an hour. PD_PROXY names a program that is built.
# Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
program=$(gateway_program)
engines="chat-ref code-ref chat-prefill chat-second chat-decode code-prefill code-decode"
trap '"$rig/stop.sh" $engines master >/dev/null' EXIT
code_model=$RIG/tiny-code adapter=$RIG/adapter-sql
# Another seed, size and vocabulary: neither its tokens nor its answers are those of the first.
"$VENV/bin/python" "$rig/make_model.py" --out "$code_model" --seed 77 --vocab 1536 --hidden 96 >/dev/null
"$VENV/bin/python" "$rig/make_adapter.py" --model "$MODEL_DIR" --out "$adapter"

# Engines that share two cores may be silent for long.
export MASTER_EXTRA="-client_ttl=240 -default_kv_lease_ttl=120000" HASHSEED=0 DEV_MODE=1 KV_CACHE_BLOCKS=1024
start_master

# connector ROLE ID : NIXL between the two engines, and the pool; ID names the engine's lookup socket
connector() {
  echo '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[' \
    '{"kv_connector":"NixlConnector","kv_role":"'"$1"'","kv_buffer_device":"cpu"},' \
    '{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both","kv_connector_extra_config":{"load_async":true,"lookup_rpc_port":"'"$2"'"}}]}}'
}

# paired NAME PORT NIXL_PORT ROLE ARGUMENTS… : an engine of a pair
paired() {
  local name=$1 port=$2 side=$3 role=$4
  shift 4
  start_engine "$name" "$port" VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT="$side" UCX_TLS=tcp,self UCX_NET_DEVICES=lo \
    NIXL_PTHR_DELAY_US=500 MOONCAKE_CONFIG_PATH="$RUN/mooncake.json" MC_FORCE_TCP=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=True -- \
    --num-gpu-blocks-override "$KV_CACHE_BLOCKS" --kv-transfer-config "$(connector "$role" "$name")" "$@"
}

# plain NAME PORT ARGUMENTS… : an engine that does all by itself
plain() {
  local name=$1 port=$2
  shift 2
  start_engine "$name" "$port" VLLM_ALLOW_RUNTIME_LORA_UPDATING=True -- --num-gpu-blocks-override "$KV_CACHE_BLOCKS" "$@"
}

lora=(--enable-lora --max-lora-rank 8 --max-loras 2)
plain chat-ref 8301 --served-model-name tiny gpt-chat "${lora[@]}"
paired chat-prefill 8101 5611 kv_producer "${lora[@]}"
paired chat-second 8102 5612 kv_producer "${lora[@]}"
paired chat-decode 8201 5613 kv_consumer "${lora[@]}"
for name in chat-ref chat-prefill chat-second chat-decode; do START_S=600 wait_engine "$name"; done
chat_model=$MODEL_DIR
MODEL_DIR=$code_model MODEL_NAME=code
plain code-ref 8302 --served-model-name code gpt-code
paired code-prefill 8103 5614 kv_producer
paired code-decode 8202 5615 kv_consumer
for name in code-ref code-prefill code-decode; do START_S=600 wait_engine "$name"; done

"$VENV/bin/python" tests/real/fleets.py --gateway "$program" --check "$rig/check_equal.py" --chat-model "$chat_model" --code-model "$code_model" \
  --adapter "$adapter" --pool "127.0.0.1:$MC_PORT"
