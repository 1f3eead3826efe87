#!/usr/bin/env bash
# The gateway replaced five times under load, by sockets that a service manager keeps and by server.reuse_port: no connection is refused and
# nothing breaks. More in replace.py. Needs python3, unshare and ip: the second way wants a setting of the kernel, made in a network of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked --quiet
program=${PD_PROXY:-target/release/pd-proxy}
python3 tests/replace.py --gateway "$program" --mode socket "$@"
unshare --map-root-user --net bash -c 'ip link set lo up && echo 1 > /proc/sys/net/ipv4/tcp_migrate_req && exec "$@"' - \
  python3 tests/replace.py --gateway "$program" --mode port "$@"
