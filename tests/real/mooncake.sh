#!/usr/bin/env bash
# Real Mooncake masters, filled on segments with different hosts: existence and location of 1, 64, 1 024 and 20 000 keys, over
# RPC and HTTP, equal what was filled.
#
#   tests/real/mooncake.sh [VERSION…]      default: every argument list and every form of the replica list
#
# Fetches what it needs (fetch.sh, masters.sh), some 40 MB for each version. MOONCAKE_VERSIONS names versions, too; MOONCAKE_RUN is run
# in place of the comparison, before masters with keys as engines write them. Half a minute for each version; ended after
# MOONCAKE_SECONDS.
# Exit status 0: all equal; 77: NOT RUN, as no package index can be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/real/masters.sh
bounded "${MOONCAKE_SECONDS:-900}" tests/real/mooncake.sh "$@"
versions=("$@")
[ $# -gt 0 ] || read -ra versions <<<"${MOONCAKE_VERSIONS:-0.3.13.post1 0.3.12.post1 0.3.11.post1 0.3.10.post2 0.3.8 0.3.7.post2}"
rpc=50931 admin=50932 keys=20000 hosts=127.0.0.2,127.0.0.3
put=$keys
if [ -n "${MOONCAKE_RUN:-}" ]; then
  keys=1024 put=@$sites/keys
  printf 'some/model@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@group:0@%064x\n' $(seq 0 $((keys - 1))) | head -c -1 >"$sites/keys"
fi

venv "$sites/venv"
debian "${libraries[@]}" curl
[ -n "${MOONCAKE_RUN:-}" ] || tests=$(cargo test --locked --no-run --test it --message-format=json |
  python3 -c 'import json, sys
for built in map(json.loads, sys.stdin):
    if built.get("target", {}).get("name") == "it": print(built["executable"])')
run=${MOONCAKE_RUN:-"${tests:-}" pool_mooncake_real --ignored --nocapture}
namespace
for version in "${versions[@]}"; do
  echo "== $version"
  master_of "$version"
  log=$sites/master.log ready=$sites/ready.$$
  rm -f "$ready"
  flags=(--port="$rpc" --rpc_address=127.0.0.1 --metrics_port="$admin" --default_kv_lease_ttl=5000 --enable_metric_reporting=false)
  case $version in
    # Before, this port is open on all addresses.
    0.3.[789]*|0.3.1[012]*) ;;
    *) flags+=(--metrics_host=127.0.0.1);;
  esac
  start "$log" "$site/mooncake/mooncake_master" "${flags[@]}"
  master=$last
  wait_for "$master" "$log" "${inside[@]}" curl -sf -m 1 --noproxy "*" "http://127.0.0.1:$admin/health"
  start "$sites/fill.log" "$python" tests/real/mooncake_fill.py "127.0.0.1:$rpc" "$ready" "$hosts" "$put"
  wait_for "$last" "$sites/fill.log" test -e "$ready"
  [ "$(cat "$ready")" = "$keys" ]
  MOONCAKE_RPC=127.0.0.1:$rpc MOONCAKE_ADMIN=127.0.0.1:$admin MOONCAKE_HOSTS=$hosts MOONCAKE_VERSION=$version \
    "${inside[@]}" bash -c "$run" | tee "$sites/run.log"
  # A test that is not found fails nothing.
  [ -n "${MOONCAKE_RUN:-}" ] || grep -q '^test result: ok. 1 passed' "$sites/run.log"
  stop "$last" "$master"
done
[ -n "${MOONCAKE_RUN:-}" ] || echo "all equal: ${versions[*]}"
