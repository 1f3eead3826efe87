#!/usr/bin/env python3
"""Counts the instructions of a gateway that serves requests, one after the other, under valgrind.

`instructions.py` names the scenes, `instructions.py PROGRAM SCENE` prints what one request (or event) of a scene takes. Engines are
simulated, as processes of the same program, and not counted. Neither are the gateway's start, in which it measures its clocks,
nor the first requests, nor its end: counting is switched on and off while nothing is to be done.
"""
import pathlib
import subprocess
import sys

from processes import get
from scenes import SCENES, TOKENS, asked, gateway

# Housekeeping is left out: it comes every two seconds, and so the more often the longer a busy machine takes.
VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no",
            "--toggle-collect=pd_proxy::app::loops::housekeeping::*", "--collect-atstart=yes"]
# As many come before: connections are made, and what is done once is done.
BEFORE = 8
# The longer a prefill takes, the more of what is done by the clock is counted. Tokens take their time: two that come at once cost less.
ENGINES = ["--prefill-tokens-per-s", "100000000"]


def counted(program, settings, requests, engines, count):
    """What the gateway takes for `count` of them."""
    with gateway(program, settings, under=VALGRIND, engines=[*ENGINES, *engines]) as (running, address, connection):
        def instrument(switch):
            subprocess.run(["callgrind_control", f"--instr={switch}", str(running.process.pid)], check=True, capture_output=True, timeout=60)

        for path, body in requests(range(BEFORE)):
            asked(connection, path, body)
        instrument("on")
        for path, body in requests(range(BEFORE, BEFORE + count)):
            asked(connection, path, body)
        instrument("off")
        if settings is TOKENS and f'pd_proxy_prompts_total{{tokens="exact",reason="none"}} {BEFORE + count}' not in get(address, "/metrics"):
            sys.exit(f"the tokens of these prompts are not known:\n{running.said()}")
        running.end()
        return int(*running.wait_for(r"Collected : (\d+)"))


def main():
    if len(sys.argv) == 1:
        return print("\n".join(SCENES))
    program, (count, settings, requests, engines) = pathlib.Path(sys.argv[1]).resolve(), SCENES[sys.argv[2]]
    print(counted(program, settings, requests, engines, count) // count)


main()
