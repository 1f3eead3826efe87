#!/usr/bin/env python3
"""Conversations whose KV goes back and forth: what the decoder computed of one turn, the prefiller reads for the next.

run.sh starts two real vLLM engines with `bidirectional_kv_xfer`, the gateway with `dialect.bidirectional`, and a plain engine.
usage: back.py GATEWAY PREFILL REFERENCE   (base URLs); exit status 1 when anything is wrong
"""
import json
import sys
import time
import urllib.request

GATEWAY, PREFILL, REF = sys.argv[1:4]
PARA = "The import statement combines two operations; it searches for the named module, then it binds the results. "
TURNS, ANSWER_TOKENS = 4, 100
wrong = []


def ask(base, prompt, more=()):
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": ANSWER_TOKENS, "ignore_eos": True,
            "return_token_ids": True, **dict(more)}
    request = urllib.request.Request(base + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def metric(base, name, label=""):
    lines = urllib.request.urlopen(base + "/metrics", timeout=10).read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and label in line)


def read_back():
    """Prompt tokens that the prefiller had from the decoder."""
    return int(metric(PREFILL, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"'))


def check(name, ok, shown=""):
    print(("ok    " if ok else "WRONG ") + name + (f"  {shown}" if shown else ""))
    if not ok:
        wrong.append(name)


def turn(name, prompt, least):
    """One turn at both; prompt and answer, by ids."""
    before = read_back()
    answer, plain = ask(GATEWAY, prompt), ask(REF, prompt)
    read = read_back() - before
    ours, theirs = answer["choices"][0], plain["choices"][0]
    check(f"{name}: equal to a plain engine's", ours["token_ids"] == theirs["token_ids"])
    check(f"{name}: {least} tokens or more are read from the decoder", read >= least, f"{read}")
    check(f"{name}: no engine's address in the answer", answer["kv_transfer_params"] is None)
    return ours["prompt_token_ids"], ours["token_ids"]


def main():
    for number in range(3):
        prompt, answer = turn(f"conversation {number}, turn 0", f"Number {number}, {time.time()}. {PARA * 5}", 0)
        for at in range(1, TURNS):
            # All that the decoder wrote is read, but for parts of blocks at both ends: the prefiller has the prompts itself.
            history = prompt + answer + [17 + at] * 40
            prompt, answer = turn(f"conversation {number}, turn {at}", history, 64)
    prompt, answer = turn("before another history", f"Another, {time.time()}. {PARA * 5}", 0)
    # As when reasoning is left out: what stands behind the prompt is not what the decoder wrote.
    turn("another history", prompt + answer[60:] + [23] * 40, 0)
    prompt, answer = turn("before a shorter history", f"Shorter, {time.time()}. {PARA * 5}", 0)
    turn("a shorter history", prompt + answer[:70], 0)
    offers = {outcome: int(metric(GATEWAY, "pd_proxy_kv_offers_total", f'outcome="{outcome}"'))
              for outcome in ("kept", "used", "refused", "dropped")}
    tokens = int(metric(GATEWAY, "pd_proxy_kv_offered_tokens_total"))
    print(f"offers {offers}, of {tokens} tokens; the prefiller has read {read_back()} from the decoder")
    check("every later turn had an offer", offers["used"] >= 3 * (TURNS - 1) + 2 and offers["refused"] == 0)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
