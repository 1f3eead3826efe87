#!/usr/bin/env bash
# The block hashes that `pd-proxy keys` computes from a client's request are those of a real vLLM engine's KV events:
# a CPU engine of the rig for each run, its BlockStored events received over ZMQ. Of how the engine hashes, the gateway
# is told PYTHONHASHSEED and no more.
#
#   tests/real/kv_events.sh [RUN…]
#
# RUN is ALGORITHM,SEED,FORM,TEMPLATE: a --prefix-caching-hash-algo; PYTHONHASHSEED, or unset; number (the 64 bits that
# engines publish by default) or bytes (whole hashes); a file of tests/golden/templates, or own (the rig's model's).
# Needs what run.sh needs, for one engine at a time; a minute and a half per run. Exit status 0: equal, for every
# prompt of every run, and no hash in common when the gateway is given a wrong seed.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/../shared/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
[ $# -gt 0 ] || set -- sha256,0,number,qwen3 sha256_cbor,0,number,qwen3 sha256,unset,bytes,own
cargo build --locked
trap '"$rig/stop.sh" prefill >/dev/null' EXIT
own=$MODEL_DIR
for run; do
  IFS=, read -r algo seed form template <<<"$run"
  model=$own
  if [ "$template" != own ]; then
    # The rig's model with another template: the same files beside it.
    model=$RIG/kv-events-$template
    mkdir -p "$model"
    ln -sfn "$own"/* "$model"/
    cp --remove-destination "tests/golden/templates/$template.jinja" "$model/chat_template.jinja"
  fi
  "$VENV/bin/python" tests/real/kv_events.py --gateway target/debug/pd-proxy --rig "$rig" --model "$model" \
    --port "$P_PORT" --block "$BLOCK" --algo "$algo" --seed "$seed" --form "$form"
  "$rig/stop.sh" prefill >/dev/null
done
echo "all $# runs equal"
