#!/usr/bin/env bash
# The gauges for autoscalers on a real Prometheus while the load changes, compared with the arithmetic of docs/autoscaling.md; with
# `--plot FILE` drawn as well. More in scaling.py; eight minutes. PD_PROXY names the program (default: target/release/pd-proxy). Prometheus is
# the system's or Debian's. Exit status 77: it can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 900 "$0" "$@"
. tests/program.sh
. tests/prometheus_site.sh
# Not with exec: the trap stays, and signals end the rig by Python's own.
env -u HTTP_PROXY -u http_proxy python3 tests/scaling.py --program "$program" --prometheus "$(command -v prometheus)" "$@"
echo "scaling: ok"
