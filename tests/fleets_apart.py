#!/usr/bin/env python3
"""Latency of one fleet with and without faults in another one, in pairs of windows side by side.

`fleets_apart.py [PROGRAM] [ROUNDS]` (default: target/release/pd-proxy, 3). Engines are simulated. Clients send requests to both fleets at a steady
pace all the time. A fault of the other fleet's engines comes and goes: without, with, with, without, some seconds each, so that what the machine
does besides weighs on both alike. Each round has each kind of fault once: engines that hang (stopped by a signal), answer 500, reset connections,
are gone. Printed are the p99 of the fleet that is well in each window, the ratio of those with a fault to those without, and beside it the ratio
of neighbouring windows which both have none: that is what the machine does by itself. It fails if a request of the fleet that is well fails; times
are for people to judge.
"""
import http.client
import json
import pathlib
import signal
import statistics
import sys
import tempfile
import threading
import time

from processes import Process

LISTENS = r" on http://([0-9.]+:[0-9]+)"
CLIENTS = 4
# Seconds between two requests of a client: of the fleet that is measured, and of the other one.
PACES = {"one": 0.04, "two": 0.1}
WINDOW = 4
# Seconds after a fault until nothing is left of it: requests that hung are over.
SETTLE = 3
# Seconds for which a client of the other fleet waits; one that is measured has the time of all.
PATIENCE = {"one": 60, "two": 2}
FAULTS = {
    "hangs": "stop",
    "answers 500": {"path": "/v1/", "what": {"kind": "status", "status": 500}},
    "resets": {"path": "/v1/", "what": {"kind": "reset_before_head"}},
    "is gone": "kill",
}


class Clients:
    """Clients of one model, each at a steady pace."""

    def __init__(self, address, model):
        self.address, self.model, self.on = address, model, True
        self.answers, self.failed = [], []
        self.threads = [threading.Thread(target=self.run, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, client):
        pace, connection, number = PACES[self.model], None, 0
        due = time.monotonic() + pace * client / CLIENTS
        while self.on:
            # What could not be sent in time is left out: a fault is no reason for a burst after it.
            due = max(due + pace, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))
            number += 1
            body = {"model": self.model, "prompt": f"{client} {number} " + "some words " * 20, "max_tokens": 4}
            begun = time.monotonic()
            try:
                connection = connection or http.client.HTTPConnection(self.address, timeout=PATIENCE[self.model])
                connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                good = answer.status == 200 and b"choices" in text
            except (OSError, http.client.HTTPException):
                good, connection = False, None
            self.answers.append((begun, time.monotonic() - begun))
            if not good:
                self.failed.append(begun)

    def p99(self, since, until):
        """Of the requests that began in this time."""
        times = sorted(took for begun, took in list(self.answers) if since <= begun < until)
        return times[min(int(len(times) * 0.99), len(times) - 1)] * 1e3

    def end(self):
        self.on = False
        for thread in self.threads:
            thread.join(PATIENCE[self.model] + 5)


class Engine:
    """A simulated engine, which gets faults and gets over them."""

    def __init__(self, folder, program, role, model):
        self.folder, self.name = folder, f"{model}-{role}"
        self.command = [program, "sim", "--role", role, "--model", model, "--port"]
        self.process = Process(folder, self.name, [*self.command, "0"])
        self.address = self.process.wait_for(LISTENS)[0]

    def strike(self, fault):
        if fault == "stop":
            self.process.process.send_signal(signal.SIGSTOP)
        elif fault == "kill":
            self.process.end(signal.SIGKILL)
        else:
            self.tell("POST", json.dumps(fault))

    def heal(self, fault):
        if fault == "stop":
            self.process.process.send_signal(signal.SIGCONT)
        elif fault == "kill":
            self.process = Process(self.folder, self.name, [*self.command, self.address.rsplit(":", 1)[1]])
            self.process.wait_for(LISTENS)
        else:
            self.tell("DELETE", None)

    def tell(self, method, body):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        connection.request(method, "/sim/faults", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, f"{method} /sim/faults: {answer.status} {answer.read()}"
        connection.close()

    def end(self):
        if self.process.process.poll() is None:
            self.process.process.send_signal(signal.SIGCONT)
        self.process.end()


def window():
    """The bounds of the time until its end."""
    since = time.monotonic()
    time.sleep(WINDOW)
    return since, time.monotonic()


def four(engines, fault):
    """Four windows: without, with, with, without a fault of these engines."""
    first = window()
    for engine in engines:
        engine.strike(fault)
    middle = [window(), window()]
    for engine in engines:
        engine.heal(fault)
    time.sleep(SETTLE)
    return [first, *middle, window()]


def tell(name, ratios):
    print(f"{name}: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f} ({len(ratios)} pairs)")


def measure(one, two, engines, rounds):
    with_fault, without, last = [], [], None
    for number in range(rounds):
        for kind, fault in FAULTS.items():
            failed = len(two.failed)
            bounds = four(engines, fault)
            # Those that began last are over by then.
            time.sleep(0.5)
            first, second, third, fourth = (one.p99(*bound) for bound in bounds)
            with_fault.append((second + third) / (first + fourth))
            without.extend([first / last] if last else [])
            last = fourth
            print(
                f"{number + 1}, the other {kind:12} p99 {first:7.1f} | {second:7.1f} {third:7.1f} | {fourth:7.1f} ms, ratio "
                f"{with_fault[-1]:.3f}; failed: {len(one.failed)} here, {len(two.failed) - failed} there",
                flush=True,
            )
    print(f"{len(one.answers)} requests of the fleet that is well, {len(one.failed)} failed")
    tell("p99 with a fault of the other to without", with_fault)
    tell("p99 of neighbouring windows without a fault", without)


def main():
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/pd-proxy").resolve()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as folder:
        started, settings = [], ["timeout.first_byte_ms=20s"]
        try:
            for model in ("one", "two"):
                for role in ("prefill", "decode"):
                    started.append(Engine(folder, program, role, model))
                    settings.append(f"fleets.{model}.fleet.{role}={started[-1].address}")
                settings.append(f"fleets.{model}.fleet.model={model}")
            flags = [word for setting in settings for word in ("--set", setting)]
            gateway = Process(folder, "gateway", [program, "--host", "127.0.0.1", "--port", "0", *flags])
            others = started[2:]
            started.append(gateway)
            address = gateway.wait_for(LISTENS)[0]
            one, two = (Clients(address, model) for model in ("one", "two"))
            time.sleep(SETTLE)
            measure(one, two, others, rounds)
            one.end()
            two.end()
            if one.failed:
                sys.exit("requests of the fleet that is well failed")
        finally:
            for process in reversed(started):
                process.end()


main()
