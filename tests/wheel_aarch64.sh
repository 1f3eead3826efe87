#!/usr/bin/env bash
# The Python wheel of an aarch64 program: compiled by Debian's Rust, linked by zig against an old glibc, packed, and put through wheel.py on
# an aarch64 Debian under qemu, whose own pip takes it. No toolchain for that machine has to be installed here, and no kernel has to know it.
# By hand: needs root, Debian, 4 GB below the temporary directory and half an hour, of which most is the build. Fetches 0.5 GB: two
# Debian systems, and zig from PyPI; of crates what cargo has not fetched yet. WHEEL_DIR keeps what was made, for the next time, and the wheel
# in its dist/. PD_PROXY names a program of the same sources for this machine: then what both say of themselves is compared. Exit status
# 77: it can't be tried here.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded "${WHEEL_SECONDS:-7200}" "$0" "$@"
[[ $(id -u) == 0 ]] || not_run "needs root"
command -v apt-get >/dev/null || not_run "needs Debian's packages"
[[ $(uname -m) == x86_64 ]] || not_run "is for x86-64"

# openEuler 20.03's, the oldest on which vllm-ascend's machines may be.
GLIBC=2.28
TARGET=aarch64-unknown-linux-gnu
ZIG=0.17.1
# The one that has a Rust as new as this project's, and the one on which the wheel is tried.
COMPILING=testing RUNNING=bookworm

kept="${WHEEL_DIR:-}"
work="${kept:-$(mktemp -d)}"
mkdir -p "$work"
work=$(realpath "$work")
making=
cleanup() {
    [[ -z "$making" ]] || tail -n 5 "$work/$making.log" >&2
    [[ -n "$kept" ]] || rm -rf "$work"
}
trap cleanup EXIT

# once NAME FUNCTION: makes the folder $work/NAME unless an earlier run has.
once() {
    [[ ! -e "$work/$1.made" ]] || return 0
    echo "wheel: making $1"
    making=$1
    rm -rf "${work:?}/$1"
    "$2" "$work/$1" >"$work/$1.log" 2>&1
    touch "$work/$1.made"
    making=
}

# A Debian of this machine's kind with Rust, and Rust's standard library for the other: of the same version, or rustc refuses it.
compiling() {
    debootstrap --variant=minbase --include=rustc,cargo,gcc,libc6-dev,ca-certificates "$COMPILING" "$1"
    chroot "$1" dpkg --add-architecture arm64
    # A mirror may lag behind; its signature is checked all the same.
    chroot "$1" apt-get -o Acquire::Check-Valid-Until=false -qq update
    chroot "$1" sh -ec 'cd /tmp
        apt-get -qq download "libstd-rust-dev:arm64=$(dpkg-query -W -f "\${Version}" libstd-rust-dev:amd64)"
        dpkg-deb -x libstd-rust-dev_*.deb /'
    mkdir "$1/zig" "$1/src" "$1/target" "$1/cargo"
    # The crate `cc` names the target as Rust does, which zig does not know; of rustc's -O1 for the linker it says that it is ignored.
    cat >"$1/usr/local/bin/zig-aarch64" <<WORDS
#!/bin/sh
for word; do
    shift
    case \$word in --target=* | -Wl,-O1) ;; *) set -- "\$@" "\$word" ;; esac
done
exec /zig/zig cc -target aarch64-linux-gnu.$GLIBC "\$@"
WORDS
    printf '#!/bin/sh\nexec /zig/zig ar "$@"\n' >"$1/usr/local/bin/zig-ar"
    chmod +x "$1"/usr/local/bin/zig-*
}

# An aarch64 Debian with pip, unpacked and never set up: for that it would have to run.
running() {
    debootstrap --foreign --arch=arm64 --variant=minbase --include=python3,python3-pip "$RUNNING" "$1"
    local package
    for package in "$1"/var/cache/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$1"
    done
    rm -r "$1"/var/cache/apt/archives
}

zig() {
    fetch reaches_python zig "$pip" install --quiet --disable-pip-version-check --no-deps --target "$1" "ziglang==$ZIG"
}

debian debootstrap bubblewrap qemu-user-static binutils-aarch64-linux-gnu
venv "$work/python"
once zig zig
once compiling compiling
once running running

cargo fetch --locked --quiet
mkdir -p "$work/target" "$work/cargo" "$work/tmp"
nice bwrap --ro-bind "$work/compiling" / --dev /dev --proc /proc --tmpfs /tmp --ro-bind "$work/zig/ziglang" /zig --ro-bind . /src \
    --bind "$work/target" /target --bind "$work/cargo" /cargo --ro-bind "${CARGO_HOME:-$HOME/.cargo}/registry" /cargo/registry \
    --unshare-all --die-with-parent --chdir /src --clearenv --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /target \
    --setenv CARGO_HOME /cargo --setenv CARGO_TARGET_DIR /target --setenv ZIG_GLOBAL_CACHE_DIR /target/zig --setenv ZIG_LOCAL_CACHE_DIR /target/zig \
    --setenv CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER zig-aarch64 --setenv CC_aarch64_unknown_linux_gnu zig-aarch64 \
    --setenv AR_aarch64_unknown_linux_gnu zig-ar \
    cargo build --profile dist --locked --offline --quiet --target "$TARGET" --bin pd-proxy
program=$work/target/$TARGET/dist/pd-proxy

cat >"$work/emulator" <<WORDS
#!/bin/sh
exec bwrap --ro-bind "$work/running" / --dev /dev --proc /proc --tmpfs /tmp --tmpfs /run --ro-bind "$(command -v qemu-aarch64-static)" /run/qemu \\
    --bind "$work/tmp" "$work/tmp" --ro-bind "$program" "$program" --die-with-parent --clearenv --setenv PATH /usr/bin:/bin \\
    --setenv HOME "$work/tmp" /run/qemu "\$@"
WORDS
printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$work/emulator" "$program" >"$work/emulated"
chmod +x "$work/emulator" "$work/emulated"
runnable=${PD_PROXY:-$work/emulated}

rm -rf "$work/dist"
wheel=$("$python" config/python/build_wheel.py "$program" --out "$work/dist" --runnable "$runnable")
[[ $wheel == *-py3-none-manylinux_${GLIBC/./_}_aarch64.whl ]] || { echo "wheel: $wheel is not for glibc $GLIBC" >&2; exit 1; }
TMPDIR=$work/tmp env -u HTTP_PROXY -u http_proxy "$python" tests/wheel.py --program "$program" --runnable "$runnable" --emulator "$work/emulator"
echo "wheel: ok"
