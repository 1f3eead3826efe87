#!/usr/bin/env bash
# Prompts of random chats, Messages and Responses against `vllm launch render` of vLLM 0.33, without weights: prompts.py says what is compared.
# Ten minutes, and as many for the first time: the engine of tests/real/rigs/vllm is installed then (6.3 GB).
#
# REQUESTS of each of the three kinds (300), SEED another set of them, FAMILY a template of tests/golden/templates in place of two (one takes
# texts, one lists of parts), PROMPTS a built program. Exit status 0: no prompt is wrong; 77: no package index.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/real/fetch.sh
bounded 5400 "$0" "$@"
rig=$PWD/tests/real/rigs/vllm
export VLLM=0.33.0
. "$rig/env.sh"
python=$VENV/bin/python pip=$VENV/bin/pip
if [ ! -x "$VENV/bin/vllm" ]; then
  command -v python3.11 >/dev/null || not_run "python3.11 is not here, for which the engine's packages are"
  PYTHON=python3.11 timeout 3000 "$rig/setup.sh" || { reaches_python || not_run "no package index can be reached, and vLLM is not here yet"; exit 1; }
fi
program=${PROMPTS:-${CARGO_TARGET_DIR:-target}/debug/examples/prompts}
[ -n "${PROMPTS:-}" ] || cargo build --locked --all-features --example prompts
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
"$python" tests/real/prompts.py --vllm "$VENV/bin/vllm" --program "$program" --requests "${REQUESTS:-300}" --seed "${SEED:-1}" ${FAMILY:+--family "$FAMILY"}
