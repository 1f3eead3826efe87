"""Runs the clients of this folder against a gateway, and says whether they get what an engine alone would have told them."""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from processes import Process, ask_json  # noqa: E402
from stand_in import stand_in  # noqa: E402

CACHE = pathlib.Path(os.environ.get("TMPDIR", "/tmp"), "pd-proxy-clients")
PROGRAM = pathlib.Path(os.environ.get("PD_PROXY", "target/release/pd-proxy")).resolve()
INSTALL_SECONDS = 900
CLIENT_SECONDS = 120
# The gateway has another fleet with another model beside the one that clients ask for.
TWO_MODELS = bool(os.environ.get("TWO_MODELS"))
# The name that clients ask for is an alias: engines know their model by this one.
OWN_NAME = "engines-own" if os.environ.get("TWO_MODELS") == "alias" else "sim"
NOT_RUN = 77
LISTENS = r"on (http://127\.0\.0\.1:\d+)"
KEY, POOR_KEY = "sk-good", "sk-poor"
QUESTION = "Which leg comes first, and who keeps its blocks?"
TOKENS = 24

# Name: the file, and the pins that it is installed from.
CLIENTS = {
    "curl": ("with_curl.py", None),
    "openai-python": ("with_openai.py", "openai"),
    "openai-node": ("with_openai.mjs", "node"),
    "anthropic-python": ("with_anthropic.py", "anthropic"),
    "anthropic-node": ("with_anthropic.mjs", "node"),
    "langchain": ("with_langchain.py", "langchain"),
    "langchain-js": ("with_langchain.mjs", "node"),
    "pydantic-ai": ("with_pydantic_ai.py", "pydantic-ai"),
    "ai-sdk": ("with_ai_sdk.mjs", "node"),
    "litellm": ("with_litellm.py", "litellm"),
    "litellm-proxy": ("with_litellm_proxy.py", "litellm"),
    "chat-page": ("with_chat_page.py", "gradio"),
    "claude-code": ("with_claude_code.py", "claude-code"),
}
# Pins that are packages of Node, and where they are listed; the others are lists of pip's.
NODE = {"node": HERE, "claude-code": HERE / "claude-code"}


class NoIndex(Exception):
    """No package index is in reach."""


def run(*command, **more):
    """The status and all output of a command."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_SECONDS, **more)
    return ended.returncode, ended.stdout


def installed(pins):
    """The interpreter with everything that `pins` names, and its folder; from the cache where they are there."""
    if pins is None:
        return sys.executable, HERE
    node = NODE.get(pins)
    lists = [node / "package.json", node / "package-lock.json"] if node else [HERE / "pins" / f"{pins}.txt"]
    version = hashlib.sha256(b"".join(file.read_bytes() for file in lists)).hexdigest()[:12]
    folder = CACHE / f"{pins}-{version}"
    program = shutil.which("node") if node else str(folder / "bin" / "python")
    if (folder / "complete").exists():
        return program, folder
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.monotonic()
    if node:
        if not program or not shutil.which("npm"):
            raise NoIndex("there is no Node here")
        folder.mkdir(parents=True)
        for file in lists:
            shutil.copy(file, folder)
        status, said = run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=folder)
        reach = ("npm", "ping")
    else:
        status, said = run(sys.executable, "-m", "venv", str(folder))
        # The pins name all that is needed, so there is nothing to resolve.
        pip = (program, "-m", "pip", "--disable-pip-version-check")
        if status == 0:
            status, said = run(*pip, "install", "--quiet", "--no-deps", "--prefer-binary", "-r", str(lists[0]))
        reach = (*pip, "download", "--quiet", "--no-deps", "--dest", str(folder), "idna")
    if status != 0:
        if run(*reach)[0] != 0:
            raise NoIndex((said.strip().splitlines() or ["no package index"])[-1][-300:])
        sys.exit(f"clients: {pins} can't be installed:\n{said[-3000:]}")
    (folder / "complete").touch()
    print(f"installed {pins} in {time.monotonic() - begun:.0f} s", flush=True)
    return program, folder


def documented_line(name):
    """What docs/clients.md has for a client, as it stands there."""
    text = (HERE.parent.parent / "docs/clients.md").read_text()
    found = re.search(rf"<!-- client {re.escape(name)} -->\n```[a-z]*\n(.*?)```", text, re.S)
    return found.group(1) if found else ""


def expected(engine):
    """What an engine that serves alone answers, whole, by the API's name. `engine` is its URL."""
    message = [{"role": "user", "content": QUESTION}]
    tool = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}}
    bodies = {
        "chat": ("/v1/chat/completions", {"messages": message, "max_tokens": TOKENS}),
        "completion": ("/v1/completions", {"prompt": QUESTION, "max_tokens": TOKENS}),
        "messages": ("/v1/messages", {"messages": message, "max_tokens": TOKENS}),
        "responses": ("/v1/responses", {"input": QUESTION, "max_output_tokens": TOKENS}),
        "tool": ("/v1/chat/completions", {"messages": message, "max_tokens": TOKENS, "tools": [tool],
                                          "tool_choice": {"type": "function", "function": {"name": "note"}}}),
        "embeddings": ("/v1/embeddings", {"input": ["one", "another"]}),
    }
    answers = {name: ask_json(engine, path, body | {"model": "sim"}) for name, (path, body) in bodies.items()}
    return answers | {"question": QUESTION, "tokens": TOKENS, "tool_definition": tool}


def fleet(stack, folder):
    """Starts engines and gateways; the environment that clients are told of them."""
    def start(name, *arguments):
        process = Process(folder, name, [PROGRAM, *arguments])
        stack.callback(process.end)
        return process.wait_for(LISTENS)[0]

    demo = Process(folder, "demo", [PROGRAM, "demo", "--port", "0", "--tokens-per-s", "500", "--log-level", "warning"])
    stack.callback(demo.end)
    lines = demo.wait_for(r"(?ms)^(curl .*?)\n.*^(curl .*?)\n")
    prefiller, decoder = (start(role, "sim", "--port", "0", "--role", role, "--model", OWN_NAME) for role in ("prefill", "decode"))
    alone = start("both", "sim", "--port", "0", "--role", "both")
    keys = pathlib.Path(folder, "keys.toml")
    entry = '[[key]]\nname = "{}"\nsha256 = "{}"\n{}\n'
    digest = {key: hashlib.sha256(key.encode()).hexdigest() for key in (KEY, POOR_KEY)}
    keys.write_text(entry.format("good", digest[KEY], "admin = true") + entry.format("poor", digest[POOR_KEY], "tokens_per_minute = 10"))
    gateway = ("--host", "127.0.0.1", "--port", "0", "--set", f'auth.keys_file="{keys}"')
    if TWO_MODELS:
        others = [start(f"other-{role}", "sim", "--port", "0", "--role", role, "--model", "another") for role in ("prefill", "decode")]
        fleets = {"one": (prefiller, decoder, OWN_NAME), "two": (*others, "another")}
        said = [f"fleets.{name}.fleet.{key}={value}" for name, of in fleets.items() for key, value in zip(("prefill", "decode", "model"), of)]
        if OWN_NAME != "sim":
            said.append(f"fleets.one.fleet.aliases=sim={OWN_NAME}")
        address = start("gateway", *gateway, *(word for setting in said for word in ("--set", setting)))
    else:
        address = start("gateway", *gateway, "--prefill", prefiller, "--decode", decoder)
    # Nothing listens on port 1.
    deserted = start("deserted", *gateway, "--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:1")
    kept = {name: value for name, value in os.environ.items()
            if not re.match(r"(?i)(openai|anthropic|litellm|langchain|langsmith)_|(http|https|all)_proxy$", name)}
    return kept | {
        "PROGRAM": str(PROGRAM), "KEYS": str(keys), "GATEWAY": address, "DESERTED": deserted, "ENGINES": f"{prefiller} {decoder}", "KEY": KEY, "POOR_KEY": POOR_KEY,
        "MODELS": " ".join(dict.fromkeys([OWN_NAME, "sim", *(["another"] if TWO_MODELS else [])])),
        "ALONE": alone, "DEMO_LINES": "\n".join(lines),
        "EXPECTED": json.dumps(expected(alone)), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(HERE.parent),
    }


def run_client(name, environment):
    """Runs one client; its status and what it said."""
    file, pins = CLIENTS[name]
    program, folder = installed(pins)
    source = HERE / file
    if pins == "node":
        # Node looks for packages beside the file.
        for script in HERE.glob("*.mjs"):
            shutil.copy(script, folder)
        source = folder / file
    if pins in NODE and file.endswith(".py"):
        program = sys.executable
    line = documented_line(name)
    for written, real in (("http://127.0.0.1:8000", environment["GATEWAY"]), ("sk-…", KEY)):
        line = line.replace(written, real)
    ended = subprocess.run([program, str(source)], env=environment | {"LINE": line, "PACKAGES": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, timeout=CLIENT_SECONDS)
    return ended.returncode, ended.stdout


def self_test(names, environment):
    """Whether clients' checks see a server that answers wrongly: nothing at all, or other words."""
    good = True
    for name in names:
        for fault in ("empty", "meddling"):
            with stand_in(fault, environment["GATEWAY"]) as address:
                status, said = run_client(name, environment | {"GATEWAY": address, "LONG": "50"})
            seen = len(re.findall(r"^WRONG ", said, re.M))
            print(f"self-test {name}, a server that is {fault}: {seen} checks failed, as they must"
                  if status == 1 and seen else f"WRONG  self-test {name}, {fault}: status {status}\n{said[-2000:]}", flush=True)
            good = good and status == 1 and seen > 0
    return good


def main():
    names = sys.argv[1:] or list(CLIENTS)
    if unknown := set(names) - set(CLIENTS):
        sys.exit(f"clients: no such client: {' '.join(unknown)}; there are {' '.join(CLIENTS)}")
    if not os.access(PROGRAM, os.X_OK):
        sys.exit(f"clients: {PROGRAM} is not there: build it, or set PD_PROXY")
    # So that what was started ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wrong, missing, ran = [], [], []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        environment = fleet(stack, folder)
        for name in names:
            try:
                status, said = run_client(name, environment)
            except NoIndex as error:
                print(f"client {name}: NOT RUN: {error}", flush=True)
                missing.append(name)
                continue
            except subprocess.TimeoutExpired as error:
                status, said = 1, f"WRONG  {name} did not end within {error.timeout:.0f} s\n{error.stdout or ''}"
            ran.append(name)
            told = [line for line in said.splitlines() if line.startswith(("client ", "WRONG "))]
            print("\n".join(told) if status == 0 else said, flush=True)
            if status != 0 or not told:
                wrong.append(name)
        if not self_test([name for name in ("openai-python", "anthropic-node") if name in ran], environment):
            wrong.append("self-test")
    if wrong:
        sys.exit(f"clients: WRONG: {' '.join(wrong)}")
    if missing:
        print(f"clients: not run: {' '.join(missing)}")
        sys.exit(NOT_RUN)
    print("clients: all ok")


main()
