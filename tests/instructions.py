#!/usr/bin/env python3
"""Counts the instructions of a gateway that serves so many requests, one after the other, under valgrind.

`instructions.py PROGRAM REQUESTS`: prints one number, the whole process from its start to its end. Engines are simulated, as
processes of the same program, and not counted. What the start costs cancels out between two numbers of requests.
"""
import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import time

WAIT_SECONDS = 60
VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]


def start(command):
    """A process that says where it listens, where that is, and what it says."""
    said = tempfile.NamedTemporaryFile("w+")
    process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    end = time.monotonic() + WAIT_SECONDS
    while not (found := re.search(r" on http://([0-9.]+:[0-9]+)", open(said.name).read())):
        if process.poll() is not None or time.monotonic() > end:
            sys.exit(f"{command} does not listen, it said:\n{open(said.name).read()}")
        time.sleep(0.05)
    return process, found[1], said


def main():
    program, requests = sys.argv[1], int(sys.argv[2])
    engines, flags = [], ["--host", "127.0.0.1", "--port", "0", "--workers", "1", "--log-level", "warning"]
    for role in ("prefill", "prefill", "decode", "decode"):
        process, address, _ = start([program, "sim", "--port", "0", "--role", role])
        engines.append(process)
        flags += [f"--{role}", f"http://{address}"]
    # Starting says where it listens only in the log.
    gateway, address, said = start([*VALGRIND, program, *flags, "--set", "log.level=info"])
    body = json.dumps({"model": "sim", "prompt": "some words " * 18, "max_tokens": 4})
    connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS)
    for _ in range(requests):
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or not json.loads(answer.read())["choices"][0]["text"]:
            sys.exit(f"status {answer.status}")
    gateway.send_signal(signal.SIGTERM)
    gateway.wait(WAIT_SECONDS)
    for engine in engines:
        engine.kill()
    print(re.search(r"Collected : (\d+)", open(said.name).read())[1])


main()
