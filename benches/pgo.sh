#!/usr/bin/env bash
# Builds target/pgo/pd-proxy: the release build, told by a run of train.py what of it is run often. The same program with a fifth fewer
# instructions per request and a quarter fewer per event, and its busy parts side by side, which is what counts after a pause (RESULTS.md).
# It is built twice: a quarter of an hour on two cores. Wants python3 and rustc's own llvm-profdata, which is fetched if rustup can.
# RUSTFLAGS are kept, for a processor of yours.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

host="$(rustc -vV | sed -n 's/^host: //p')"
tools="$(rustc --print sysroot)/lib/rustlib/$host/bin"
[[ -x "$tools/llvm-profdata" ]] || rustup component add llvm-tools >/dev/null || {
    echo "pgo: $tools/llvm-profdata is missing, which comes with rustup's component llvm-tools" >&2
    exit 1
}

build() { # FLAGS FOLDER: the path of what was built. With a target, so that macros and build scripts stay as they are.
    RUSTFLAGS="${RUSTFLAGS:-} $1" cargo build --release --locked --bin pd-proxy --target "$host" --target-dir "$2" >&2
    echo "$2/$host/release/pd-proxy"
}

mkdir -p target/pgo
seen="$(mktemp -d)"
trap 'rm -rf "$seen"' EXIT
instrumented="$(build "-Cprofile-generate=$PWD/target/pgo/unused" target/pgo/instrumented)"
python3 benches/train.py "$instrumented" "$seen"
"$tools/llvm-profdata" merge -o "$seen/merged" "$seen"/*.profraw
# Cargo looks at names, not at what is in the file.
profile="$PWD/target/pgo/$(sha256sum "$seen/merged" | cut -c1-16).profdata"
rm -f target/pgo/*.profdata
cp "$seen/merged" "$profile"
trained="$(build "-Cprofile-use=$profile" target/pgo/trained)"
cp "$trained" target/pgo/pd-proxy
target/pgo/pd-proxy --version
echo "pgo: target/pgo/pd-proxy"
