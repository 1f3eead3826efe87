#!/usr/bin/env bash
# The Grafana board and the alerts on a real Prometheus, in front of the demo and of a gateway in trouble. More in board.py; a minute.
# PD_PROXY names the program (default: target/release/pd-proxy). Prometheus and Redis are the system's or Debian's. Exit status 77: they
# can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
. tests/program.sh
. tests/prometheus_site.sh
command -v redis-server >/dev/null || debian redis-server

promtool check config config/prometheus/prometheus.yml
promtool check rules config/prometheus/alerts.yml
promtool test rules config/prometheus/tests.yml
# Not with exec: the trap stays, and signals end the rig by Python's own.
env -u HTTP_PROXY -u http_proxy python3 tests/board.py --program "$program" \
    --prometheus "$(command -v prometheus)" --promtool "$(command -v promtool)"
echo "board: ok"
