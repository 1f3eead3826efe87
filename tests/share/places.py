#!/usr/bin/env python3
"""Requests in flight of one key over several gateways, through a real Redis or Valkey.

    tests/share/places.py

Starts a Redis (or Valkey) server, simulated engines and four gateways that know one key of 32 requests at once, and prints
how many of its requests were under way at once: of a burst over all gateways, of three times the limit on one alone and on
all for ten seconds, while the server is killed, and after a gateway was killed.
Exits with 1 if there were more than the limit and one even part while the store was there, if a load does not find far more
than one gateway's part, or if a request fails with anything but 429; with 77 where there is no server to be had. Nothing is judged by time.
PD_PROXY names the program; REDIS_SERVER another server than redis-server or valkey-server.
"""
import asyncio
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PROGRAM = os.environ.get("PD_PROXY", "target/release/pd-proxy")
SERVER = os.environ.get("REDIS_SERVER") or shutil.which("valkey-server") or shutil.which("redis-server")
PORT = int(os.environ.get("SHARE_PORT", "24600"))
GATEWAYS = 4
KEY, LIMIT = "sk-places-of-four-gateways", 32
# As many as this must be under way where there are always more that want to, far more than one gateway's part. Places are free
# for a moment between two requests.
MOST = LIMIT * 3 // 4
# Tokens of a request, 20 ms each.
TOKENS = 100

running = []


def start(*command, **more):
    log = open(os.path.join(folder, f"log{len(running)}"), "w")
    running.append(subprocess.Popen(command, stdout=log, stderr=log, **more))
    return running[-1]


def redis():
    return start(SERVER, "--port", str(PORT), "--save", "", "--appendonly", "no")


def tell_redis(*words):
    """Sends one command and returns the first line of the answer."""
    with socket.create_connection(("127.0.0.1", PORT), 5) as link:
        link.sendall(f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words))
        return link.recv(65536).decode(errors="replace")


def gateway(at):
    env = dict(os.environ, PD_PROXY__SHARE__URL=f"redis://127.0.0.1:{PORT}")
    return start(
        PROGRAM, "--host", "127.0.0.1", "--port", str(PORT + 50 + at),
        "--prefiller-hosts", "127.0.0.1", "--prefiller-ports", str(PORT + 10),
        "--decoder-hosts", "127.0.0.1", "--decoder-ports", str(PORT + 30),
        "--set", f"auth.keys_file={keys}", "--set", "health.probe_ms=0", "--log-level", "warning", env=env)


def metric(at, name):
    asked = urllib.request.Request(f"http://127.0.0.1:{PORT + 50 + at}/metrics", headers={"x-api-key": KEY})
    with urllib.request.urlopen(asked, timeout=5) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines()]
    return next((float(line[1]) for line in lines if line and line[0] == name), None)


def until(what, holds, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"it never came to this: {what}")


def shared(gateways):
    return all(metric(at, "pd_proxy_share_budgets") == 1 and metric(at, "pd_proxy_share_gateways") == len(gateways)
               for at in gateways)


class Count:
    """Requests that were admitted and are under way, as their first event and their end tell."""

    def __init__(self):
        self.inside = self.most = 0
        self.by_status = {}

    def begin(self):
        self.inside += 1
        self.most = max(self.most, self.inside)


async def request(at, count):
    body = json.dumps({"model": "sim", "prompt": "a", "max_tokens": TOKENS, "stream": True}).encode()
    status, began = 0, False
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT + 50 + at)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\n"
                     + f"x-api-key: {KEY}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        status = int((await reader.readline()).split()[1])
        if status == 200:
            began = True
            count.begin()
        await reader.read()
        writer.close()
    except (OSError, ValueError, IndexError):
        status = 0
    if began:
        count.inside -= 1
    count.by_status[status] = count.by_status.get(status, 0) + 1
    return status


async def burst(over, requests):
    count = Count()
    await asyncio.gather(*(request(over[nth % len(over)], count) for nth in range(requests)))
    return count


async def press(over, seconds):
    """Three times as many clients as the limit, each of which tries again and again."""
    count, end = Count(), time.monotonic() + seconds

    async def client(nth):
        while time.monotonic() < end:
            if await request(over[nth % len(over)], count) != 200:
                await asyncio.sleep(0.05)
            nth += 1

    await asyncio.gather(*(client(nth) for nth in range(3 * LIMIT)))
    return count


def judge(tag, count, least=0, most=LIMIT + LIMIT // GATEWAYS):
    print(f"{tag:36} at most {count.most} at once of {LIMIT}, answers {dict(sorted(count.by_status.items()))}", flush=True)
    if count.most > most or count.most < least or set(count.by_status) - {200, 429}:
        raise SystemExit(1)


def kill_store():
    global store
    store.kill()
    store.wait()
    time.sleep(2)
    store = redis()


if SERVER is None:
    print("no redis-server and no valkey-server")
    raise SystemExit(77)
folder = tempfile.mkdtemp()
try:
    keys = os.path.join(folder, "keys.toml")
    with open(keys, "w") as file:
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        file.write(f'[[key]]\nname = "team"\nsha256 = "{digest}"\nrequests_inflight = {LIMIT}\nadmin = true\n')
    store = redis()
    start(PROGRAM, "sim", "--role", "prefill", "--port", str(PORT + 10), "--prefill-tokens-per-s", "100000")
    start(PROGRAM, "sim", "--role", "decode", "--port", str(PORT + 30), "--tpot-ms", "20")
    until("the store answers", lambda: "PONG" in tell_redis("PING"))
    gateways = {at: gateway(at) for at in range(GATEWAYS)}
    every = list(gateways)
    until("the gateways share limits", lambda: shared(gateways))
    # All have looked since the last of them came.
    time.sleep(2)
    judge("a burst of 32 over all", asyncio.run(burst(every, LIMIT)), LIMIT)
    judge("three times the limit on one", asyncio.run(press(every[:1], 10)), MOST)
    judge("three times the limit over all", asyncio.run(press(every, 10)), MOST)
    timer = threading.Timer(4, kill_store)
    timer.start()
    judge("the same, store killed", asyncio.run(press(every, 12)), MOST, GATEWAYS * LIMIT)
    timer.join()
    until("the gateways share limits again", lambda: shared(gateways))
    gateways.pop(0).kill()
    until("the others count themselves", lambda: shared(gateways))
    judge("one gateway killed, three are left", asyncio.run(press(every[1:], 10)), MOST)
finally:
    for it in running:
        it.kill()
    shutil.rmtree(folder, ignore_errors=True)
