#!/usr/bin/env python3
"""The budget of one key over several gateways, through a real Redis or Valkey.

    tests/share/budgets.py [SECONDS]

Starts a Redis (or Valkey) server, simulated engines and four gateways that know one key of 100 000 tokens per minute.
First a load of ten times that comes for SECONDS (60): the tokens in answers must be within 3 % of a full bucket and what
came in that time, also while the server is killed and started anew. Then a load of half the budget, while the server is
killed, stopped for 5 s, flushed and filled: no request may fail, and the metric must say when budgets are shared. Exits
with 1 if one of it is not so, with 77 where there is no server to be had.
rig.py has the settings.
"""
import asyncio
import json
import signal
import sys
import threading
import time

from rig import Rig, end, until

GATEWAYS = 4
KEY, PER_MINUTE = "sk-budget-of-four-gateways", 100_000
# Tokens of a request of the load. Embeddings go to one engine alone, so that budgets are what the load comes up against.
TOKENS = 400


def shared(value):
    return all(rig.metric(at, "pd_proxy_share_budgets") == value for at in range(GATEWAYS))


def whole():
    return shared(1) and all(rig.metric(at, "pd_proxy_share_gateways") == GATEWAYS for at in range(GATEWAYS))


async def request(at, nth, outcome):
    # Simulated engines count a token for three bytes of such a text.
    prompt = f"{nth} ".ljust(3 * TOKENS, "x")
    try:
        reader, writer = await rig.post(at, "/v1/embeddings", {"model": "sim", "input": prompt})
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
    gateways = [rig.gateway(at, keys=keys) for at in range(GATEWAYS)]
    until("the gateways share the budget", whole)
    return gateways


def overloaded(tag, keys, seconds, fault=None):
    rig.tell("FLUSHALL")
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
    rig.tell("CONFIG", "SET", "maxmemory", "1")
    unshared()
    rig.tell("CONFIG", "SET", "maxmemory", "0")


def stop():
    rig.store.send_signal(signal.SIGSTOP)
    unshared()
    time.sleep(5)
    rig.store.send_signal(signal.SIGCONT)


def kill():
    rig.kill_store(unshared)


seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
with Rig(24700, KEY) as rig:
    keys = rig.keys(f"tokens_per_minute = {PER_MINUTE}")
    rig.engines(20000, 5)
    overloaded("ten times the budget", keys, seconds)
    overloaded("the same, store killed", keys, seconds, kill)
    faulty("half the budget, killed", keys, kill)
    faulty("half, stopped for 5 s", keys, stop)
    faulty("half, flushed", keys, lambda: rig.tell("FLUSHALL"))
    faulty("half, full", keys, fill)
