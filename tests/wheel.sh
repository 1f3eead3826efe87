#!/usr/bin/env bash
# The Python wheel: built by config/wheel.sh, installed, run. More in wheel.py. PROFILE is cargo's (default: dist; what is built already is not
# built anew). Maturin comes from PyPI. Exit status 77: it can't be had, or this Python can't make environments.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded "${WHEEL_SECONDS:-1800}" "$0" "$@"
. tests/wheel_tools.sh
tools maturin

config/wheel.sh --out "$work/dist"
env -u HTTP_PROXY -u http_proxy "$python" tests/wheel.py "$work"/dist/*.whl
echo "wheel: ok"
