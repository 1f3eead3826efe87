#!/usr/bin/env bash
# README.md and docs/: their commands are run in front of simulated engines, their configurations are given to the program, and what
# they name exists. More in docs.py. Needs python3, curl and openssl; less than a minute.
# PD_PROXY names the program (default: target/release/pd-proxy), built with --all-features.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/program.sh
for tool in python3 curl openssl; do
    command -v "$tool" >/dev/null || { echo "docs: NOT RUN: $tool is missing"; exit 77; }
done
exec timeout --kill-after=15 240 python3 tests/docs.py --program "$program" "$@"
