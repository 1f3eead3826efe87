#!/usr/bin/env bash
# MemCache's clients find in real meta services of three versions exactly what was put there: 20 000 keys on two ranks,
# every fourth left out. The ranks are played by a script over the service's own protocol; no accelerator is needed.
# Needs a Python with venv that the packages know (3.11). VERSIONS and WORK choose others. Half a minute; ended after
# MEMCACHE_SECONDS. Exit status 0: all equal; 77: NOT RUN, as no package index can be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
VERSIONS=${VERSIONS:-1.1.0 1.2.1 1.3.0}
WORK=${WORK:-${TMPDIR:-/tmp}/pd-memcache}
PYTHON=${PYTHON:-$(command -v python3.11 || echo python3)}
META=15710 STORE=15711 HTTP=15712
mkdir -p "$WORK"
. tests/real/fetch.sh
bounded "${MEMCACHE_SECONDS:-600}" tests/real/memcache.sh
pids=()
trap 'for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done' EXIT

cat >"$WORK/meta.py" <<'PY'
import sys
from memcache_hybrid import MetaConfig, MetaService
meta, store, http, logs = sys.argv[1:]
config = MetaConfig()
config.meta_service_url = f"tcp://127.0.0.1:{meta}"
config.config_store_url = f"tcp://127.0.0.1:{store}"
config.metrics_url = f"http://127.0.0.1:{http}"
config.log_path = logs
assert MetaService.setup(config) == 0
MetaService.main()
PY

# Registers two ranks and writes an object for three keys of four; stays, because objects go with their rank's link.
cat >"$WORK/fill.py" <<'PY'
import socket, struct, sys, threading, time
port, version, path, done = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
plain = version.startswith("1.1")


class Link:
    def __init__(self, rank):
        self.rank, self.seq, self.said = rank, 0, {}
        for _ in range(100):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(struct.pack("<hhIQ", 3867, 1, 0, rank))
        assert self.read(2) == b"\0\0"

    def read(self, n):
        data = b""
        while len(data) < n:
            part = self.socket.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def send(self, op, seq, body):
        self.socket.sendall(struct.pack("<hhIII", 0, op, len(body), seq, 0) + body)

    def call(self, op, fields):
        self.seq += 1
        self.send(op, self.seq, struct.pack("<hhI", 0, op, 0) + fields)
        while True:
            _, op, n, seq, _ = struct.unpack("<hhIII", self.read(16))
            body = self.read(n)
            if seq == self.seq:
                return body
            # The service's own requests to a rank.
            self.send(op, seq, struct.pack("<hhIiQ", 0, 2, 0, 0, 0))

    def idle(self):
        while True:
            _, op, n, seq, _ = struct.unpack("<hhIII", self.read(16))
            self.read(n)
            self.send(op, seq, struct.pack("<hhIiQ", 0, 2, 0, 0, 0))


def text(value):
    return struct.pack("<I", len(value)) + value.encode()


def vector(form, value):
    return struct.pack("<Q" + form, 1, value)


links = []
for rank in (0, 3):
    link = Link(rank)
    host = b"" if plain else text(f"10.9.8.{7 + (rank == 3)}")
    fields = struct.pack("<I", rank) + host + vector("H", 1) + vector("Q", (rank + 1) << 40) + vector("Q", 1 << 30)
    answer = link.call(5, fields + struct.pack("<Q", 0) + (b"" if plain else b"\0"))
    assert struct.unpack("<i", answer[8:12])[0] == 0, answer.hex()
    links.append(link)
for index, key in enumerate(open(path).read().split("\n")):
    if index % 4 == 3:
        continue
    link = links[index % 2]
    operation = (index << 32) | link.rank
    wanted = struct.pack("<QIH", 4096, 1, 1) + vector("I", link.rank) + struct.pack("<I", 0)
    link.call(1, text(key) + wanted + struct.pack("<Q", operation))
    answer = link.call(2, b"\1" + text(key) + struct.pack("<IHQ", link.rank, 1, operation))
    assert struct.unpack("<i", answer[8:12])[0] == 0, (index, answer.hex())
for link in links:
    threading.Thread(target=link.idle, daemon=True).start()
open(done, "w").write("filled")
time.sleep(3600)
PY

export MEMCACHE_KEYS=$WORK/keys
rm -f "$MEMCACHE_KEYS"
cargo test --locked --quiet --test it -- --ignored --exact pool_memcache_real::print_keys
[ -s "$MEMCACHE_KEYS" ]
for version in $VERSIONS; do
    echo "== MemCache $version"
    venv "$WORK/venv-$version" "$PYTHON"
    if [ ! -e "$WORK/venv-$version/ready" ]; then
        fetch reaches_python "MemCache $version" "$pip" install --quiet --disable-pip-version-check \
            "memcache-hybrid==$version" "memfabric-hybrid==$version"
        touch "$WORK/venv-$version/ready"
    fi
    # Some versions import torch and use nothing of it here.
    mkdir -p "$WORK/stubs"
    printf 'def __getattr__(name):\n    return object\n' >"$WORK/stubs/torch.py"
    PYTHONPATH=$WORK/stubs "$python" "$WORK/meta.py" $META $STORE $HTTP "$WORK/log-$version" \
        >"$WORK/meta-$version.out" 2>&1 &
    meta=$!
    pids+=("$meta")
    rm -f "$WORK/done"
    "$python" "$WORK/fill.py" $META "$version" "$MEMCACHE_KEYS" "$WORK/done" &
    fill=$!
    pids+=("$fill")
    for _ in $(seq 600); do
        [ -e "$WORK/done" ] && break
        kill -0 "$meta"
        kill -0 "$fill"
        sleep 0.2
    done
    [ -e "$WORK/done" ]
    # It is this one that was filled, not what an earlier run left on its port.
    kill -0 "$meta"
    MEMCACHE_META=127.0.0.1:$META MEMCACHE_HTTP=127.0.0.1:$HTTP cargo test --locked --quiet --test it -- \
        --ignored --exact --nocapture pool_memcache_real::the_real_service_has_what_it_was_filled_with | tee "$WORK/run.log"
    # A test that is not found fails nothing.
    grep -q '^test result: ok. 1 passed' "$WORK/run.log"
    kill "$fill" "$meta"
    # There is one per host, and it takes its time to end.
    wait "$fill" "$meta" 2>/dev/null || true
done
echo "all as filled"
