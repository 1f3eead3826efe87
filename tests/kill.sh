#!/usr/bin/env bash
# Engines that are killed, as processes under load: what clients then see. More in kill.py. Needs python3 alone; two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked --quiet
exec python3 tests/kill.py --gateway "${PD_PROXY:-target/release/pd-proxy}" "$@"
