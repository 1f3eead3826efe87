#!/usr/bin/env bash
# The Python wheel of an aarch64 program: cross-compiled by rustup's standard library for it, linked by zig against an old glibc, and
# put through wheel.py by qemu with Debian's libraries of that machine. By hand: the build takes as long as one for this machine, and
# root is wanted for Debian's packages. PROFILE is cargo's (default: dist), PD_PROXY a program of the same sources for this machine (left
# out, it is built), WHEEL_DIR keeps the wheel. Exit status 77: it can't be tried here.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded "${WHEEL_SECONDS:-7200}" "$0" "$@"
command -v apt-get >/dev/null || not_run "needs Debian's packages"
[[ $(uname -m) == x86_64 ]] || not_run "is for x86-64"
. tests/wheel_tools.sh
tools maturin ziglang
debian qemu-user-static libc6-arm64-cross libgcc-s1-arm64-cross

TARGET=aarch64-unknown-linux-gnu
# Of openEuler 20.03, the oldest on which vllm-ascend's machines may be.
TAG=manylinux_2_28_aarch64
[[ -d $(rustc --print sysroot)/lib/rustlib/$TARGET ]] || rustup target add "$TARGET" || not_run "there is no Rust for $TARGET"

out=${WHEEL_DIR:-$work/dist}
nice config/wheel.sh --out "$out" --target "$TARGET" --zig --compatibility "${TAG%_aarch64}"
env -u HTTP_PROXY -u http_proxy "$python" tests/wheel.py "$out"/pd_proxy-*-py3-none-$TAG.whl --under qemu-aarch64-static -L /usr/aarch64-linux-gnu
echo "wheel: ok"
