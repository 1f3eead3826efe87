#!/usr/bin/env bash
# Hours of mixed load with faults, as processes: memory stays, nothing is stranded, no answer is wrong. More in soak.py. Needs
# python3 alone; an hour, or `tests/soak.sh --seconds N`. Not part of .ci/run.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked --quiet
exec python3 tests/soak.py --gateway "${PD_PROXY:-target/release/pd-proxy}" "$@"
