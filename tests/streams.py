#!/usr/bin/env python3
"""Many slow streams at once through a gateway between simulated engines: all of them open, their memory, all of them whole; then again
with clients that drop in their middle, and what is left as soon as the gateway has noticed, 1 s later at most.

Clients are HTTP/2 (`h2load`), a hundred streams on each connection, as from a load balancer: the gateway has one file descriptor for each
stream, that of its decoder's connection, so 10 000 of them fit below a hard limit of 20 000."""
import argparse
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

from processes import WAIT_SECONDS, get, open_files, wait
from scenes import gateway

STREAMS_PER_CONNECTION = 100
TOKENS = 60
# A token per second: slow, and all streams are open for a minute.
ENGINES = ["--prefill-tokens-per-s", "100000000", "--tpot-ms", "1000", "--slope-ms", "0"]
LIMIT_BYTES = 40 << 10
# Connections to engines, idle ones of prefills among them, and the rest of the process.
SPARE_FILES = 600


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--gateway", required=True, type=pathlib.Path)
    options.add_argument("--streams", type=int, default=10_000)
    options = options.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < options.streams + SPARE_FILES:
        sys.exit(f"{options.streams} streams need a hard limit of {options.streams + SPARE_FILES} open files, here are {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bad = [line for drop in [False, True] for line in once(options.gateway.resolve(), options.streams, drop)]
    print("\n".join(bad) or "as it should be")
    sys.exit(bool(bad))


def once(program, streams, drop):
    """What is wrong with it."""
    settings = [f"limit.inflight={2 * streams}", "timeout.total_ms=600000"]
    with gateway(program, settings, engines=ENGINES) as (running, address, _), tempfile.TemporaryDirectory() as folder:
        body = pathlib.Path(folder, "body.json")
        before = memory_bytes(running)
        body.write_text(json.dumps({"model": "sim", "prompt": "some words " * 8, "max_tokens": TOKENS, "stream": True}))
        clients = load(address, streams, body)
        wait("all streams to be open", lambda: inside(address) == streams)
        time.sleep(5)
        each = (memory_bytes(running) - before) / streams
        files = open_files(running.process.pid)
        if drop:
            clients.kill()
        said = clients.communicate(timeout=TOKENS + WAIT_SECONDS)[0]
        wait("the last stream to be over", lambda: inside(address) == 0, seconds=1 if drop else WAIT_SECONDS)
        left = [ledger(engine) for engine in engines_of(running)]
        outcome = re.findall(r'^pd_proxy_requests_total{.*code="(\d+)",reason="(\w+)"} (\d+)', get(address, "/metrics"), re.M)
    clean = len(left) == 4 and not any(any(one.values()) for one in left)
    print(f"{'dropped' if drop else 'to their end'}: {streams} streams at once, {each / 1024:.1f} KB each, {files} open files; outcomes {outcome}; "
          f"left at the engines: {'nothing' if clean else left}")
    expected = [("200", "client_gone" if drop else "ok", str(streams))]
    return [what for what, wrong in {
        f"a stream takes {each:.0f} bytes, more than {LIMIT_BYTES}": each > LIMIT_BYTES,
        f"outcomes {outcome}, not {expected}": outcome != expected,
        f"not all of them succeeded: {said}": not drop and f"{streams} succeeded, 0 failed, 0 errored, 0 timeout" not in said,
        f"left at the engines: {left}": not clean,
    }.items() if wrong]


def load(address, streams, body):
    connections = -(-streams // STREAMS_PER_CONNECTION)
    command = ["h2load", "-n", streams, "-c", connections, "-m", STREAMS_PER_CONNECTION, "-d", body,
               "-H", "content-type: application/json", f"http://{address}/v1/completions"]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def inside(address):
    return int(re.search(r"^pd_proxy_inflight_requests (\d+)", get(address, "/metrics"), re.M)[1])


def memory_bytes(running):
    """Its share of memory."""
    text = pathlib.Path(f"/proc/{running.process.pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss: +(\d+) kB", text, re.M)[1]) << 10


def engines_of(running):
    return [re.sub("^http://", "", word) for word in running.process.args if str(word).startswith("http://")]


def ledger(engine):
    counts = json.loads(get(engine, "/sim/ledger"))
    return {name: counts[name] for name in ["pinned_handoffs", "pinned_blocks", "expired", "running", "waiting", "used_blocks"]}


main()
