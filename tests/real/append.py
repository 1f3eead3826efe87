#!/usr/bin/env python3
"""Conversations whose later turns a decoder computes alone, as it remembers what was said.

append.sh starts two real vLLM engines, the gateway with `route.append_gap_ms`, and a plain engine.
usage: append.py GATEWAY PREFILL DECODE REFERENCE   (base URLs); exit status 1 when anything is wrong
"""
import json
import sys
import time
import urllib.request

GATEWAY, PREFILL, DECODE, REF = sys.argv[1:5]
PARA = "The import statement combines two operations; it searches for the named module, then it binds the results. "
CONVERSATIONS, TURNS, ANSWER_TOKENS = 3, 6, 100
wrong = []


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.headers.get("x-request-id"), json.loads(answer.read())


def ask(base, prompt):
    return fetch(base + "/v1/completions", {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": ANSWER_TOKENS,
                                            "ignore_eos": True, "return_token_ids": True})


def by_source(base, source):
    lines = urllib.request.urlopen(base + "/metrics", timeout=30).read().decode().splitlines()
    named = (line for line in lines if line.startswith("vllm:prompt_tokens_by_source_total") and f'source="{source}"' in line)
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in named)


def counts():
    """Prompt tokens that each side has computed, and those that the decoder had itself, by the engines' own counters."""
    return [by_source(PREFILL, "local_compute"), by_source(DECODE, "local_compute"), by_source(DECODE, "local_cache_hit")]


def check(name, ok, shown=""):
    print(("ok    " if ok else "WRONG ") + name + (f"  {shown}" if shown else ""))
    if not ok:
        wrong.append(name)


def turn(name, prompt):
    """One turn at both; prompt and answer by ids, and the gateway's record if a decoder answered it alone."""
    request, answer = ask(GATEWAY, prompt)
    ours, theirs = answer["choices"][0], ask(REF, prompt)[1]["choices"][0]
    check(f"{name}: equal to a plain engine's", ours["token_ids"] == theirs["token_ids"])
    appends = fetch(f"{GATEWAY}/debug/route/{request}")[1]["appends"]
    return ours["prompt_token_ids"], ours["token_ids"], appends[0] if appends else None


def main():
    alone, predicted, had = 0, 0, 0
    for number in range(CONVERSATIONS):
        before = counts()
        prompt, answer, append = turn(f"conversation {number}, turn 0", f"Number {number}, {time.time()}. {PARA * 8}")
        check(f"conversation {number}: its first turn has a prefiller", append is None)
        for at in range(1, TURNS):
            history = prompt + answer + [17 + at] * 30
            prompt, answer, append = turn(f"conversation {number}, turn {at}", history)
            if append is None:
                continue
            alone += 1
            predicted += append["held_tokens"]
            had += append["cached_tokens"] or 0
        prefilled, decoded, hit = [now - then for now, then in zip(counts(), before)]
        print(f"conversation {number}: {prefilled} tokens computed by the prefiller, {decoded} by the decoder, which had {hit}")
    share = alone / (CONVERSATIONS * (TURNS - 1))
    print(f"{share:.0%} of later turns without a prefiller; {predicted} tokens predicted to be there, {had} were")
    check("most later turns have no prefiller", share >= 0.8)
    check("what was predicted was there, within 2 %", abs(predicted - had) <= 0.02 * had)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
