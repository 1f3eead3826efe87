#!/usr/bin/env bash
# The status page in headless Chromium, in front of simulated engines. More in status.py; two minutes. `--images docs/images` keeps
# the screenshots. PD_PROXY names the program (default: target/release/pd-proxy), CHROMIUM the browser. Without one, Debian's is
# installed, which takes root. Playwright, which drives it, and Pillow, for small pictures, come from PyPI. Exit status 77: one of them can't be had, nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 600 "$0" "$@"
. tests/program.sh

browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
if [[ -z $browser ]]; then
    command -v apt-get >/dev/null || not_run "there is no Chromium, and no apt-get to have it from"
    [[ $(id -u) == 0 ]] || not_run "there is no Chromium, and only root can install it"
    install=(apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core)
    DEBIAN_FRONTEND=noninteractive "${install[@]}" >/dev/null 2>&1 || {
        timeout 120 apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive fetch reaches_debian chromium "${install[@]}" >/dev/null
    }
    browser=$(command -v chromium) || { echo "status: Debian's package has no chromium" >&2; exit 1; }
fi
"$browser" --version 2>/dev/null || not_run "$browser does not start"
version=1.65.2 images=12.0.0
venv "${TMPDIR:-/tmp}/pd-proxy-playwright-$version"
have() { "$python" -c "from importlib.metadata import version as v; assert (v('playwright'), v('pillow')) == ('$version', '$images')" 2>/dev/null; }
have || fetch reaches_python playwright "$pip" install --quiet --disable-pip-version-check --retries 1 "playwright==$version" "pillow==$images"
# Not with exec: the trap stays, and signals end the rig by Python's own.
env -u HTTP_PROXY -u http_proxy -u HTTPS_PROXY -u https_proxy PYTHONPATH=tests "$python" -u tests/status.py --program "$program" --chromium "$browser" "$@"
