#!/usr/bin/env bash
# model_forms.sh [FORM…] : a real vLLM engine whose tokenizer is a rank file of tiktoken with code of its own (kimi), and one whose chats are code
# (deepseek_v32), each behind a gateway that listens to its KV events: the gateway proves its tokens by the model's files, says of each prompt how much
# of it the engine holds, and the engine then finds exactly that (held.py). Then a pair of each with a Mooncake pool between them, whose blocks the
# gateway finds by its own tokens and names (pool.py).
#
# Needs what pool.sh needs; eight minutes a form. PD_PROXY names a program that is built. Exit status 0: all as it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
[ $# -gt 0 ] || set -- kimi deepseek_v32
program=$(gateway_program)
trap '"$rig/stop.sh" prefill >/dev/null' EXIT
config='{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'
own=$MODEL_DIR
for form; do
  "$VENV/bin/python" "$rig/make_form.py" "$own" "$form" "$RIG/form-$form"
  case $form in
    kimi) flags=--trust-remote-code ;;
    *) flags="--tokenizer-mode $form" ;;
  esac
  # Long prompts come in several steps, so that their blocks come in several events.
  extra="$flags --max-num-batched-tokens 256 --enable-auto-tool-choice --tool-call-parser hermes"
  DEV_MODE=1 HASHSEED=0 MODEL_DIR=$RIG/form-$form/engine EXTRA="$extra" EXTRA_P="--kv-events-config $config" "$rig/start_pair.sh" plain p
  "$VENV/bin/python" tests/real/held.py --gateway "$program" --model "$RIG/form-$form/gateway" --port "$P_PORT" \
    --block "$BLOCK" --seed 0 --events "tcp://127.0.0.1:5557 tcp://127.0.0.1:5558"
  "$rig/stop.sh" prefill >/dev/null
  MODEL_DIR=$RIG/form-$form/engine GATEWAY_MODEL=$RIG/form-$form/gateway EXTRA=$flags CASES=few PD_PROXY=$program tests/real/pool.sh mooncake-store
done
echo "all $# forms right"
