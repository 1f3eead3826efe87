#!/usr/bin/env python3
"""Kills processes under streams and compares what clients read with what they read when nothing happens.

Simulated engines, whose answers depend on the prompt alone, and a gateway that continues broken streams, all processes. In
each scene every client streams one answer; something is killed in the middle. Exit status 0: every scene as it should be.
"""
import argparse
import collections
import concurrent.futures
import http.client
import json
import pathlib
import signal
import sys
import tempfile
import threading

from processes import WAIT_SECONDS, Process

MAX_TOKENS = 250
# Two hundred streams make 5 000 events a second, of which these clients read twice as many on one core: at 20 ms a busy machine let the
# engines finish before the last client had read its tenth token, and nothing was left to kill.
TPOT_MS = 40
# When the killing happens: the last of all streams has so many tokens. By a clock, a busy machine would have it too early. Few, since
# these clients read more slowly than the engines write: what they have not read yet is not to be lost any more.
AFTER_TOKENS = 10

class Stage:
    """Prefillers, decoders, and a gateway before them."""

    def __init__(self, program, resume, lease_ms, settings=()):
        self.program, self.folder, self.processes = program, tempfile.TemporaryDirectory(), []
        self.prefillers = [self.engine("prefill", lease_ms) for _ in range(2)]
        self.decoders = [self.engine("decode", lease_ms) for _ in range(2)]
        command = ["--host", "127.0.0.1", "--port", "0", "--log-level", "warning"]
        for flag, engines in (("--prefill", self.prefillers), ("--decode", self.decoders)):
            for engine in engines:
                command += [flag, f"http://{engine.address}"]
        command += ["--set", f"retry.resume={str(resume).lower()}", "--set", f"engine.lease_ms={lease_ms}"]
        for setting in ["log.level=info", *settings]:
            command += ["--set", setting]
        self.gateway = self.start("gateway", command)

    def start(self, name, arguments):
        process = Process(self.folder.name, f"{name}-{len(self.processes)}", [self.program, *arguments])
        self.processes.append(process)
        (process.address,) = process.wait_for(r" on http://([0-9.]+:[0-9]+)")
        return process

    def engine(self, role, lease_ms, port=0):
        command = ["sim", "--port", str(port), "--role", role, "--tpot-ms", str(TPOT_MS), "--slope-ms", "0"]
        return self.start(role, [*command, "--kv-blocks", "65536", "--lease-ms", str(lease_ms)])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.end(signal.SIGKILL)
        self.folder.cleanup()

    def ask(self, number, under_way=None):
        """One stream: its text, and how it ended. It tells when it is well under way."""
        body = {"model": "sim", "stream": True, "max_tokens": MAX_TOKENS, "temperature": 0}
        body |= {"prompt": f"Client number {number}. " * 20, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection(self.gateway.address, timeout=WAIT_SECONDS)
        text, end, usage, ids = [], "cut", None, set()
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                return f"status {answer.status}", "", json.loads(answer.read())["error"]["code"]
            for line in answer:
                line = line.decode().strip()
                if line == "data: [DONE]":
                    end = "done"
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        end = "error"
                        continue
                    ids.add(event["id"])
                    usage = event.get("usage") or usage
                    text += [choice["text"] for choice in event["choices"]]
                    if under_way and len(text) == AFTER_TOKENS:
                        under_way.release()
        except (OSError, http.client.HTTPException):
            end = "cut" if end == "done" else end
        if end == "done":
            counts = (usage or {}).get("completion_tokens")
            end = "done" if counts == MAX_TOKENS and len(ids) == 1 else f"done with usage {usage}, {len(ids)} ids"
        return end, "".join(text), ""

    def streams(self, count, disaster=None):
        """`count` clients at once, and what happens to them."""
        with concurrent.futures.ThreadPoolExecutor(count + 1) as pool:
            under_way = threading.Semaphore(0)
            running = [pool.submit(self.ask, number, under_way) for number in range(count)]
            if disaster:
                if not all(under_way.acquire(timeout=WAIT_SECONDS) for _ in range(count)):
                    raise RuntimeError("not all streams got under way")
                disaster(self)
            return [it.result() for it in running]


def scene(args, name, calm, disaster, resume=True, lease_ms=4000):
    """Plays one; how clients fared, and whether what they read is a beginning of the right answer."""
    with Stage(args.gateway, resume, lease_ms) as stage:
        ends = stage.streams(args.streams, disaster)
        # New requests while it lasts, and after.
        after = stage.streams(8)
        counted = collections.Counter(end for end, _, _ in ends)
        whole = sum(end == "done" and text == right for (end, text, _), (_, right, _) in zip(ends, calm))
        lies = sum(not right.startswith(text) for (_, text, _), (_, right, _) in zip(ends, calm))
        short = sum(end == "done" and text != right for (end, text, _), (_, right, _) in zip(ends, calm))
        log = stage.gateway.said()
        panics = log.count("panicked")
        served = sum(end == "done" for end, _, _ in after)
        print(f"{name}: {dict(counted)}; equal to the undisturbed answer {whole} of {len(ends)}; wrong text {lies}; "
              f"ended early as if whole {short}; of 8 requests after it {served} served; panics {panics}", flush=True)
        return {"whole": whole, "lies": lies + short + panics, "served": served}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--streams", type=int, default=200)
    args = parser.parse_args()
    with Stage(args.gateway, True, 4000) as stage:
        calm = stage.streams(args.streams)
    print(f"undisturbed: {dict(collections.Counter(end for end, _, _ in calm))}", flush=True)
    wrong = sum(end != "done" for end, _, _ in calm)

    def kill(which, count):
        return lambda stage: [engine.process.kill() for engine in getattr(stage, which)[:count]]

    everything = args.streams

    def stop(stage):
        stage.gateway.process.terminate()

    one = scene(args, "a decoder killed, streams continue", calm, kill("decoders", 1))
    wrong += one["whole"] != everything or one["lies"] or one["served"] != 8
    two = scene(args, "a decoder killed, streams don't continue", calm, kill("decoders", 1), resume=False)
    # Half of the streams were on it: else the killing came too early or too late, and nothing was shown.
    hit = everything - two["whole"]
    wrong += bool(two["lies"]) or two["served"] != 8 or not everything // 3 < hit < everything
    three = scene(args, "a prefiller killed", calm, kill("prefillers", 1))
    wrong += three["whole"] != everything or three["lies"] or three["served"] != 8
    four = scene(args, "all decoders killed", calm, kill("decoders", 2))
    wrong += bool(four["lies"]) or four["whole"] != 0 or four["served"] != 0
    five = scene(args, "all prefillers killed", calm, kill("prefillers", 2))
    wrong += five["whole"] != everything or five["lies"] or five["served"] != 0
    with Stage(args.gateway, True, 4000) as stage:
        ends = stage.streams(args.streams, stop)
        whole = sum(end == "done" and text == right for (end, text, _), (_, right, _) in zip(ends, calm))
        status = stage.gateway.process.wait(WAIT_SECONDS)
        print(f"the gateway is stopped (SIGTERM): {whole} of {everything} streams end whole; its exit status {status}")
        wrong += whole != everything or status != 0
    print("as it should be" if not wrong else f"{wrong} scenes are not as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
