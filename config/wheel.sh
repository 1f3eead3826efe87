#!/usr/bin/env bash
# Builds the Python wheel with maturin (`pip install maturin`), with manual page and completions, into target/wheels. Arguments are
# maturin's, such as `--out DIR` or `--target TRIPLE --zig --compatibility manylinux_2_28`. PROFILE is cargo's (default: dist). PD_PROXY names
# a program of the same sources that is asked for page and completions; left out, it is built.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v maturin >/dev/null || { echo "wheel: maturin is missing: pip install maturin" >&2; exit 1; }
profile=${PROFILE:-dist}

# generate WHAT FILE: what the program prints, into a file that pip puts below the environment's prefix.
generate() {
    mkdir -p "$(dirname "$data/$2")"
    if [[ -n ${PD_PROXY:-} ]]; then
        "$PD_PROXY" generate "$1"
    else
        cargo run --locked --quiet --all-features --profile "$profile" --bin pd-proxy -- generate "$1"
    fi >"$data/$2"
}

# The name by which maturin finds it; without it, a wheel has the program alone.
data=pd-proxy.data/data
trap 'rm -rf pd-proxy.data' EXIT
generate man share/man/man1/pd-proxy.1
generate bash share/bash-completion/completions/pd-proxy
generate zsh share/zsh/site-functions/_pd-proxy
generate fish share/fish/vendor_completions.d/pd-proxy.fish
maturin build --profile "$profile" "$@"
