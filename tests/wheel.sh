#!/usr/bin/env bash
# The Python wheel: made of the program, installed, run, damaged, removed. More in wheel.py; half a minute.
# PD_PROXY names the program (default: target/dist/pd-proxy, of benches/pgo/dist.sh). Nothing is fetched. Exit status 77: this Python can't make environments.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded 300 "$0" "$@"
program=${PD_PROXY:-target/dist/pd-proxy}
[[ -x $program ]] || { echo "wheel: $program is not there: build it, or set PD_PROXY" >&2; exit 1; }
python3 -c 'import ensurepip, venv' 2>/dev/null || not_run "python3 has no venv with pip"
# Not with exec: the trap stays.
env -u HTTP_PROXY -u http_proxy python3 tests/wheel.py --program "$program"
echo "wheel: ok"
