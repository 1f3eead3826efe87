#!/usr/bin/env python3
"""Gateways that share a fleet through a real Redis or Valkey.

    tests/share/replicas.py [GATEWAYS] [faults | stopped | cut | failover | cluster | cost]

Starts a Redis (or Valkey) server, simulated engines and GATEWAYS gateways (4), sends them the same conversations in turn,
and prints the time to the first token beside that of one gateway, and of gateways that do not share. With `faults` the
server is killed, stopped for 5 s, flushed and filled while requests come; `stopped` stops it for 30 s. With `cut` the last gateway is in a network
namespace of its own, and its way to the server is cut for 10 s, while that to engines and clients stays (root). With `failover` gateways ask a sentinel for the
server, which is killed, so that its replica takes over. With `cluster` the store is a cluster of three masters, and the one that gateways use is killed. With `cost` short requests are sent, 32 at a time, and what the
server and the gateways' processors have to do for each is printed, with the share and without (SHARE_REQUESTS: so many, 20 000). Exits with 1 if a request fails, or if the
gateways do not find together again; with 77 where there is no server to be had. Nothing is judged by time.
rig.py has the settings.
"""
import asyncio
import functools
import glob
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import rig as rigs
from rig import SERVER, Rig, end

PREFILLERS, DECODERS = 8, 4
TURNS, CONVERSATIONS = 3, int(os.environ.get("SHARE_CONVERSATIONS", "60"))
# Words that each turn adds, nine tokens each; a prefiller computes 20 000 tokens a second.
TURN_WORDS = 600
RATE_PER_S = float(os.environ.get("SHARE_RATE", "12"))
until = functools.partial(rigs.until, seconds=30)


def standings(gateways):
    shown = [json.loads(rig.ask(at, "/status.json"))["share"] for at in range(gateways)]
    return sorted(it["standing"] if it else "none" for it in shown)


def whole(gateways):
    return standings(gateways) == ["follows"] * (gateways - 1) + ["leads"]


async def request(at, prompt, outcome):
    began = time.monotonic()
    body = {"model": "sim", "prompt": prompt, "max_tokens": 4, "stream": True}
    try:
        reader, writer = await rig.post(at, "/v1/completions", body)
        status = (await reader.readline()).split()[1]
        first = None
        text = b""
        while chunk := await reader.read(65536):
            if first is None and b"data:" in chunk:
                first = time.monotonic() - began
            text += chunk
        writer.close()
        ok = status == b"200" and b"[DONE]" in text and b'"error"' not in text
        outcome.append((first if ok else None, text if not ok else b""))
    except OSError as error:
        outcome.append((None, str(error).encode()))


async def load(gateways, seed, conversations):
    """Conversations that come back, at a steady rate, each turn at the next gateway."""
    outcome, tasks = [], []
    for nth in range(TURNS * conversations):
        turn, conversation = divmod(nth, conversations)
        words = [f"{seed}-{conversation}-{word}" for word in range((turn + 1) * TURN_WORDS)]
        tasks.append(asyncio.create_task(request(nth % gateways, " ".join(words), outcome)))
        await asyncio.sleep(1 / RATE_PER_S)
    await asyncio.gather(*tasks)
    return outcome


def traffic():
    """Commands, and bytes in and out, since the server was started."""
    facts = dict(line.split(":") for line in rig.tell("INFO", "stats").split("\r\n") if line.count(":") == 1)
    return [int(facts[f"total_{it}"]) for it in ("commands_processed", "net_input_bytes", "net_output_bytes")]


def processor_s(pids):
    fields = [open(f"/proc/{it.pid}/stat").read().rpartition(")")[2].split() for it in pids]
    return sum(int(it[11]) + int(it[12]) for it in fields) / os.sysconf("SC_CLK_TCK")


def wakes(pids):
    """How often threads of these processes had to wait for something, and were woken up."""
    threads = [path for it in pids for path in glob.glob(f"/proc/{it.pid}/task/*/status")]
    return sum(int(line.split()[1]) for path in threads for line in open(path) if line.startswith("voluntary_ctxt"))


async def short_requests(gateways, count):
    outcome, numbers = [], iter(range(count))

    async def client():
        for nth in numbers:
            await request(nth % gateways, f"number {nth} of many short prompts", outcome)

    await asyncio.gather(*(client() for _ in range(32)))
    return outcome


def cost(gateways, share, count):
    pids = [rig.gateway(at, share) for at in range(gateways)]
    try:
        until(f"{gateways} gateways are ready", lambda: all(rig.ask(at, "/healthcheck") for at in range(gateways)))
        if share:
            until("one leads and the others follow", lambda: whole(gateways))
        asyncio.run(short_requests(gateways, count // 10))
        at = [(time.monotonic(), processor_s(pids), *traffic(), wakes(pids))]
        time.sleep(10)
        at.append((time.monotonic(), processor_s(pids), *traffic(), wakes(pids)))
        outcome = asyncio.run(short_requests(gateways, count))
        at.append((time.monotonic(), processor_s(pids), *traffic(), wakes(pids)))
        failed = sum(first is None for first, _ in outcome)
        rest = [(b - a) / (at[1][0] - at[0][0]) for a, b in zip(at[0], at[1])]
        took = at[2][0] - at[1][0]
        each = [(b - a - idle * took) / count for a, b, idle in zip(at[1], at[2], rest)]
        print(f"{'shared' if share else 'nothing shared':16} {count} answered in {took:.1f} s, {failed} failed; at rest {rest[2]:.0f} commands, "
              f"{rest[3]:.0f} bytes in, {rest[4]:.0f} out, {rest[5]:.0f} wake-ups a second; each request {1e6 * each[1]:.0f} us of processors, "
              f"{each[5]:.1f} wake-ups, {each[2]:.2f} commands, {each[3]:.0f} bytes in, {each[4]:.0f} out", flush=True)
    finally:
        end(pids)


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


class Fault(threading.Thread):
    """What goes wrong two seconds after the load begins; afterwards, how long it takes until the gateways are together again."""

    def __init__(self, fault, gateways):
        super().__init__(daemon=True)
        self.fault, self.gateways, self.whole_s = fault, gateways, None

    def run(self):
        time.sleep(2)
        self.fault()
        began = time.monotonic()
        until("all are together again", lambda: whole(self.gateways))
        self.whole_s = time.monotonic() - began


def run(tag, gateways, share, fault=None, conversations=CONVERSATIONS):
    pids = [rig.gateway(at, share) for at in range(gateways)]
    try:
        until(f"{gateways} gateways are ready", lambda: all(rig.ask(at, "/healthcheck") for at in range(gateways)))
        if share:
            until("one leads and the others follow", lambda: whole(gateways))
        before = int(rig.tell("INFO", "stats").split("total_commands_processed:")[1].split()[0]) if share else 0
        going_wrong = Fault(fault, gateways) if fault else None
        if going_wrong:
            going_wrong.start()
        # Of the same length for all, so that prompts are.
        seed = hashlib.sha256(tag.encode()).hexdigest()[:4]
        outcome = asyncio.run(load(gateways, seed, conversations))
        failed = [text for first, text in outcome if first is None]
        times = [first for first, _ in outcome if first is not None]
        note = ""
        if share and not fault:
            after = int(rig.tell("INFO", "stats").split("total_commands_processed:")[1].split()[0])
            note = f", {(after - before) / len(outcome):.1f} commands per request"
        if going_wrong:
            going_wrong.join()
            if going_wrong.whole_s is None:
                raise SystemExit(f"{tag}: the gateways are {standings(gateways)}")
            note = f", together again {going_wrong.whole_s:.1f} s after its end"
        print(f"{tag:24} {len(times)} answered, {len(failed)} failed, first token p50 {percentile(times, .5):.3f}"
              f" p90 {percentile(times, .9):.3f} p99 {percentile(times, .99):.3f} s{note}", flush=True)
        if failed:
            print(failed[0][:2000])
            raise SystemExit(1)
    finally:
        end(pids)


def sentinel():
    """A replica of the server, and a sentinel that puts it in its place when the server is gone."""
    rig.start(SERVER, "--port", str(rig.port + 1), "--save", "", "--appendonly", "no", "--dir", rig.folder, "--replicaof", "127.0.0.1", str(rig.port))
    file = os.path.join(rig.folder, "sentinel.conf")
    with open(file, "w") as text:
        text.write(f"port {rig.port + 2}\nsentinel monitor pd 127.0.0.1 {rig.port} 1\nsentinel down-after-milliseconds pd 1000\n"
                   "sentinel failover-timeout pd 3000\n")
    rig.start(SERVER, file, "--sentinel")
    until("the sentinel knows the replica", lambda: str(rig.port + 1) in rig.tell("SENTINEL", "replicas", "pd", port=rig.port + 2))
    until("the replica follows", lambda: "master_link_status:up" in rig.tell("INFO", "replication", port=rig.port + 1))


def fail_over():
    rig.store.kill()
    rig.store.wait()
    until("the replica has taken over", lambda: "role:master" in rig.tell("INFO", "replication", port=rig.port + 1))


def cluster():
    keeper = rig.cluster()
    node = next(it for it in rig.running if str(keeper) in it.args)
    others = ",".join(f"127.0.0.1:{rig.port + 1 + nth}" for nth in range(3) if rig.port + 1 + nth != keeper)
    rig.url = f"redis+cluster://{others},127.0.0.1:{keeper}"
    run("a cluster, whole", gateways, True)

    def lose_node():
        node.kill()
        node.wait()
        until("the replica has taken over", lambda: "role:master" in rig.tell("INFO", "replication", port=rig.port + 4))

    run("its node killed", gateways, True, lose_node)


def fill():
    rig.tell("CONFIG", "SET", "maxmemory", "1")
    time.sleep(5)
    rig.tell("CONFIG", "SET", "maxmemory", "0")


def stop(seconds):
    rig.store.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    rig.store.send_signal(signal.SIGCONT)


class Apart:
    """A network namespace with two ways out of it: one to engines and clients, and one to the store, which can be cut."""

    NAME, ENGINES, STORE = "pd-proxy-cut", "10.213.7.", "10.213.8."

    def __init__(self):
        self.ways = {f"pd{os.getpid()}{way}": net for way, net in (("e", self.ENGINES), ("s", self.STORE))}

    def ip(self, *words, check=True):
        subprocess.run(["ip", *words], check=check, capture_output=not check)

    def __enter__(self):
        if os.geteuid() or not shutil.which("ip"):
            print("a network namespace takes root and ip")
            raise SystemExit(77)
        self.ip("netns", "add", self.NAME)
        for way, net in self.ways.items():
            self.ip("link", "add", way, "type", "veth", "peer", "name", f"{way}i", "netns", self.NAME)
            self.ip("addr", "add", f"{net}1/24", "dev", way)
            self.ip("-n", self.NAME, "addr", "add", f"{net}2/24", "dev", f"{way}i")
            self.ip("link", "set", way, "up")
            self.ip("-n", self.NAME, "link", "set", f"{way}i", "up")
        return self

    def __exit__(self, *_):
        self.ip("netns", "del", self.NAME, check=False)

    def cut(self):
        """As if somebody pulls the cable, and puts it back: nothing is closed, and nothing comes through."""
        way = list(self.ways)[1]
        self.ip("link", "set", way, "down")
        until("the gateway has noticed", lambda: "unconnected" in standings(gateways))
        time.sleep(10)
        self.ip("link", "set", way, "up")


def cut():
    with Apart() as apart:
        rig.tell("CONFIG", "SET", "protected-mode", "no")
        # Names of engines are the same for all gateways.
        rig.engines_at = f"{apart.ENGINES}1"
        rig.inside[gateways - 1] = (apart.NAME, f"{apart.ENGINES}2", f"redis://{apart.STORE}1:{rig.port}")
        run("cut from one for 10 s", gateways, True, apart.cut)


gateways = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 4
with Rig(24900) as rig:
    rig.engines(20000, 5, PREFILLERS, DECODERS, everywhere="cut" in sys.argv)
    if "failover" in sys.argv:
        sentinel()
        rig.url = f"redis+sentinel://127.0.0.1:{rig.port + 2}/pd"
        run("failed over", gateways, True, fail_over)
    elif "cluster" in sys.argv:
        cluster()
    elif "stopped" in sys.argv:
        run("stopped for 30 s", gateways, True, lambda: stop(30), int(RATE_PER_S * 40 / TURNS))
    elif "cut" in sys.argv:
        run("for comparison, whole", gateways, True)
        cut()
    elif "cost" in sys.argv:
        for share in (False, True, False, True):
            cost(gateways, share, int(os.environ.get("SHARE_REQUESTS", "20000")))
    elif "faults" in sys.argv:
        run("killed", gateways, True, rig.kill_store)
        run("stopped for 5 s", gateways, True, lambda: stop(5))
        run("flushed", gateways, True, lambda: rig.tell("FLUSHALL"))
        run("full for 5 s", gateways, True, fill)
    else:
        run("one gateway", 1, False)
        run(f"{gateways}, nothing shared", gateways, False)
        run(f"{gateways}, shared", gateways, True)
