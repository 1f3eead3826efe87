#!/usr/bin/env bash
# Builds the program that is handed out and prints its path: `dist.sh` by cargo's profile `dist`, `dist.sh --pgo` by that and by a record of
# how often each function runs, learnt anew each time: an instrumented build serves the scenes of train.py. The second takes three
# times as long as the first, and gives a fifth fewer instructions per request.
# RUSTFLAGS hand the record over, so that cargo knows what was built with it, and CARGO_TARGET_DIR, RUSTC_WRAPPER and flags of
# yours (RUSTFLAGS, for a processor of yours) count as in any other build. A target is named, since cargo then keeps the flags from build scripts
# and procedural macros: nothing is learnt of those. The programs are target/dist/pd-proxy and target/dist-pgo/pd-proxy.
# Wants python3 and rustc's own llvm-profdata, which is rustup's component llvm-tools: it is installed where that can be done.
set -euo pipefail
# Older than bash 4.4 it is not known.
shopt -s inherit_errexit 2>/dev/null || true
cd "$(dirname "$0")/../.."

# The program's path is all that standard output has.
exec 3>&1 1>&2

build() {
    cargo build --profile dist --locked --all-features --bin pd-proxy "$@"
}

case "$*" in
    "") learns= ;;
    --pgo) learns=1 ;;
    *) echo "usage: $0 [--pgo]"; exit 2 ;;
esac
folder="${CARGO_TARGET_DIR:-target}"

if [[ -z "$learns" ]]; then
    build
    echo "$folder/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}dist/pd-proxy" >&3
    exit
fi

host="$(rustc -vV | sed -n 's/^host: //p')"
profdata="$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata"
[[ -x "$profdata" ]] || rustup component add llvm-tools || true
[[ -x "$profdata" ]] || {
    echo "dist: $profdata is missing: install rustup's component llvm-tools, or build without --pgo"
    exit 1
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
flags="${RUSTFLAGS:-}"
target="${CARGO_BUILD_TARGET:-$host}"
built="$folder/$target/dist/pd-proxy"
# Build scripts and what the compiler runs leave nothing: they are not instrumented.
RUSTFLAGS="$flags -Cprofile-generate" build --target "$target"
# It is slow: no one shall find it at a place of programs to be used.
mv "$built" "$work/pd-proxy"
python3 benches/pgo/train.py "$work/pd-proxy" "$work"
# Of functions that were not run nothing is kept: 1.8 MB in place of 15.
"$profdata" merge --sparse -o "$work/profdata" "$work"/*.profraw
# Named by what is in it: cargo sees the flags, not the file.
learnt="$(realpath "$folder")/$target/pgo-$(sha256sum "$work/profdata" | cut -c1-16).profdata"
rm -f "$(dirname "$learnt")"/pgo-*.profdata
mv "$work/profdata" "$learnt"
RUSTFLAGS="$flags -Cprofile-use=$learnt" build --target "$target"
install -D "$built" "$folder/dist-pgo/pd-proxy"
echo "$folder/dist-pgo/pd-proxy" >&3
