"""What every Python client's file needs: checks, what is expected, and what the gateway and its engines still have open."""
import json
import os
import sys
import time
import urllib.request

GATEWAY = os.environ["GATEWAY"]
KEY = os.environ["KEY"]
# A key whose tokens per minute are less than one answer takes.
POOR_KEY = os.environ["POOR_KEY"]
# A gateway whose engines are not there.
DESERTED = os.environ["DESERTED"]
# Whole addresses of simulated engines, prefiller and decoder.
ENGINES = os.environ["ENGINES"].split()
# What an engine that serves alone answers to the same questions.
EXPECTED = json.loads(os.environ["EXPECTED"])
# The line of docs/clients.md for this client, for this gateway and key.
LINE = os.environ.get("LINE", "")
QUESTION = EXPECTED["question"]
TOKENS = EXPECTED["tokens"]
# Engines take 20 s and more for it, so that nothing ends by itself while one looks.
LONG = int(os.environ.get("LONG", "4000"))
SETTLE_SECONDS = 5

_ok = 0
_wrong = []


def check(name, holds, seen=""):
    global _ok
    if holds:
        _ok += 1
    else:
        _wrong.append(name)
        print(f"WRONG  {name}: {str(seen)[:800]}", flush=True)


def equal(name, seen, expected):
    check(name, seen == expected, f"{seen!r} is not {expected!r}")


def guarded(work):
    """A check that raises is a wrong check, and the others still run."""
    try:
        work()
    except Exception as error:  # whatever the client makes of an answer
        check(work.__name__, False, f"{type(error).__name__}: {error}")


def raised(name, kind, work):
    """The error of `kind` that `work` raises, or None, which is wrong."""
    try:
        work()
    except kind as error:
        check(f"{name}: {kind.__name__}", True)
        return error
    except Exception as error:
        check(f"{name}: {kind.__name__}", False, f"{type(error).__name__}: {error}")
    else:
        check(f"{name}: {kind.__name__}", False, "no error")
    return None


def ask(url, body=None):
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def still_open():
    """What the gateway and the engines still have to do; empty when they are idle."""
    of_gateway = [one for one in ask(f"{GATEWAY}/instances")["instances"] if one["requests"] or one["held_tokens"]]
    names = ("running", "waiting", "pinned_handoffs")
    of_engines = [ledger for ledger in (ask(f"{engine}/sim/ledger") for engine in ENGINES) if any(map(ledger.get, names))]
    return of_gateway + of_engines


def abandoned(name, leave):
    """`leave` hangs up on an answer under way; afterwards nobody works on it."""
    check(f"{name}: it was under way", still_open())
    leave()
    end = time.monotonic() + SETTLE_SECONDS
    while (left := still_open()) and time.monotonic() < end:
        time.sleep(0.05)
    check(f"{name}: nothing is left open", not left, left)


def will_break(path, text):
    """The decoder breaks off the next answer at `path` to a prompt with this text, in the middle of its stream."""
    fault = {"path": path, "contains": text, "times": 1, "what": {"kind": "end_after_events", "events": 6}}
    ask(f"{ENGINES[1]}/sim/faults", fault)


BROKEN_MESSAGE = "the answer ended before it was complete"


def done(client, version):
    if _wrong:
        print(f"client {client} {version}: {len(_wrong)} of {_ok + len(_wrong)} checks WRONG")
        sys.exit(1)
    print(f"client {client} {version}: {_ok} checks ok")
