"""Real clients of a Mooncake master lend it memory and put keys there.

  mooncake_fill.py MASTER READY HOST,… (COUNT | @FILE)

The keys are k-0, k-1, … up to COUNT, or the lines of FILE, put on the hosts round and round. When all are put, READY has their
number. Then it stays: a client's memory goes with it.
"""
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

SEGMENT_BYTES = 64 << 20
BUFFER_BYTES = 16 << 20


def client(master, host):
    store = MooncakeDistributedStore()
    failed = store.setup(host, "P2PHANDSHAKE", SEGMENT_BYTES, BUFFER_BYTES, "tcp", "", master)
    if failed:
        sys.exit(f"{host} can't join {master}: {failed}")
    return store


def on(segment):
    """The wish for one copy there."""
    wish = ReplicateConfig()
    wish.replica_num = 1
    if hasattr(wish, "preferred_segments"):
        wish.preferred_segments = [segment]
    else:
        wish.preferred_segment = segment
    return wish


def main():
    master, ready, hosts, what = sys.argv[1:]
    stores = [client(master, host) for host in hosts.split(",")]
    wishes = [on(store.get_hostname()) for store in stores]
    if what.startswith("@"):
        with open(what[1:], encoding="utf-8") as file:
            keys = file.read().split("\n")
    else:
        keys = [f"k-{number}" for number in range(int(what))]
    for number, key in enumerate(keys):
        failed = stores[0].put(key, bytes(64), wishes[number % len(wishes)])
        if failed:
            sys.exit(f"{key} can't be put: {failed}")
    with open(ready + ".part", "w", encoding="utf-8") as file:
        file.write(str(len(keys)))
    os.rename(ready + ".part", ready)
    while True:
        time.sleep(60)


main()
