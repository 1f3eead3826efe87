#!/usr/bin/env bash
# Writes pd-proxy.profdata anew, by which each optimised build is compiled (rustc, beside this): how often each function ran while an
# instrumented build served the scenes of train.py. To be run, and its files committed, when tests/instructions.sh finds requests dearer
# for no reason of their own: another compiler, Cargo.lock, features or [profile.release] give functions other names, and what is
# known of the old ones is of no use. Ten minutes on two cores.
# Wants python3 and rustc's own llvm-profdata, which is fetched if rustup can. RUSTFLAGS are kept, for a processor of yours.
set -euo pipefail
# Older than bash 4.4 it is not known.
shopt -s inherit_errexit 2>/dev/null || true
cd "$(dirname "$0")/../.."

host="$(rustc -vV | sed -n 's/^host: //p')"
tools="$(rustc --print sysroot)/lib/rustlib/$host/bin"
[[ -x "$tools/llvm-profdata" ]] || rustup component add llvm-tools >/dev/null || {
    echo "learn: $tools/llvm-profdata is missing, which comes with rustup's component llvm-tools" >&2
    exit 1
}

seen="$(mktemp -d)"
trap 'rm -rf "$seen"' EXIT
# A target would be part of the functions' names, and another wrapper would not know of PGO_FLAGS. What is built already may be without them.
unset CARGO_BUILD_TARGET
rm -rf target/pgo
RUSTC_WRAPPER="$PWD/benches/pgo/rustc" PGO_FLAGS=-Cprofile-generate \
    cargo build --release --locked --bin pd-proxy --target-dir target/pgo
[[ -x target/pgo/release/pd-proxy ]] || {
    echo "learn: target/pgo/release/pd-proxy is missing: does cargo's own configuration set build.target? Leave it out while this runs" >&2
    exit 1
}
python3 benches/pgo/train.py target/pgo/release/pd-proxy "$seen"
# Of functions that were not run nothing is kept: 1.8 MB in place of 15.
"$tools/llvm-profdata" merge --sparse -o "$seen/profdata" "$seen"/*.profraw
mv "$seen/profdata" benches/pgo/pd-proxy.profdata
rustc -vV >benches/pgo/learnt-with
# Cargo does not see what was built without a profile so far.
cargo clean --release --quiet
echo "learn: wrote benches/pgo/pd-proxy.profdata and learnt-with; the next release build, of everything, is by them"
