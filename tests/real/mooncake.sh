#!/usr/bin/env bash
# Real Mooncake masters, filled on segments with different hosts: existence and location of 1, 64, 1 024 and 20 000 keys, over
# RPC and HTTP, equal what was filled.
#
#   tests/real/mooncake.sh [VERSION…]      default: every argument list and every form of the replica list
#
# Needs the packages from PyPI (once, some 40 MB each), libibverbs1 librdmacm1 libnuma1 libcurl4, and root for a network namespace:
# the transfer engines of clients, and the admin port of masters before 0.3.13, listen on all addresses. Four minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/../shared/rigs/pools
[ -d "$rig" ] || rig=${MOONCAKE_RIG:?where are start_mooncake.sh and fill.py?}
sites=${MOONCAKE_SITES:-${TMPDIR:-/tmp}/pd-mooncake}
versions=("$@")
[ $# -gt 0 ] || versions=(0.3.13.post1 0.3.12.post1 0.3.11.post1 0.3.10.post2 0.3.8 0.3.7.post2)
net=pdmooncake$$
rpc=50931 admin=50932 keys=20000
started=()

cleanup() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  ip netns del "$net" 2>/dev/null || true
}
trap cleanup EXIT

# package DIRECTORY NAME : unpacks a package, unless it is there
package() {
  [ -d "$sites/$1" ] && return
  python3 -m pip install -q --no-deps --root-user-action ignore --target "$sites/$1.part" "$2"
  mv "$sites/$1.part" "$sites/$1"
}

mkdir -p "$sites"
ip netns add "$net"
ip netns exec "$net" ip link set lo up
tests=$(cargo test --locked --no-run --test it --message-format=json |
  python3 -c 'import json, sys
for built in map(json.loads, sys.stdin):
    if built.get("target", {}).get("name") == "it": print(built["executable"])')
for version in "${versions[@]}"; do
  echo "== $version"
  package "site-$version" "mooncake-transfer-engine-non-cuda==$version"
  site=$sites/site-$version
  libs=$site/mooncake:$(ls -d "$site"/*.libs | head -1)
  case $version in
    # These want the CUDA runtime although they don't use it.
    0.3.12*|0.3.13) package site-cudart nvidia-cuda-runtime-cu12; libs=$libs:$sites/site-cudart/nvidia/cuda_runtime/lib;;
  esac
  master=$(NS="ip netns exec $net" RIG=$sites SITE=$site LD_LIBRARY_PATH=$libs "$rig/start_mooncake.sh" "$rpc" "$admin" 600)
  started+=("$master")
  ready=$sites/ready.$$
  rm -f "$ready"
  LD_LIBRARY_PATH=$libs PYTHONPATH=$site ip netns exec "$net" python3 "$rig/fill.py" --master "127.0.0.1:$rpc" \
    --segment 127.0.0.2 --segment 127.0.0.3 --count "$keys" --prefix k- --hold 600 --ready-file "$ready" \
    >"$sites/fill.log" 2>&1 &
  filler=$!
  started+=("$filler")
  for _ in $(seq 600); do
    [ -e "$ready" ] && break
    kill -0 "$filler" 2>/dev/null || { tail -5 "$sites/fill.log"; exit 1; }
    sleep 0.2
  done
  grep -q "\"put\": $keys, \"failed\": 0" "$ready" || { echo "not filled: $(cat "$ready")"; exit 1; }
  MOONCAKE_RPC=127.0.0.1:$rpc MOONCAKE_ADMIN=127.0.0.1:$admin MOONCAKE_HOSTS=127.0.0.2,127.0.0.3 MOONCAKE_VERSION=$version \
    ip netns exec "$net" "$tests" pool_mooncake_real --ignored --nocapture
  kill "$filler" "$master" 2>/dev/null || true
  wait "$filler" 2>/dev/null || true
  while kill -0 "$master" 2>/dev/null; do sleep 0.1; done
done
echo "all equal: ${versions[*]}"
