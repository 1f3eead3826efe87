#!/usr/bin/env bash
# The OpenAPI documents of the program and of a running gateway, judged by openapi-spec-validator, and answers by their schemas. More in
# openapi.py; some seconds. PD_PROXY names the program (default: target/release/pd-proxy). Exit status 77: the package can't be had,
# nothing was tried.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
. tests/program.sh

version=0.9.0
venv "${TMPDIR:-/tmp}/pd-proxy-openapi-$version"
have() { "$python" -c "from importlib.metadata import version as v; assert v('openapi-spec-validator') == '$version'" 2>/dev/null; }
have || fetch reaches_python openapi-spec-validator \
    "$pip" install --quiet --disable-pip-version-check --retries 1 "openapi-spec-validator==$version"
env -u HTTP_PROXY -u http_proxy "$python" tests/openapi.py --program "$program"
