#!/usr/bin/env python3
"""Shows an instrumented gateway what it will have to do most: `train.py PROGRAM FOLDER` leaves in the folder what was run how often.

The scenes are those of tests/scenes.py, many times over, and streams side by side. Engines are simulated, by the same program, and what
they run is not looked at. What comes seldom (errors, reloads, a pool) stays out: of that nothing is
said, and it is compiled as it would be without a profile.
"""
import concurrent.futures
import http.client
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests"))
from processes import WAIT_SECONDS, get  # noqa: E402
from scenes import SCENES, asked, completion, gateway  # noqa: E402

# Of each scene. Streams weigh most: a request has hundreds of events.
ROUNDS = 8
# Nobody learns from waiting.
ENGINES = ["--prefill-tokens-per-s", "2000000", "--tpot-ms", "1", "--slope-ms", "0"]
STREAMS_AT_ONCE = 16
STREAMS = 96
EVENTS = 400


def stream(address, number):
    path, body = completion(18, number, EVENTS)
    asked(http.client.HTTPConnection(address, timeout=WAIT_SECONDS), path, body | {"stream": True})


def main():
    program, folder = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    # Engines inherit the first of these.
    os.environ["LLVM_PROFILE_FILE"] = "/dev/null"
    env = os.environ | {"LLVM_PROFILE_FILE": str(folder / "%p.profraw")}
    for name, (count, settings, requests, engines) in SCENES.items():
        with gateway(program, settings, env=env, engines=[*ENGINES, *engines]) as (_, address, connection):
            for begin in range(0, ROUNDS * count, count):
                for path, body in requests(range(begin, begin + count)):
                    asked(connection, path, body)
            if "stream" in name:
                with concurrent.futures.ThreadPoolExecutor(STREAMS_AT_ONCE) as pool:
                    list(pool.map(lambda number: stream(address, number), range(STREAMS)))
            get(address, "/metrics")
        print(f"trained: {name}", flush=True)
    # Who is killed leaves none.
    learnt = [file for file in folder.glob("*.profraw") if file.stat().st_size]
    if len(learnt) != len(SCENES):
        sys.exit(f"{len(learnt)} of {len(SCENES)} gateways have left what they ran")


main()
