#!/usr/bin/env python3
"""Latency of one fleet while another one is well, hangs, and is gone, side by side in one run.

`fleets_apart.py [PROGRAM]` (default: target/release/pd-proxy). Engines are simulated. In turn, some seconds each, requests for the model of the
first fleet are measured, while as many go to the second: its engines serve, then hang (stopped by a signal), then are gone. Printed are
requests, failures and the p50 and p99 of the first fleet for each. It fails if one of its requests does; times are for people to judge.
"""
import http.client
import json
import pathlib
import signal
import sys
import tempfile
import threading
import time

from processes import Process

LISTENS = r" on http://([0-9.]+:[0-9]+)"
CLIENTS = 4
SECONDS = 8
ROUNDS = 3


def asked(address, model, until, times, failures):
    """Asks one request after the other until then."""
    connection, number = None, 0
    while time.monotonic() < until:
        number += 1
        body = {"model": model, "prompt": f"{threading.get_ident()} {number} " + "some words " * 20, "max_tokens": 4}
        begun = time.monotonic()
        try:
            connection = connection or http.client.HTTPConnection(address, timeout=max(until - begun, 1))
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            good = answer.status == 200 and b"choices" in text
        except OSError:
            good, connection = False, None
        times.append(time.monotonic() - begun)
        if not good:
            failures.append(number)


def phase(address, name):
    """Both fleets for some seconds; what the first one's requests took."""
    until = time.monotonic() + SECONDS
    mine, others = ([], []), ([], [])
    threads = [threading.Thread(target=asked, args=(address, "one", until, *mine)) for _ in range(CLIENTS)]
    threads += [threading.Thread(target=asked, args=(address, "two", until, *others), daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 30)
    times, failures = sorted(mine[0]), mine[1]
    at = lambda share: times[min(int(len(times) * share), len(times) - 1)] * 1e3
    print(f"{name:28} {len(times):6} requests, {len(failures)} failed, p50 {at(0.5):6.1f} ms, p99 {at(0.99):6.1f} ms"
          f"  (the other: {len(others[0])}, {len(others[1])} failed)", flush=True)
    return failures


def main():
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/release/pd-proxy").resolve()
    with tempfile.TemporaryDirectory() as folder:
        started, settings = [], ["timeout.first_byte_ms=20s"]

        def start(name, *command):
            process = Process(folder, name, [program, *command])
            started.append(process)
            return process, process.wait_for(LISTENS)[0]

        try:
            engines = {}
            for model in ("one", "two"):
                for role in ("prefill", "decode"):
                    process, address = start(f"{model}-{role}", "sim", "--port", "0", "--role", role, "--model", model)
                    engines.setdefault(model, []).append(process)
                    settings.append(f"fleets.{model}.fleet.{role}={address}")
                settings.append(f"fleets.{model}.fleet.model={model}")
            flags = [word for setting in settings for word in ("--set", setting)]
            _, address = start("gateway", "--host", "127.0.0.1", "--port", "0", *flags)
            failures = phase(address, "warm-up, both serve")
            for number in range(ROUNDS):
                failures = phase(address, f"{number + 1}: the other serves")
                for engine in engines["two"]:
                    engine.process.send_signal(signal.SIGSTOP)
                failures += phase(address, f"{number + 1}: the other hangs")
                for engine in engines["two"]:
                    engine.process.send_signal(signal.SIGCONT)
                if failures:
                    sys.exit("requests of the fleet that is well failed")
            for engine in engines["two"]:
                engine.end(signal.SIGKILL)
            if phase(address, "the other is gone"):
                sys.exit("requests of the fleet that is well failed")
        finally:
            for process in reversed(started):
                process.process.send_signal(signal.SIGCONT) if process.process.poll() is None else None
                process.end()


main()
