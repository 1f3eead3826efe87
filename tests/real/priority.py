#!/usr/bin/env python3
"""Two requests wait at a decoder that runs one at a time: which of them is next?

priority.sh starts the engines and the gateway. A request occupies the decoder; a second and then a third come, and each is awaited in the decoder's own
count of those that wait. The third was overtaking if its answer is complete before that of the second.
usage: priority.py GATEWAY DECODE KEYS POLICY SCHEDULING   (KEYS: a folder with a file for each key); exit status 1 when anything is wrong
"""
import concurrent.futures
import json
import pathlib
import sys
import time
import urllib.request

GATEWAY, DECODE, KEYS, POLICY, SCHEDULING = sys.argv[1:6]
WAIT_SECONDS = 120
# Enough that two requests arrive while the first is at work, and that their answers end apart.
OCCUPYING_TOKENS, TOKENS = 600, 100
FIRST = {"key": "low"}
# What the third request has, and whether it overtakes the second: by keys, and by what engines get if the gateway changes nothing.
CASES = {
    "a high key overtakes a low one": (FIRST, {"key": "high"}, True, False),
    "a normal key overtakes a low one": (FIRST, {"key": "normal"}, True, False),
    "a low key's claim in the body counts as its key": ({"key": "normal"}, {"key": "low", "claim": -100}, False, True),
    "a low key's claim by header counts as its key": ({"key": "normal"}, {"key": "low", "header": "-100"}, False, True),
    "a high key may step back": (FIRST, {"key": "high", "claim": 100}, False, False),
}


def ask(place, tokens, sender, done):
    body = {"model": "tiny", "prompt": f"Number {time.time()}", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    if "claim" in sender:
        body["priority"] = sender["claim"]
    headers = {"content-type": "application/json", "authorization": "Bearer " + (pathlib.Path(KEYS) / sender["key"]).read_text().strip()}
    if "header" in sender:
        headers["x-vllm-priority"] = sender["header"]
    request = urllib.request.Request(GATEWAY + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        usage = json.loads(answer.read())["usage"]
    done.append(place)
    return usage["completion_tokens"] == tokens


def of_decoder(name):
    lines = urllib.request.urlopen(DECODE + "/metrics", timeout=60).read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:num_requests_{name}{{"))


def until(name, count):
    end = time.monotonic() + WAIT_SECONDS
    while of_decoder(name) != count:
        if time.monotonic() > end:
            raise RuntimeError(f"the decoder has {of_decoder(name):.0f} requests {name}, never {count}")
        time.sleep(0.05)


def overtakes(second, third):
    done = []
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, 1, OCCUPYING_TOKENS, {"key": "normal"}, done)]
        until("running", 1)
        for at, sender in enumerate((second, third), 1):
            asked.append(pool.submit(ask, 1 + at, TOKENS, sender, done))
            until("waiting", at)
        if not all(answer.result() for answer in asked):
            raise RuntimeError("an answer is not complete")
    if done[0] != 1:
        raise RuntimeError(f"the decoder was not occupied: {done}")
    return done[1] == 3


def main():
    wrong = 0
    for name, (second, third, by_key, by_claim) in CASES.items():
        expected = POLICY == "priority" and (by_key if SCHEDULING == "true" else by_claim)
        found = overtakes(second, third)
        wrong += found != expected
        print(f"{'ok   ' if found == expected else 'WRONG'} {POLICY}, priority_scheduling {SCHEDULING}: {name}: "
              f"{'overtook' if found else 'did not overtake'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
