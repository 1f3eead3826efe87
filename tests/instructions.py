#!/usr/bin/env python3
"""Counts the instructions of a gateway that serves so many requests, one after the other, under valgrind.

`instructions.py PROGRAM REQUESTS`: prints one number, the whole process from its start to its end. Engines are simulated, as
processes of the same program, and not counted. What the start costs cancels out between two numbers of requests.
"""
import contextlib
import http.client
import json
import pathlib
import sys
import tempfile

from processes import WAIT_SECONDS, Process

VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
LISTENS = r" on http://([0-9.]+:[0-9]+)"


def main():
    program, requests = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        def start(name, *command):
            process = Process(folder, name, command)
            stack.callback(process.end)
            return process, *process.wait_for(LISTENS)

        flags = ["--host", "127.0.0.1", "--port", "0", "--workers", "1", "--log-level", "warning"]
        for number, role in enumerate(["prefill", "prefill", "decode", "decode"]):
            _, address = start(f"{role}-{number}", program, "sim", "--port", "0", "--role", role)
            flags += [f"--{role}", f"http://{address}"]
        # It says where it listens only in the log.
        gateway, address = start("gateway", *VALGRIND, program, *flags, "--set", "log.level=info")
        body = json.dumps({"model": "sim", "prompt": "some words " * 18, "max_tokens": 4})
        connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS)
        for _ in range(requests):
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200 or not json.loads(answer.read())["choices"][0]["text"]:
                sys.exit(f"status {answer.status}")
        gateway.end()
        print(*gateway.wait_for(r"Collected : (\d+)"))


main()
