#!/usr/bin/env python3
"""Counts the instructions of a gateway that serves requests, one after the other, under valgrind.

`instructions.py` names the scenes, `instructions.py PROGRAM SCENE` prints what one request (or event) of a scene takes. Engines are
simulated, as processes of the same program, and not counted. Neither are the gateway's start, in which it measures its clocks,
nor the first requests, nor its end: counting is switched on and off while nothing is to be done.
"""
import contextlib
import http.client
import json
import pathlib
import subprocess
import sys
import tempfile

from processes import WAIT_SECONDS, Process, get

GOLDEN = pathlib.Path(__file__).parent.resolve() / "golden"
VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no"]
LISTENS = r" on http://([0-9.]+:[0-9]+)"
# What a gateway does by the clock costs the more the busier the machine is: none of it is counted, as far as it can be left out.
QUIET = ["log.level=info", "health.probe_ms=0", "dialect.name=kv_transfer"]
TOKENS = ["prompt.tokens=local", f"prompt.model_path={GOLDEN}", f"prompt.chat_template={GOLDEN}/templates/qwen3.jinja",
          "prompt.verify=false", "hash.block_tokens=16"]


def completion(words, number, max_tokens=4):
    # Each prompt is another one from its first block on.
    return "/v1/completions", {"prompt": f"{number} " + "some words " * words, "max_tokens": max_tokens}


def chat(words, number):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": f"{number} " + "some words " * words}], "max_tokens": 4}


def streams(numbers):
    """Four, which have so many events together."""
    asks = [completion(18, number, len(numbers) // 4) for number in numbers[:4]]
    return [(path, body | {"stream": True}) for path, body in asks]


# Name: how many are counted, settings, and the requests for these numbers.
SCENES = {
    "a whole request, 200 B, logged": (300, [], lambda numbers: [completion(18, number) for number in numbers]),
    "a prompt of 128 KB": (10, [], lambda numbers: [completion(11_900, number) for number in numbers]),
    "a chat of 8 KB, its tokens and hashes": (40, TOKENS, lambda numbers: [chat(740, number) for number in numbers]),
    "an event of a stream": (2_000, [], streams),
}
# As many come before: connections are made, and what is done once is done.
BEFORE = 8


def asked(connection, path, body):
    """Asks, and reads the answer to its end."""
    connection.request("POST", path, json.dumps({"model": "sim"} | body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    whole = text.rstrip().endswith("data: [DONE]") if body.get("stream") else json.loads(text).get("choices")
    if answer.status != 200 or not whole:
        sys.exit(f"status {answer.status}: {text[:500]}")


def counted(program, settings, requests, count):
    """What the gateway takes for `count` of them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        def start(name, *command):
            process = Process(folder, name, command)
            stack.callback(process.end)
            return process, *process.wait_for(LISTENS)

        flags = ["--host", "127.0.0.1", "--port", "0", "--workers", "1", "--log-level", "warning"]
        for number, role in enumerate(["prefill", "prefill", "decode", "decode"]):
            _, address = start(f"{role}-{number}", program, "sim", "--port", "0", "--role", role, "--kv-blocks", "65536")
            flags += [f"--{role}", f"http://{address}"]
        flags += [word for setting in (*QUIET, *settings) for word in ("--set", setting)]
        # It says where it listens only in the log.
        gateway, address = start("gateway", *VALGRIND, program, *flags)
        connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS)

        def instrument(switch):
            subprocess.run(["callgrind_control", f"--instr={switch}", str(gateway.process.pid)], check=True, capture_output=True, timeout=60)

        for path, body in requests(range(BEFORE)):
            asked(connection, path, body)
        instrument("on")
        for path, body in requests(range(BEFORE, BEFORE + count)):
            asked(connection, path, body)
        instrument("off")
        if settings is TOKENS and f'pd_proxy_prompts_total{{tokens="exact",reason="none"}} {BEFORE + count}' not in get(address, "/metrics"):
            sys.exit(f"the tokens of these prompts are not known:\n{gateway.said()}")
        gateway.end()
        return int(*gateway.wait_for(r"Collected : (\d+)"))


def main():
    if len(sys.argv) == 1:
        return print("\n".join(SCENES))
    program, (count, settings, requests) = pathlib.Path(sys.argv[1]).resolve(), SCENES[sys.argv[2]]
    print(counted(program, settings, requests, count) // count)


main()
