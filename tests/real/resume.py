#!/usr/bin/env python3
"""Streams through two real decoders, one of which is killed with SIGKILL in the middle.

resume.sh starts the engines and runs this. Decoding is greedy, so the right answer is the one that is read when nothing
happens. Exit status 0: every stream equals it, in text, token ids, finish reason and usage.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from kv_events import PARA, user
from proof import Serving

MAX_TOKENS = 900
STREAMS = 8


class Gateway(Serving):
    """A gateway that continues streams, before one prefiller and two decoders."""

    def __init__(self, args):
        command = [args.gateway, "--host", "127.0.0.1", "--port", "0", "--prefill", args.prefill]
        command += ["--decode", args.decode, "--decode", args.second, "--set", "retry.resume=true"]
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PD_PROXY")}
        self.process = subprocess.Popen(command, stdout=self.file, stderr=self.file, env=environment)
        self.address = self.line(r"listening on http://([0-9.:]+)")[1]

    def stream(self, number):
        """One greedy answer: what a client keeps of it."""
        body = {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
        body["stream_options"] = {"include_usage": True}
        chat = number % 2 == 1
        if chat:
            body["messages"] = [user(f"Stream {number}, and all of it. {PARA * 2}")]
        else:
            body |= {"prompt": f"Stream {number} goes on. {PARA * 2}", "return_token_ids": number % 4 == 0}
        connection = http.client.HTTPConnection(self.address, timeout=120)
        path = "/v1/chat/completions" if chat else "/v1/completions"
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        kept = {"status": answer.status, "text": "", "token_ids": [], "ids": set(), "finish": [], "usage": None, "errors": 0}
        for line in answer:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                kept["done"] = line.strip() == b"data: [DONE]" or kept.get("done", False)
                continue
            event = json.loads(line[6:])
            if "error" in event:
                kept["errors"] += 1
                continue
            kept["ids"].add(event["id"])
            kept["usage"] = event.get("usage") or kept["usage"]
            for choice in event["choices"]:
                kept["text"] += (choice.get("delta") or {}).get("content") or choice.get("text") or ""
                kept["token_ids"] += choice.get("token_ids") or []
                kept["finish"] += [choice["finish_reason"]] if choice.get("finish_reason") else []
        kept["ids"] = len(kept["ids"])
        return kept

    def streams(self, meanwhile=None):
        with concurrent.futures.ThreadPoolExecutor(STREAMS + 1) as pool:
            running = [pool.submit(self.stream, number) for number in range(STREAMS)]
            if meanwhile:
                meanwhile()
            return [it.result() for it in running]


def usage(kept):
    counts = kept["usage"] or {}
    return counts.get("prompt_tokens"), counts.get("completion_tokens"), counts.get("total_tokens")


def main():
    parser = argparse.ArgumentParser()
    for name in ("gateway", "prefill", "decode", "second", "pid"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    with Gateway(args) as gateway:
        began = time.monotonic()
        calm = gateway.streams()
        took = time.monotonic() - began
        again = gateway.streams()
        same = sum(one["text"] == other["text"] for one, other in zip(calm, again))
        print(f"undisturbed: {took:.1f} s, {same} of {STREAMS} equal when asked twice")

        def kill():
            time.sleep(0.4 * took)
            with open(args.pid, encoding="ascii") as file:
                os.killpg(int(file.read()), signal.SIGKILL)

        killed = gateway.streams(kill)
        metrics = gateway.metrics()
        resumed = sum(int(float(value)) for name, value in metrics.items()
                      if name.startswith("pd_proxy_continuations_total") and 'outcome="resumed"' in name)
        wrong = 0
        for number, (right, seen) in enumerate(zip(calm, killed)):
            for field in ("status", "text", "token_ids", "ids", "finish", "done", "errors"):
                if right[field] != seen[field]:
                    wrong += 1
                    print(f"WRONG stream {number}, {field}: {right[field]!r} and then {seen[field]!r}"[:400])
            if usage(right) != usage(seen):
                wrong += 1
                print(f"WRONG stream {number}, usage: {usage(right)} and then {usage(seen)}")
        tokens = sum((kept["usage"] or {}).get("completion_tokens", 0) for kept in killed)
        print(f"{STREAMS} streams, a decoder killed after {0.4 * took:.1f} s: {resumed} continued, {tokens} tokens, {wrong} differences")
        if not resumed:
            print("WRONG: nothing was continued, so nothing was shown")
    return 1 if wrong or not resumed or same != STREAMS else 0


if __name__ == "__main__":
    sys.exit(main())
