# Prometheus and promtool, for scripts to source after tests/real/fetch.sh: on PATH afterwards. They are the system's, or Debian's package, unpacked
# into $PROMETHEUS_SITE without being installed, so that its service does not run.
site=${PROMETHEUS_SITE:-${TMPDIR:-/tmp}/pd-proxy-prometheus}
tools() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }
PATH=$PATH:$site/usr/bin
if ! tools; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || not_run "there is no prometheus, and no apt-get to have it from"
    part=$(mktemp -d "$site.XXXXXX")
    trap '[[ -z $part ]] || rm -rf "$part"' EXIT
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
    tools || { echo "Debian's package has no prometheus or no promtool" >&2; exit 1; }
fi
prometheus --version 2>&1 | sed -n 1p
