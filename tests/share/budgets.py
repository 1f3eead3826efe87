#!/usr/bin/env python3
"""The budget of one key over several gateways, through a real Redis or Valkey.

    tests/share/budgets.py [SECONDS]

Starts a Redis (or Valkey) server, simulated engines and four gateways that know one key of 100 000 tokens per minute.
First a load of ten times that comes for SECONDS (60): the tokens in answers must be within 3 % of a full bucket and what
came in that time, also while the server is killed and started anew. Then a load of half the budget, while the server is
killed, stopped for 5 s, flushed and filled: no request may fail, and the metric must say when budgets are shared. Exits
with 1 if one of it is not so, with 77 where there is no server to be had.
PD_PROXY names the program; REDIS_SERVER another server than redis-server or valkey-server.
"""
import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PROGRAM = os.environ.get("PD_PROXY", "target/release/pd-proxy")
SERVER = os.environ.get("REDIS_SERVER") or shutil.which("valkey-server") or shutil.which("redis-server")
PORT = int(os.environ.get("SHARE_PORT", "24700"))
GATEWAYS = 4
KEY, PER_MINUTE = "sk-budget-of-four-gateways", 100_000
# Tokens of a request of the load. Embeddings go to one engine alone, so that budgets are what the load comes up against.
TOKENS = 400

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


def gateway(at, keys):
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


def shared(value):
    return all(metric(at, "pd_proxy_share_budgets") == value for at in range(GATEWAYS))


def whole():
    return shared(1) and all(metric(at, "pd_proxy_share_gateways") == GATEWAYS for at in range(GATEWAYS))


async def request(at, nth, outcome):
    # Simulated engines count a token for three bytes of such a text.
    prompt = f"{nth} ".ljust(3 * TOKENS, "x")
    body = json.dumps({"model": "sim", "input": prompt}).encode()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT + 50 + at)
        writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\n"
                     + f"x-api-key: {KEY}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status = int(head.split()[1])
        outcome.append((status, json.loads(text)["usage"]["total_tokens"] if status == 200 else 0, text))
    except (OSError, ValueError, IndexError) as error:
        outcome.append((0, 0, repr(error).encode()))


async def load(times, seconds):
    """So many times the budget, at a steady rate, each request at the next gateway."""
    outcome, tasks, began = [], [], time.monotonic()
    pause = TOKENS * 60 / PER_MINUTE / times
    nth = 0
    while time.monotonic() - began < seconds:
        tasks.append(asyncio.create_task(request(nth % GATEWAYS, nth, outcome)))
        nth += 1
        await asyncio.sleep(max(0, began + nth * pause - time.monotonic()))
    took = time.monotonic() - began
    await asyncio.gather(*tasks)
    return outcome, took


def fresh_gateways(keys):
    gateways = [gateway(at, keys) for at in range(GATEWAYS)]
    until("the gateways share the budget", whole)
    return gateways


def end(gateways):
    for it in gateways:
        it.terminate()
    for it in gateways:
        it.wait()


def overloaded(tag, keys, seconds, fault=None):
    tell_redis("FLUSHALL")
    gateways = fresh_gateways(keys)
    if fault:
        threading.Timer(seconds / 2, fault).start()
    outcome, took = asyncio.run(load(10, seconds))
    granted = sum(tokens for _, tokens, _ in outcome)
    budget = PER_MINUTE * (1 + took / 60)
    by_status = {status: sum(it[0] == status for it in outcome) for status in sorted({it[0] for it in outcome})}
    print(f"{tag:28} {took:.0f} s, answers {by_status}, {granted} tokens granted of {budget:.0f}: "
          f"{100 * (granted / budget - 1):+.2f} %", flush=True)
    until("the gateways share the budget again", whole)
    end(gateways)
    if set(by_status) - {200, 429} or abs(granted / budget - 1) > 0.03:
        print([it[2][:300] for it in outcome if it[0] not in (200, 429)][:1])
        raise SystemExit(1)


def faulty(tag, keys, fault):
    gateways = fresh_gateways(keys)
    thread = threading.Timer(2, fault)
    thread.start()
    outcome, took = asyncio.run(load(0.5, 12))
    thread.join()
    failed = [it for it in outcome if it[0] != 200]
    print(f"{tag:28} {took:.0f} s, {len(outcome) - len(failed)} answered, {len(failed)} failed", flush=True)
    until("the gateways share the budget again", whole)
    end(gateways)
    if failed:
        print(failed[0][2][:1000])
        raise SystemExit(1)


def unshared():
    until("all gateways say that they go on alone", lambda: shared(0))


def fill():
    tell_redis("CONFIG", "SET", "maxmemory", "1")
    unshared()
    tell_redis("CONFIG", "SET", "maxmemory", "0")


def stop():
    store.send_signal(signal.SIGSTOP)
    unshared()
    time.sleep(5)
    store.send_signal(signal.SIGCONT)


def kill():
    global store
    store.kill()
    store.wait()
    unshared()
    time.sleep(2)
    store = redis()


if SERVER is None:
    print("no redis-server and no valkey-server")
    raise SystemExit(77)
folder = tempfile.mkdtemp()
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
try:
    keys = os.path.join(folder, "keys.toml")
    with open(keys, "w") as file:
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        file.write(f'[[key]]\nname = "team"\nsha256 = "{digest}"\ntokens_per_minute = {PER_MINUTE}\nadmin = true\n')
    store = redis()
    start(PROGRAM, "sim", "--role", "prefill", "--port", str(PORT + 10), "--prefill-tokens-per-s", "20000")
    start(PROGRAM, "sim", "--role", "decode", "--port", str(PORT + 30), "--tpot-ms", "5")
    until("the store answers", lambda: "PONG" in tell_redis("PING"))
    overloaded("ten times the budget", keys, seconds)
    overloaded("the same, store killed", keys, seconds, kill)
    faulty("half the budget, killed", keys, kill)
    faulty("half, stopped for 5 s", keys, stop)
    faulty("half, flushed", keys, lambda: tell_redis("FLUSHALL"))
    faulty("half, full", keys, fill)
finally:
    for it in running:
        it.kill()
    shutil.rmtree(folder, ignore_errors=True)
