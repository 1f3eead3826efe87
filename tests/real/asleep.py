#!/usr/bin/env python3
"""A decoder sleeps, or pauses, while it answers a stream.

asleep.sh starts the engines and the gateway.
usage: asleep.py GATEWAY DECODE   (base URLs); exit status 1 when anything is wrong
"""
import json
import sys
import threading
import urllib.error
import urllib.request

GATEWAY, DECODE = sys.argv[1:3]
TOKENS = 600
# An order, the one that takes it back, the engine's own word, and the member of it.
ORDERS = [("/sleep?level=1", "/wake_up", "/is_sleeping", "is_sleeping"), ("/pause?mode=abort", "/resume", "/is_paused", "is_paused")]
wrong = []


def fetch(url, body=None, timeout=120):
    """Status and JSON of an answer; a body is posted."""
    data = None if body is None else json.dumps(body).encode() if body else b""
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())


def check(name, ok, shown=""):
    print(("ok    " if ok else "WRONG ") + name + (f"  {shown}" if shown != "" else ""), flush=True)
    if not ok:
        wrong.append(name)


def body(tokens, **more):
    return {"model": "tiny", "prompt": "It is late.", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **more}


class Stream(threading.Thread):
    """A streamed answer, read to its end by a thread of its own."""

    def __init__(self):
        super().__init__()
        self.events, self.begun = [], threading.Event()
        self.start()
        if not self.begun.wait(120):
            raise RuntimeError("no event of a stream")

    def run(self):
        request = urllib.request.Request(GATEWAY + "/v1/completions", json.dumps(body(TOKENS, stream=True)).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    self.events.append(line[6:].strip().decode())
                    self.begun.set()

    def end(self):
        """How it ended: a reason of the engine, or the gateway's error; and if that was all of it."""
        self.join(300)
        last = [json.loads(event) for event in self.events if event != "[DONE]"]
        reasons = [event["choices"][0]["finish_reason"] for event in last if event.get("choices") and event["choices"][0].get("finish_reason")]
        errors = [event["error"]["code"] for event in last if "error" in event]
        return (reasons or errors or ["none"])[0], "length" in reasons


def state():
    """Engines that `/instances` lists as asleep."""
    return [it["instance"] for it in fetch(GATEWAY + "/instances")[1].get("asleep", [])]


def order(rest, wake, asked, member, answer):
    name = rest.split("?")[0]
    stream = Stream()
    status, _ = fetch(f"{GATEWAY}{rest}&role=decode&drain_ms=120000", {})
    check(f"{name} with a time to drain: 200", status == 200, status)
    reason, whole = stream.end()
    check(f"{name} with a time to drain: the stream is whole", whole, reason)
    told = fetch(DECODE + asked)[1]
    check(f"{name}: the engine says so", told == {member: True}, told)
    asleep = state()
    check(f"{name}: the gateway says so", asleep == [DECODE.split("//")[1]], asleep)
    status, refusal = fetch(GATEWAY + "/v1/completions", body(4))
    check(f"{name}: a request is refused and waits for nobody", status == 503, (status, refusal.get("error", {}).get("code")))
    status, _ = fetch(f"{GATEWAY}{wake}?role=decode", {})
    check(f"{wake}: 200, and nobody is asleep", status == 200 and not state(), status)
    status, again = fetch(GATEWAY + "/v1/completions", body(24))
    check(f"{wake}: the answer is the one of before", status == 200 and again["choices"][0]["text"] == answer)

    stream = Stream()
    status, _ = fetch(f"{GATEWAY}{rest}&role=decode", {})
    reason, whole = stream.end()
    check(f"{name} without: the engine ends the stream", status == 200 and not whole, reason)
    status, _ = fetch(f"{GATEWAY}{wake}?role=decode", {})
    status, again = fetch(GATEWAY + "/v1/completions", body(24))
    check(f"{wake}: the answer is the one of before", status == 200 and again["choices"][0]["text"] == answer)


def main():
    status, first = fetch(GATEWAY + "/v1/completions", body(24))
    check("an answer", status == 200, status)
    for one in ORDERS:
        order(*one, first["choices"][0]["text"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
