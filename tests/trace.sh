#!/usr/bin/env bash
# The spans of a gateway in front of simulated engines, decoded by OpenTelemetry's own package for Python. More in trace.py; some
# seconds. PD_PROXY names the program (default: target/release/pd-proxy). Exit status 77: the package can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
. tests/program.sh

version=1.45.2
venv "${TMPDIR:-/tmp}/pd-proxy-otlp-$version"
have() { "$python" -c "from importlib.metadata import version as v; assert v('opentelemetry-proto') == '$version'" 2>/dev/null; }
have || fetch reaches_python opentelemetry-proto \
    "$pip" install --quiet --disable-pip-version-check --retries 1 "opentelemetry-proto==$version"
env -u HTTP_PROXY -u http_proxy "$python" tests/trace.py --program "$program"
echo "trace: ok"
