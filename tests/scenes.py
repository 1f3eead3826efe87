"""Scenes for a gateway between simulated engines: to count what it takes for them (instructions.py), and to learn what of it is run
often (benches/pgo/train.py). Requests come one after the other."""
import contextlib
import http.client
import json
import pathlib
import sys
import tempfile

from processes import WAIT_SECONDS, Process

GOLDEN = pathlib.Path(__file__).parent.resolve() / "golden"
LISTENS = r" on http://([0-9.]+:[0-9]+)"
# What a gateway does by the clock costs the more the busier the machine is: none of it, as far as it can be left out.
FLEETS = "fleets="
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


# Fleets side by side: the engines are those of the first; of the others nobody is asked.
def fleets(count):
    return [f"{FLEETS}{count}"]


# Tokens come so slowly that each is a piece of its own, on a busy machine too: several at once cost less.
SLOW = ["--tpot-ms", "12"]
# Engines that answer as vLLM 0.33: each event of a stream has a member more.
OF_33 = ["--release", "0.33"]

# Name: how many of it, settings, the requests for these numbers, and flags of the engines.
SCENES = {
    "a whole request, 200 B, logged": (300, [], lambda numbers: [completion(18, number) for number in numbers], []),
    "a whole request, one fleet by name": (300, fleets(1), lambda numbers: [completion(18, number) for number in numbers], []),
    "a whole request, one of 20 fleets": (300, fleets(20), lambda numbers: [completion(18, number) for number in numbers], []),
    "a prompt of 128 KB": (40, [], lambda numbers: [completion(11_900, number) for number in numbers], []),
    "a chat of 8 KB, its tokens and hashes": (40, TOKENS, lambda numbers: [chat(740, number) for number in numbers], []),
    "an event of a stream": (2_000, [], streams, SLOW),
    "an event of a stream, vLLM 0.33": (2_000, [], streams, SLOW + OF_33),
}


def asked(connection, path, body):
    """Asks, and reads the answer to its end."""
    connection.request("POST", path, json.dumps({"model": "sim"} | body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    whole = text.rstrip().endswith("data: [DONE]") if body.get("stream") else json.loads(text).get("choices")
    if answer.status != 200 or not whole:
        sys.exit(f"status {answer.status}: {text[:500]}")


@contextlib.contextmanager
def gateway(program, settings, under=(), env=None, engines=()):
    """A gateway of `program` between two prefillers and two decoders of the same, itself run by the command `under` and with `env`, they
    with the flags `engines`: its process, its address and a connection to it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        def start(name, *command, env=None):
            process = Process(folder, name, command, env)
            stack.callback(process.end)
            return process, *process.wait_for(LISTENS)

        flags = ["--host", "127.0.0.1", "--port", "0", "--workers", "1", "--log-level", "warning"]
        addresses = {"prefill": [], "decode": []}
        for number, role in enumerate(["prefill", "prefill", "decode", "decode"]):
            _, address = start(f"{role}-{number}", program, "sim", "--port", "0", "--role", role, "--kv-blocks", "65536", *engines)
            addresses[role].append(f"http://{address}")
        count = sum(int(setting.removeprefix(FLEETS)) for setting in settings if setting.startswith(FLEETS))
        said = [setting for setting in settings if not setting.startswith(FLEETS)]
        if not count:
            flags += [word for role, of in addresses.items() for address in of for word in (f"--{role}", address)]
        for number in range(count):
            # Nothing listens at the ports of the others.
            of = addresses if number == 0 else {"prefill": [f"127.0.0.1:{number * 2}"], "decode": [f"127.0.0.1:{number * 2 + 1}"]}
            said += [f"fleets.f{number}.fleet.{role}={','.join(at)}" for role, at in of.items()]
            said.append(f"fleets.f{number}.fleet.model={'sim' if number == 0 else f'model-{number}'}")
        flags += [word for setting in (*QUIET, *said) for word in ("--set", setting)]
        # It says where it listens only in the log.
        process, address = start("gateway", *under, program, *flags, env=env)
        yield process, address, http.client.HTTPConnection(address, timeout=WAIT_SECONDS)
