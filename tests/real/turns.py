#!/usr/bin/env python3
"""Conversations in front of two real prefillers that share a real pool.

turns.sh starts the engines and runs this. Of every request the gateway tells where it went and what it predicted
(`/debug/route/ID`); what the prefiller found cached is its own word. Exit status 0: all as it should be.
"""
import argparse
import concurrent.futures
import json
import sys
import time
import urllib.request

from kv_events import PARA, said, system, user
from pool import Gateway

CONVERSATIONS = 6
BLOCK_TOKENS = 32
# For this long engines may take to put into the pool what they computed.
STORED_SECONDS = 20


class Talk:
    """One conversation."""

    def __init__(self, number):
        self.number = number
        self.messages = [system(f"Number {number}, of its own. {PARA * 2}"), user(f"First? {PARA}")]

    def turn(self, gateway):
        """Asks once more; where it went, as the gateway tells."""
        url = gateway.line(r"listening on (http://[0-9.:]+)")[1]
        body = {"model": "tiny", "temperature": 0, "max_tokens": 8, "messages": self.messages}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        answer = urllib.request.urlopen(request, timeout=120)
        text = json.loads(answer.read())["choices"][0]["message"]["content"]
        self.messages += [said(text or "."), user(f"And then? {PARA}")]
        with urllib.request.urlopen(f"{url}/debug/route/{answer.headers['x-request-id']}", timeout=60) as told:
            placement = json.load(told)["placements"][-1]
        found = {} if placement["cached_tokens"] is None else {"cached_tokens": placement["cached_tokens"]}
        return {**placement["request"], **placement["winner"], **found}


class Count:
    """Of what was as it should be."""

    def __init__(self):
        self.right = self.wrong = 0

    def check(self, what, right):
        """Counts, and prints what is wrong."""
        self.right += right
        self.wrong += not right
        if not right:
            print(f"WRONG {what}")


def whole_blocks(tokens):
    """The most that an engine finds cached of a prompt: its last token is computed at any rate."""
    return (int(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def first_turns(gateway, talks):
    """All at once, so that both prefillers get some."""
    with concurrent.futures.ThreadPoolExecutor(len(talks)) as pool:
        homes = list(pool.map(lambda talk: talk.turn(gateway), talks))
    print("first turns at", sorted(route["prefiller"] for route in homes))
    return homes


def later_turns(gateway, talks, homes, count):
    """One at a time: each goes home, and finds what was predicted."""
    routes = []
    for talk, home in zip(talks, homes):
        route = talk.turn(gateway)
        before = whole_blocks(home["prompt_tokens"])
        count.check(f"{talk.number}: home is {home['prefiller']}: {route}", route["prefiller"] == home["prefiller"])
        count.check(f"{talk.number}: predicted as reported: {route}", route["any_tokens"] == route.get("cached_tokens"))
        count.check(f"{talk.number}: at least {before} cached: {route}", route.get("cached_tokens", -1) >= before)
        count.check(f"{talk.number}: in its own memory: {route}", route["hbm_tokens"] >= before)
        routes.append(route)
    return routes


def from_the_pool(gateway, talks, before, count):
    """Own caches are empty; what the pool holds counts, and comes."""
    url = gateway.line(r"listening on (http://[0-9.:]+)")[1]
    with urllib.request.urlopen(urllib.request.Request(url + "/reset_prefix_cache", b"", method="POST"), timeout=60) as answer:
        count.check(f"caches are emptied: {answer.status}", answer.status == 200)
    for talk, last in zip(talks, before):
        route = talk.turn(gateway)
        known = whole_blocks(last["prompt_tokens"])
        count.check(f"{talk.number}: nothing in its own memory: {route}", route["hbm_tokens"] == 0)
        count.check(f"{talk.number}: {known} in the pool: {route}", route["any_tokens"] >= known)
        count.check(f"{talk.number}: predicted as reported: {route}", route["any_tokens"] == route.get("cached_tokens"))


def main():
    parser = argparse.ArgumentParser()
    for name in ("gateway", "model", "prefill", "second", "decode", "master", "store"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    count = Count()
    both = {"fleet.prefill": json.dumps([args.prefill, args.second])}
    with Gateway(args, "mooncake", more=both) as gateway:
        gateway.shows(tokens_proven=1, block_names_known=1)
        talks = [Talk(number) for number in range(CONVERSATIONS)]
        homes = first_turns(gateway, talks)
        count.check("both prefillers are used", len({route["prefiller"] for route in homes}) == 2)
        time.sleep(STORED_SECONDS)
        routes = later_turns(gateway, talks, homes, count)
        time.sleep(STORED_SECONDS)
        from_the_pool(gateway, talks, routes, count)
        affinity = {name: value for name, value in gateway.metrics().items() if "affinity" in name or "prediction" in name}
        print(json.dumps(affinity, indent=1))
    print(f"{count.right} right, {count.wrong} wrong")
    return 1 if count.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
