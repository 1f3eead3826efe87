#!/usr/bin/env bash
# The alerts of config/prometheus on a real Prometheus, before plain, pool and events fleets that are well, and before fleets in trouble, one trouble
# each. More in alerts.py; two minutes. PD_PROXY names the program (default: target/release/pd-proxy). Prometheus is the system's or Debian's, ZeroMQ,
# which publishes KV events, comes from PyPI. Exit status 77: one of them can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 700 "$0" "$@"
. tests/program.sh
. tests/prometheus_site.sh
venv "${TMPDIR:-/tmp}/pd-proxy-zmq-27.1.0"
have() { "$python" -c "import zmq; assert zmq.__version__ == '27.1.0'" 2>/dev/null; }
have || fetch reaches_python pyzmq "$pip" install --quiet --disable-pip-version-check --retries 1 pyzmq==27.1.0
# Not with exec: the trap stays, and signals end the rig by Python's own.
env -u HTTP_PROXY -u http_proxy "$python" tests/alerts.py --program "$program" --prometheus "$(command -v prometheus)" "$@"
echo "alerts: ok"
