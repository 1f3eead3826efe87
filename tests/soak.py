#!/usr/bin/env python3
"""A long run of mixed load with faults: streams and whole answers, short and long prompts, clients that leave, read slowly or send
nonsense; engines that refuse, hang, cut, fail in the middle, are killed and come back.

Exit status 0: the gateway's memory in the last quarter is that of the second, it has no more open files than before, no answer is
wrong, every engine is left empty. What clients saw is counted by kind.
"""
import argparse
import collections
import http.client
import json
import random
import signal
import sys
import threading
import time

from kill import Stage, WAIT_SECONDS
from processes import open_files

PROMPTS = 48
MAX_TOKENS = 40
LEASE_MS = 4000
# Of each prompt every answer must be the same, or a beginning of it.
LENGTHS = [20, 200, 2_000, 20_000]
FAULTS = [
    {"kind": "reset_before_head"},
    {"kind": "status", "status": 500},
    {"kind": "status", "status": 503},
    {"kind": "cut_after_bytes", "bytes": 300, "how": "reset"},
    {"kind": "cut_after_bytes", "bytes": 900, "how": "close"},
    {"kind": "close_without_done"},
    {"kind": "error_event"},
    {"kind": "stall_before_head"},
]


class Soak:
    """The stage, what is right, and what was seen."""

    def __init__(self, args, stage):
        self.args, self.stage = args, stage
        self.end = None
        self.right = {}
        self.seen = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()

    def body(self, number, stream):
        words = LENGTHS[number % len(LENGTHS)]
        return {"model": "sim", "stream": stream, "max_tokens": MAX_TOKENS, "temperature": 0,
                "prompt": f"Prompt number {number}. " + "word " * words}

    def ask(self, number, stream, leave=None, pause=0.0):
        """One request; its text and how it ended."""
        connection = http.client.HTTPConnection(self.stage.gateway.address, timeout=WAIT_SECONDS)
        text, end = [], "cut"
        try:
            connection.request("POST", "/v1/completions", json.dumps(self.body(number, stream)),
                               {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                return f"status {answer.status} {json.loads(answer.read())['error']['code']}", ""
            if not stream:
                return "done", json.loads(answer.read())["choices"][0]["text"]
            for count, line in enumerate(answer):
                if leave is not None and count >= leave:
                    return "left", ""
                time.sleep(pause)
                line = line.decode().strip()
                if line == "data: [DONE]":
                    end = "done"
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        end = "error event"
                        continue
                    text += [choice["text"] for choice in event["choices"]]
        except (OSError, http.client.HTTPException):
            end = end if end == "error event" else "cut"
        finally:
            connection.close()
        return end, "".join(text)

    def judge(self, number, end, text):
        right = self.right[number]
        bad = (end == "done" and text != right) or not right.startswith(text) or end == "cut"
        with self.lock:
            self.seen[end] += 1
            if bad:
                self.wrong.append((number, end, text[:80], right[:80]))

    def nonsense(self):
        connection = http.client.HTTPConnection(self.stage.gateway.address, timeout=WAIT_SECONDS)
        bodies = [b"{", b'{"model":"sim","prompt":7}', b"[" * 5000, b'{"model":"nobody","prompt":"x"}']
        connection.request("POST", "/v1/completions", random.choice(bodies), {"content-type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        with self.lock:
            self.seen[f"nonsense {status}"] += 1
            if not 400 <= status < 500:
                self.wrong.append(("nonsense", status))

    def watched(self, work):
        """A part of the test that breaks shows nothing."""
        try:
            work()
        except BaseException as error:
            self.wrong.append(("the test itself", repr(error)))
            raise

    def client(self):
        while time.monotonic() < self.end:
            number, kind = random.randrange(PROMPTS), random.random()
            if kind < 0.05:
                self.nonsense()
            elif kind < 0.15:
                self.ask(number, True, leave=random.randrange(20))
                self.seen["left"] += 1
            elif kind < 0.2:
                self.judge(number, *self.ask(number, True, pause=0.02))
            else:
                self.judge(number, *self.ask(number, kind < 0.7))
            time.sleep(random.uniform(0, 2 * self.args.pause))

    def trouble(self):
        """One engine of each side at most is in trouble at a time."""
        last_kill = time.monotonic()
        while time.monotonic() < self.end:
            time.sleep(1)
            side = random.choice([self.stage.prefillers, self.stage.decoders])
            fault = random.choice(FAULTS)
            post(side[0], "/sim/faults", {"path": "/v1/", "times": random.randint(1, 3), "what": fault})
            if time.monotonic() - last_kill > self.args.kill_every:
                last_kill = time.monotonic()
                self.replace(random.choice([self.stage.prefillers, self.stage.decoders]))

    def replace(self, side):
        """Kills an engine and starts it again at the same place."""
        role = "prefill" if side is self.stage.prefillers else "decode"
        side[0].end(signal.SIGKILL)
        port = side[0].address.rsplit(":")[-1]
        time.sleep(1)
        side[0] = self.stage.engine(role, LEASE_MS, port)
        self.seen[f"killed {role}"] += 1


def post(engine, path, body):
    try:
        connection = http.client.HTTPConnection(engine.address, timeout=5)
        connection.request("POST", path, json.dumps(body))
        connection.getresponse().read()
        connection.close()
    except (OSError, http.client.HTTPException):
        pass


def get(engine, path):
    connection = http.client.HTTPConnection(engine.address, timeout=5)
    connection.request("GET", path)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def rss_kb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def mean(numbers):
    return sum(numbers) / len(numbers)


def left(stage):
    ledgers = [get(engine, "/sim/ledger") for engine in stage.prefillers + stage.decoders]
    return sum(ledger["pinned_blocks"] + ledger["running"] + ledger["waiting"] for ledger in ledgers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--pause", type=float, default=0.3, help="mean pause of a client between requests, s")
    parser.add_argument("--kill-every", type=float, default=45)
    args = parser.parse_args()
    # An engine that hangs is given up well before a client gives the gateway up.
    limits = [f"timeout.{name}_ms=5000" for name in ("prefill", "first_byte", "answer", "gap")]
    with Stage(args.gateway, True, LEASE_MS, limits) as stage:
        soak = Soak(args, stage)
        for number in range(PROMPTS):
            end, soak.right[number] = soak.ask(number, False)
            assert end == "done" and soak.right[number], end
        soak.end = time.monotonic() + args.seconds
        pid = stage.gateway.process.pid
        files_before = open_files(pid)
        work = [soak.client] * args.clients + [soak.trouble]
        threads = [threading.Thread(target=soak.watched, args=[part]) for part in work]
        for thread in threads:
            thread.start()
        samples = []
        while time.monotonic() < soak.end:
            time.sleep(min(5, args.seconds / 40))
            samples.append(rss_kb(pid))
            if len(samples) % 60 == 0:
                print(f"RSS {samples[-1]} KB, {sum(soak.seen.values())} requests", flush=True)
        for thread in threads:
            thread.join()
        for engine in stage.prefillers + stage.decoders:
            post_delete(engine)
        # Releases, leases and idle connections.
        time.sleep(3 * LEASE_MS / 1000)
        quarter = len(samples) // 4
        second, last = mean(samples[quarter:2 * quarter]), mean(samples[-quarter:])
        remains, files_after = left(stage), open_files(pid)
        print(f"{args.seconds:.0f} s, {sum(soak.seen.values())} requests: {dict(soak.seen.most_common())}")
        print(f"RSS: start {samples[0]} KB, second quarter {second:.0f} KB, last quarter {last:.0f} KB, most {max(samples)} KB")
        print(f"open files: {files_before} before, {files_after} after; left on the engines: {remains}")
        for wrong in soak.wrong[:20]:
            print("WRONG", wrong)
        bad = [bool(soak.wrong), last > 1.1 * second + 2048, remains > 0, files_after > files_before + 16,
               "panicked" in stage.gateway.said()]
        print("as it should be" if not any(bad) else f"not as it should be: {bad}")
        return int(any(bad))


def post_delete(engine):
    connection = http.client.HTTPConnection(engine.address, timeout=5)
    connection.request("DELETE", "/sim/faults")
    connection.getresponse().read()
    connection.close()


if __name__ == "__main__":
    sys.exit(main())
