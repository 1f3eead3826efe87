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
# Needs what run.sh needs, for one engine at a time; a minute and a half per run. Exit status 0: equal, for every
# prompt of every run, no hash in common when the gateway is given a wrong seed, and all starts went as they should.
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
  both=(--gateway target/debug/pd-proxy --model "$model" --port "$P_PORT" --block "$BLOCK" --seed "$seed")
  "$VENV/bin/python" tests/real/kv_events.py "${both[@]}" --rig "$rig" --algo "$algo" --form "$form"
  "$VENV/bin/python" tests/real/proof.py "${both[@]}"
  "$rig/stop.sh" prefill >/dev/null
done
echo "all $# runs equal"
