#!/usr/bin/env bash
# The block hashes that `pd-proxy keys` computes from a client's request are those of a real vLLM engine's KV events:
# a CPU engine of the rig for each run, its BlockStored events received over ZMQ. Of how the engine hashes, the gateway
# is told PYTHONHASHSEED and no more. Before the same engine the gateway is started three times (proof.py): it proves its
# tokens by the model's files, refutes them by a template with one character changed, and refuses a wrong block size.
#
#   tests/real/kv_events.sh [RUN…]
#
# RUN is ALGORITHM,SEED,FORM,TEMPLATE: a --prefix-caching-hash-algo; PYTHONHASHSEED, or unset; number (the 64 bits that
# engines publish by default) or bytes (whole hashes); a file of tests/golden/templates, or own (the rig's model's).
# RUN may also be held,binds or held,connects: the gateway itself listens to the engine's events, which listens for it or
# connects to it, and says of each prompt how much of it the engine holds; the engine then finds exactly that (held.py).
# With held,told it is told no address, and the engine's ports are not the usual ones: it asks for /kv_event_sources.
# Needs what run.sh needs, for one engine at a time; a minute and a half per run. Exit status 0: equal, for every
# prompt of every run, no hash in common when the gateway is given a wrong seed, and all starts went as they should.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
[ $# -gt 0 ] || set -- sha256,0,number,qwen3 sha256_cbor,0,number,qwen3 sha256,unset,bytes,own held,binds held,connects held,told
program=$(gateway_program)
trap '"$rig/stop.sh" prefill >/dev/null' EXIT
own=$MODEL_DIR
# An engine of which the gateway is told where it publishes, and what it then says.
held() {
  local events=tcp://127.0.0.1:5557 endpoint='tcp://*:5557' replay=5558
  case $1 in
    connects) events='tcp://*:5557' endpoint=tcp://127.0.0.1:5557;;
    told) events='' endpoint='tcp://*:5719' replay=5733;;
  esac
  local config='{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"'$endpoint'","replay_endpoint":"tcp://*:'$replay'"}'
  # Long prompts come in several steps, so that their blocks come in several events.
  local extra="--max-num-batched-tokens 256 --enable-auto-tool-choice --tool-call-parser hermes"
  DEV_MODE=1 HASHSEED=0 EXTRA="$extra" EXTRA_P="--kv-events-config $config" "$rig/start_pair.sh" plain p
  [ -z "$events" ] || events="--events=$events tcp://127.0.0.1:$replay"
  "$VENV/bin/python" tests/real/held.py --gateway "$program" --model "$own" --port "$P_PORT" --block "$BLOCK" --seed 0 \
    ${events:+"$events"}
  "$rig/stop.sh" prefill >/dev/null
}
for run; do
  case $run in held,*)
    held "${run#held,}"
    continue
    ;;
  esac
  IFS=, read -r algo seed form template <<<"$run"
  model=$own
  if [ "$template" != own ]; then
    # The rig's model with another template: the same files beside it.
    model=$RIG/kv-events-$template
    mkdir -p "$model"
    ln -sfn "$own"/* "$model"/
    cp --remove-destination "tests/golden/templates/$template.jinja" "$model/chat_template.jinja"
  fi
  both=(--gateway "$program" --model "$model" --port "$P_PORT" --block "$BLOCK" --seed "$seed")
  "$VENV/bin/python" tests/real/kv_events.py "${both[@]}" --rig "$rig" --algo "$algo" --form "$form"
  "$VENV/bin/python" tests/real/proof.py "${both[@]}"
  "$rig/stop.sh" prefill >/dev/null
done
echo "all $# runs equal"
