#!/usr/bin/env python3
"""The gateway listens to a real vLLM engine's KV events: what it says that the engine holds of a prompt is what the engine
then finds in its cache.

kv_events.sh starts the engine and runs this. Exit status 0: equal for every prompt, and nothing is held any more after
the engine's cache was reset.
"""
import argparse
import json
import sys
import time
import urllib.request

from kv_events import CHATS, COMPLETIONS
from proof import Serving

WAIT_SECONDS = 30


class Held:
    """A gateway that listens, and the blocks that it knows of its one prefiller."""

    def __init__(self, args, gateway):
        self.block = int(args.block)
        self.engine = f"127.0.0.1:{args.port}"
        self.gateway = gateway
        self.url = gateway.line(r"listening on (http://[^\s\"]+)")[1]
        self.asked = 0

    def sample(self, name, place=""):
        labels = [f'engine="{self.engine}"', 'rank="0"', place]
        for series, value in self.gateway.metrics().items():
            if series.startswith(f"pd_proxy_events_{name}{{") and all(label in series for label in labels):
                return float(value)
        return 0.0

    def until(self, what, holds):
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"it never came to this: {what}; the gateway said:\n{self.gateway.said()}")
            time.sleep(0.1)

    def ask(self, path, request):
        """The log line of a request, whose answer is complete."""
        self.asked += 1
        name = f"held-{self.asked}"
        body = json.dumps({"model": "tiny", "temperature": 0, "max_tokens": 1, **request}).encode()
        headers = {"content-type": "application/json", "x-request-id": name}
        urllib.request.urlopen(urllib.request.Request(self.url + path, body, headers), timeout=120).read()
        found = []

        def logged():
            lines = (line for line in self.gateway.said().splitlines() if name in line)
            found[:] = [line for line in map(json.loads, lines) if line.get("id") == name and "status" in line]
            return found

        self.until(f"a log line of {name}", logged)
        return found[0]

    def settles(self):
        """Waits until no events come any more."""
        before = -1.0
        while (now := self.sample("total", 'what="batches"')) != before:
            before = now
            time.sleep(0.6)

    def case(self, name, path, request):
        """Asks twice; whether the second time all full blocks are held, and the engine finds them."""
        first = self.ask(path, request)
        self.settles()
        second = self.ask(path, request)
        self.settles()
        tokens = second["prompt_tokens"]
        full = tokens // self.block * self.block
        # The engine computes at least one token anew, and so a whole block.
        found = min(full, (tokens - 1) // self.block * self.block)
        wrong = []
        # What it has in common with earlier ones.
        if first["held_tokens"] != first["cached_tokens"]:
            wrong.append(f"first time: held {first['held_tokens']}, the engine found {first['cached_tokens']}")
        if (second["held_tokens"], second["cached_tokens"]) != (full, found):
            wrong.append(f"{full} full blocks' tokens: held {second['held_tokens']}, found {second['cached_tokens']}")
        verdict = "WRONG" if wrong else "ok"
        held = f"held {first['held_tokens']}, then {second['held_tokens']}, found {second['cached_tokens']}"
        print(f"{verdict} {name}: {tokens} tokens, {held}", *wrong, sep="\n  ", flush=True)
        return not wrong

    def reset(self):
        """The engine's cache is emptied: nothing is held, nor found."""
        request = {"prompt": [(11 + 5 * i) % 2000 + 3 for i in range(10 * self.block)]}
        self.ask("/v1/completions", request)
        self.settles()
        before = self.ask("/v1/completions", request)["held_tokens"]
        urllib.request.urlopen(urllib.request.Request(f"http://{self.engine}/reset_prefix_cache", b""), timeout=30)
        # The event comes with the next step.
        self.ask("/v1/completions", {"prompt": [7, 8, 9]})
        self.until("nothing held", lambda: self.sample("blocks", 'place="own"') == 0)
        after = self.ask("/v1/completions", request)
        right = (before, after["held_tokens"], after["cached_tokens"]) == (10 * self.block, 0, 0)
        print(f"{'ok' if right else 'WRONG'} reset: held {before}, then {after['held_tokens']}", flush=True)
        return right


def main():
    parser = argparse.ArgumentParser()
    for flag in ("gateway", "model", "port", "block", "seed"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--events", help="where the engine publishes; left out, it tells itself")
    args = parser.parse_args()
    more = ["--set", "events.listen=true", "--set", "log.format=json"]
    if args.events:
        more += ["--set", f"events.endpoints=127.0.0.1:{args.port}={args.events}"]
    print(f"== the gateway listens: {args.events or 'where the engine says'}", flush=True)
    with Serving(args, args.model, *more) as gateway:
        gateway.shows(tokens_proven=1, block_names_known=1)
        held = Held(args, gateway)
        held.until("events come in", lambda: held.sample("connected") == 1)
        right = [held.case(f"chat: {name}", "/v1/chat/completions", request) for name, request, _ in CHATS]
        right += [held.case(name, "/v1/completions", request) for name, request, _ in COMPLETIONS]
        right.append(held.reset())
        complete, lost = held.sample("complete"), held.sample("total", 'what="gaps"')
        print(f"{sum(right)} of {len(right)} right; all of the engine's blocks are known: {complete == 1}; gaps: {lost:.0f}")
    sys.exit(0 if all(right) and complete == 1 else 1)


if __name__ == "__main__":
    main()
