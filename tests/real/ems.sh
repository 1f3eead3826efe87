#!/usr/bin/env bash
# The EMS and LMCache clients against real servers: the connector's lookup server on real ZeroMQ and pickle, sound, raising,
# slow and hanging; LMCache's controller and coordinator, filled over their own protocols.
#
# Needs tests/real/rigs/pools and the Python of tests/real/rigs/vllm (pyzmq; for LMCache torch and FastAPI too). LMCache's
# package is fetched without its dependencies; without it, its part is left out and said so. Two to four minutes. Exit status
# 0: all that ran was as expected, and no server met a message that it could not read.
set -euo pipefail
cd "$(dirname "$0")/../.."
pools=$PWD/tests/real/rigs/pools
. tests/real/rigs/vllm/env.sh
python=$VENV/bin/python
site=${TMPDIR:-/tmp}/pd-rig/lmcache
run=$(mktemp -d)
pids=()
cleanup() {
  kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$run"
}
trap cleanup EXIT

# start NAME COMMAND… : in the background, its output in $run/NAME.log
start() {
  local name=$1
  shift
  "$@" >"$run/$name.log" 2>&1 &
  pids+=($!)
}

# ems NAME PORT ARGUMENTS… : a lookup server that has 64 blocks of 128 tokens
ems() {
  local name=$1 port=$2
  shift 2
  EMS_LOOKUP_KEY_SERVER_BASE_PORT=$port start "$name" \
    "$python" "$pools/ems_lookup_server.py" --present-random 64 --seconds 300 "$@"
}

# wait_for COMMAND… : until it succeeds, for four minutes (importing torch takes one on a busy machine)
wait_for() {
  for _ in $(seq 480); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.5
  done
  echo "never came up: $*; logs:" >&2
  tail -n 5 "$run"/*.log >&2
  return 1
}

cargo test --locked --test it --no-run
check() { cargo test --locked --test it -- --ignored --nocapture "$@"; }

echo "== EMS"
export EMS_PREFIX=127.0.0.1:50105 EMS_ALL=127.0.0.1:50106 EMS_SLOW=127.0.0.1:50107 EMS_HANGS=127.0.0.1:50108
ems prefix 50105
ems all 50106 --mode all
ems slow 50107 --delay-ms 100
ems hangs 50108 --hang-after 2
hanging=${pids[-1]}
wait_for grep -q listening "$run/prefix.log"
wait_for grep -q listening "$run/all.log"
wait_for grep -q listening "$run/slow.log"
wait_for grep -q listening "$run/hangs.log"
check pool_ems::real_servers_find
(
  # The server that hangs is replaced by one that does not.
  wait_for grep -q hanging "$run/hangs.log"
  sleep 2
  kill "$hanging"
) &
replaced=$!
check pool_ems::real_servers_that &
tested=$!
wait "$replaced"
ems again 50108
wait "$tested"
if grep -l "request failed" "$run"/*.log; then
  echo "a server met a message that it could not read" >&2
  exit 1
fi

echo "== LMCache"
if ! [ -d "$site/lmcache" ]; then
  # Without dependencies: the package wants CUDA, of which neither service makes use.
  "$python" -m pip install --quiet --no-deps --target "$site" lmcache==0.5.6 aiofile caio awscrt py-cpuinfo \
    sortedcontainers redis nvtx opentelemetry-exporter-prometheus==0.61b0 || true
fi
export PYTHONPATH=$site PYTHONHASHSEED=0
if ! "$python" -c "import lmcache.v1.api_server, lmcache.v1.mp_coordinator" 2>"$run/import.log"; then
  tail -n 1 "$run/import.log"
  echo "EMS as expected; LMCache LEFT OUT: its package can't be had here"
  exit 0
fi
export LMCACHE_CONTROLLER=127.0.0.1:19500 LMCACHE_COORDINATOR=127.0.0.1:19503
start controller "$python" -m lmcache.v1.api_server --host 127.0.0.1 --port 19500 \
  --monitor-ports '{"pull": 19501, "reply": 19502}'
start coordinator "$python" -m lmcache.v1.mp_coordinator --host 127.0.0.1 --port 19503
wait_for curl -sf "http://$LMCACHE_CONTROLLER/docs"
wait_for curl -sf "http://$LMCACHE_COORDINATOR/healthz"
"$python" "$pools/lmcache_fill.py" 127.0.0.1:19501 127.0.0.1:19502 "$LMCACHE_CONTROLLER" "$LMCACHE_COORDINATOR" \
  >"$run/fill.log" 2>&1
check pool_lmcache::real
echo "EMS and LMCache as expected"
