#!/usr/bin/env python3
"""Requests in flight of one key over several gateways, through a real Redis or Valkey.

    tests/share/places.py

Starts a Redis (or Valkey) server, simulated engines and four gateways that know one key of 32 requests at once, and prints
how many of its requests were under way at once: of a burst over all gateways, of three times the limit on one alone and on
all for ten seconds, while the server is killed and emptied, and after a gateway was killed.
Exits with 1 if there were more than the limit and one even part (and those of all but one where the server was empty: who had more than its part keeps
it, while others have theirs), if a load does not find far more
than one gateway's part, or if a request fails with anything but 429; with 77 where there is no server to be had. Nothing is judged by time.
rig.py has the settings.
"""
import asyncio
import threading
import time

from rig import Rig, until

GATEWAYS = 4
KEY, LIMIT = "sk-places-of-four-gateways", 32
# As many as this must be under way where there are always more that want to, far more than one gateway's part. Places are free
# for a moment between two requests.
MOST = LIMIT * 3 // 4
# Tokens of a request, 20 ms each.
TOKENS = 100


def shared(gateways):
    return all(rig.metric(at, "pd_proxy_share_budgets") == 1 and rig.metric(at, "pd_proxy_share_gateways") == len(gateways)
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
    body = {"model": "sim", "prompt": "a", "max_tokens": TOKENS, "stream": True}
    status, began = 0, False
    try:
        reader, writer = await rig.post(at, "/v1/completions", body)
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


# The most where a gateway may hold what the server does not know.
UNTOLD = LIMIT + (GATEWAYS - 1) * LIMIT // GATEWAYS


def judge(tag, count, least=0, most=LIMIT + LIMIT // GATEWAYS):
    print(f"{tag:36} at most {count.most} at once of {LIMIT}, answers {dict(sorted(count.by_status.items()))}", flush=True)
    if count.most > most or count.most < least or set(count.by_status) - {200, 429}:
        raise SystemExit(1)


with Rig(24600, KEY) as rig:
    keys = rig.keys(f"requests_inflight = {LIMIT}")
    rig.engines(100000, 20)
    gateways = {at: rig.gateway(at, keys=keys) for at in range(GATEWAYS)}
    every = list(gateways)
    until("the gateways share limits", lambda: shared(gateways))
    # All have looked since the last of them came.
    time.sleep(2)
    judge("a burst of 32 over all", asyncio.run(burst(every, LIMIT)), LIMIT)
    judge("three times the limit on one", asyncio.run(press(every[:1], 10)), MOST)
    judge("three times the limit over all", asyncio.run(press(every, 10)), MOST)
    timer = threading.Timer(4, rig.kill_store)
    timer.start()
    judge("the same, store killed", asyncio.run(press(every, 12)), MOST, UNTOLD)
    timer.join()
    until("the gateways share limits again", lambda: shared(gateways))
    timers = [threading.Timer(at, lambda: rig.tell("FLUSHALL")) for at in (2, 5, 8)]
    for timer in timers:
        timer.start()
    judge("the same, store emptied thrice", asyncio.run(press(every, 12)), MOST, UNTOLD)
    # Those of one gateway alone that come first to an empty store, while others hold their places.
    timer = threading.Timer(4, lambda: rig.tell("FLUSHALL"))
    timer.start()
    judge("most on one, store emptied", asyncio.run(press([0, 0, 0, 1, 2, 3], 8)), MOST, UNTOLD)
    gateways.pop(0).kill()
    until("the others count themselves", lambda: shared(gateways))
    judge("one gateway killed, three are left", asyncio.run(press(every[1:], 10)), MOST)
