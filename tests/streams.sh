#!/usr/bin/env bash
# Ten thousand slow streams at once, as processes: none fails, memory per stream, and nothing is left when the clients drop. More in
# streams.py. Needs python3 and h2load (nghttp2); five minutes. Not part of .ci/run.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v h2load >/dev/null || { echo "h2load is missing: install nghttp2-client (Debian) or nghttp2"; exit 77; }
[[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked --quiet
exec python3 tests/streams.py --gateway "${PD_PROXY:-target/release/pd-proxy}" "$@"
