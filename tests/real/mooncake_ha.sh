#!/usr/bin/env bash
# Two real Mooncake masters with high availability over a real etcd: the one that leads is killed, and gateways that know
# both find the one that leads next by themselves, over RPC and over HTTP; then the other way round. More in mooncake_ha.py.
#
#   tests/real/mooncake_ha.sh [VERSION]      default: 0.3.13.post1
#
# Fetches what it needs (masters.sh). Two minutes; ended after MOONCAKE_SECONDS. Exit status 0: all as it should be; 77: NOT RUN,
# as no package index can be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/real/masters.sh
bounded "${MOONCAKE_SECONDS:-600}" tests/real/mooncake_ha.sh "$@"

venv
debian "${libraries[@]}"
etcd
master_of "${1:-0.3.13.post1}"
# With the tests' dependencies, as they are built before.
cargo test --locked --no-run --test it
namespace
rm -rf "$sites/ha"
mkdir -p "$sites/ha"
LD_LIBRARY_PATH=$libs PYTHONPATH=$site "${inside[@]}" "$sites/venv/bin/python" tests/real/mooncake_ha.py --gateway target/debug/pd-proxy \
  --etcd "$etcd" --master "$site/mooncake/mooncake_master" --run "$sites/ha"
