#!/usr/bin/env bash
# The blocks before the first image of a chat have the names that a real vLLM engine gives them: a CPU engine that serves a model
# of Qwen2.5-VL's form (random weights, the real processor of images), its BlockStored events beside `pd-proxy keys`.
#
#   tests/real/image_blocks.sh [--chats N] [--chance SEED]
#
# Needs what kv_events.sh needs, and torchvision, which it fetches. Two minutes. Exit status 0: all equal.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
cargo build --locked
vision=$RIG/torchvision
if [ ! -d "$vision" ]; then
  # Releases of both go side by side: 0.28 belongs to torch 2.13. Here alone: other runs are without it.
  release=$("$VENV/bin/python" -c 'import torch; major, minor, patch = torch.__version__.split("+")[0].split("."); print(f"0.{int(minor) + 15}.{patch}")')
  "$VENV/bin/python" -m pip --disable-pip-version-check -q install --no-deps --target "$vision" "torchvision==$release"
fi
model=$RIG/tiny-image
PYTHONPATH=$vision "$VENV/bin/python" tests/real/image_model.py --out "$model"
trap '"$rig/stop.sh" prefill >/dev/null' EXIT
# Room for all chats: a block that is evicted would be stored twice.
export KV_CACHE_BLOCKS=${KV_CACHE_BLOCKS:-8192} ENGINE_ENV="PYTHONPATH=$vision" EXTRA_P="--load-format dummy --limit-mm-per-prompt {\"image\":16}"
"$VENV/bin/python" tests/real/image_blocks.py --gateway target/debug/pd-proxy --rig "$rig" --model "$model" --port "$P_PORT" \
  --block "$BLOCK" --algo sha256 --seed 0 --form number "$@"
