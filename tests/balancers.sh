#!/usr/bin/env bash
# The recipes for nginx and HAProxy (config/nginx, config/haproxy), run by the real ones in front of two gateways. More in balancers.py; a minute.
# PD_PROXY names the program (default: target/release/pd-proxy). nginx and haproxy are the system's, or Debian's packages, unpacked into
# $BALANCERS_SITE without being installed, so that their services do not run. Exit status 77: they can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 400 "$0" "$@"
. tests/program.sh

site=${BALANCERS_SITE:-${TMPDIR:-/tmp}/pd-proxy-balancers}
packages=(nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1)
PATH=$PATH:/usr/sbin
there() { command -v nginx >/dev/null && command -v haproxy >/dev/null; }
if ! there; then
    PATH=$PATH:$site/usr/sbin
    export LD_LIBRARY_PATH=$site/usr/lib/$(uname -m)-linux-gnu
fi
if ! there; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || not_run "there is no nginx or no haproxy, and no apt-get to have them from"
    part=$(mktemp -d "$site.XXXXXX")
    trap '[[ -z $part ]] || rm -rf "$part"' EXIT
    (
        cd "$part"
        apt-get download -qq "${packages[@]}" 2>/dev/null || {
            timeout 120 apt-get update -qq || true
            fetch reaches_debian "nginx and haproxy" apt-get download -qq "${packages[@]}"
        }
        for package in *.deb; do dpkg-deb -x "$package" .; done
        rm ./*.deb
    )
    rm -rf "$site"
    mv "$part" "$site"
    part=
    there || { echo "balancers: Debian's packages have no nginx or no haproxy" >&2; exit 1; }
fi
nginx -v 2>&1
haproxy -v | sed -n 1p
# Not with exec: the trap stays, and signals end the rig by Python's own.
env -u HTTP_PROXY -u http_proxy python3 tests/balancers.py --program "$program" --nginx "$(command -v nginx)" --haproxy "$(command -v haproxy)"
echo "balancers: ok"
