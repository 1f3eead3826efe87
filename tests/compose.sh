#!/usr/bin/env bash
# The files of config/compose: by Compose's own schema, against each other, and by a demo and a Prometheus that run as they say. No container is
# started. More in compose.py; half a minute.
# PD_PROXY names the program (default: target/release/pd-proxy). The schema is in a Python package, Prometheus is the system's or Debian's.
# Exit status 77: one of them can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
. tests/program.sh
. tests/prometheus_site.sh
venv "${TMPDIR:-/tmp}/pd-proxy-compose-0.34.0"
have() { "$python" -c "from importlib.metadata import version; assert version('check-jsonschema') == '0.34.0'" 2>/dev/null; }
have || fetch reaches_python "Compose's schema" "$pip" install --quiet --disable-pip-version-check --retries 1 check-jsonschema==0.34.0 PyYAML==6.0.3
# Not with exec: the trap stays.
env -u HTTP_PROXY -u http_proxy "$python" tests/compose.py --program "$program" --prometheus "$(command -v prometheus)" --promtool "$(command -v promtool)"
echo "compose: ok"
