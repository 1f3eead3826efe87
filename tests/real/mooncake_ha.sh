#!/usr/bin/env bash
# Two real Mooncake masters with high availability over a real etcd: the one that leads is killed, and gateways that know
# both find the one that leads next by themselves, over RPC and over HTTP; then the other way round. More in mooncake_ha.py.
#
#   tests/real/mooncake_ha.sh [VERSION]      default: 0.3.13.post1
#
# Fetches what it needs (fetch.sh, masters.sh); PD_PROXY names a program that is built. Two minutes; ended after
# MOONCAKE_SECONDS. Exit status 0: all as it should be; 77: NOT RUN, as no package index can be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/real/masters.sh
bounded "${MOONCAKE_SECONDS:-600}" tests/real/mooncake_ha.sh "$@"

venv "$sites/venv"
debian "${libraries[@]}"
etcd
master_of "${1:-0.3.13.post1}"
program=${PD_PROXY:-target/debug/pd-proxy}
# With the tests' dependencies, as they are built before.
[ -n "${PD_PROXY:-}" ] || cargo test --locked --no-run --test it
namespace
rm -rf "$sites/ha"
mkdir -p "$sites/ha"
no_proxy="*" LD_LIBRARY_PATH=$libs PYTHONPATH=$site "${inside[@]}" "$python" tests/real/mooncake_ha.py --gateway "$program" \
  --etcd "$etcd" --master "$site/mooncake/mooncake_master" --run "$sites/ha"
