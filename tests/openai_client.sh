#!/usr/bin/env bash
# The official Python client against the demo. PD_PROXY names the program (default: target/release/pd-proxy).
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/program.sh
version=3.54.0

venv=${TMPDIR:-/tmp}/pd-proxy-openai-$version
if ! "$venv/bin/python" -c "import openai; assert openai.__version__ == '$version'" 2>/dev/null; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "openai==$version"
fi

logs=$(mktemp -d "${TMPDIR:-/tmp}/pd-proxy-client.XXXXXX")
started=()
cleanup() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$logs"
}
trap cleanup EXIT

# start NAME ARGUMENTS…: runs the program and sets `address` to the first host:port that it names.
start() {
    local name=$1
    shift
    "$program" "$@" >"$logs/$name" 2>&1 &
    started+=($!)
    address=
    for _ in $(seq 300); do
        address=$(grep -o 'http://[0-9.]*:[0-9]*' "$logs/$name" | head -n 1 || true)
        address=${address#http://}
        [[ -n $address ]] && return
        kill -0 "${started[-1]}" 2>/dev/null || break
        sleep 0.1
    done
    echo "openai_client: $name did not start" >&2
    cat "$logs/$name" >&2
    exit 1
}

start demo demo --port 0 --tokens-per-s 2000 --log-level warning
demo=$address
# The demo's engines compute at the pace of real ones; a prompt of 1 MB is asked of a quicker pair.
fast=(--port 0 --prefill-tokens-per-s 10000000 --tpot-ms 0 --slope-ms 0 --kv-blocks 65536)
start prefiller sim --role prefill "${fast[@]}"
prefiller=$address
start decoder sim --role decode "${fast[@]}"
start gateway --host 127.0.0.1 --port 0 --prefill "$prefiller" --decode "$address"

env -u OPENAI_BASE_URL -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy \
    "$venv/bin/python" tests/openai_client.py "http://$demo/v1" "http://$address/v1"
