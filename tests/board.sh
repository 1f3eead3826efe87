#!/usr/bin/env bash
# The Grafana board and the alerts on a real Prometheus, in front of the demo and of a gateway in trouble. More in board.py; a minute.
# PD_PROXY names the program (default: target/release/pd-proxy). Prometheus is the system's, or Debian's package, unpacked into
# $PROMETHEUS_SITE without being installed, so that its service does not run. Exit status 77: it can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
program=${PD_PROXY:-target/release/pd-proxy}
[[ -x $program ]] || { echo "board: $program is not there: build it, or set PD_PROXY" >&2; exit 1; }

site=${PROMETHEUS_SITE:-${TMPDIR:-/tmp}/pd-proxy-prometheus}
part=
trap '[[ -z $part ]] || rm -rf "$part"' EXIT
tools() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }
PATH=$PATH:$site/usr/bin
if ! tools; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || not_run "there is no prometheus, and no apt-get to have it from"
    part=$(mktemp -d "$site.XXXXXX")
    (
        cd "$part"
        apt-get download -qq prometheus 2>/dev/null || {
            timeout 120 apt-get update -qq || true
            fetch reaches_debian prometheus apt-get download -qq prometheus
        }
        dpkg-deb -x prometheus_*.deb .
        rm prometheus_*.deb
    )
    rm -rf "$site"
    mv "$part" "$site"
    part=
    tools || { echo "board: Debian's package has no prometheus or no promtool" >&2; exit 1; }
fi

prometheus --version 2>&1 | head -n 1
promtool check config config/prometheus/prometheus.yml
promtool check rules config/prometheus/alerts.yml
promtool test rules config/prometheus/tests.yml
# Not with exec: the trap stays, and signals end the rig by Python's own.
env -u HTTP_PROXY -u http_proxy python3 tests/board.py --program "$program" \
    --prometheus "$(command -v prometheus)" --promtool "$(command -v promtool)"
echo "board: ok"
