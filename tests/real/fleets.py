#!/usr/bin/env python3
"""Two fleets of real engines behind one gateway.

fleets.sh starts the engines and runs this. What is right is told by one plain engine of each model, by the engines' own counts, and
by the lists that engines give. Exit status 0: all as it should be.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from kv_events import PARA
from proof import Serving

CASES = 52
REQUESTS = 200
AT_ONCE = 8
ADAPTER = "sql"
CHAT = {"prefill": ["127.0.0.1:8101", "127.0.0.1:8102"], "decode": ["127.0.0.1:8201"], "ref": "127.0.0.1:8301"}
CODE = {"prefill": ["127.0.0.1:8103"], "decode": ["127.0.0.1:8202"], "ref": "127.0.0.1:8302"}
# Engines that get the adapter from somebody else than the gateway: one prefiller of two lacks it.
WITH_ADAPTER = [CHAT["prefill"][1], CHAT["decode"][0]]
# Long before it is looked for, it is computed and stored.
LONG = "Section of its own. " + PARA * 30
wrong = []


def check(what, right, shown=""):
    """Counts and prints an outcome."""
    print(("ok    " if right else "WRONG ") + what + (f"  {shown}" if shown != "" else ""), flush=True)
    if not right:
        wrong.append(what)


def fetch(url, body=None):
    """Status and text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def fleet(name, engines, model, path, pool):
    """The sections of one fleet: its own engines, tokenizer and pool keys."""
    return f"""
[fleets.{name}.fleet]
prefill = {json.dumps(engines["prefill"])}
decode = {json.dumps(engines["decode"])}
aliases = ["gpt-{name}={model}"]
[fleets.{name}.prompt]
model_path = "{path}"
tokens = "local"
verify_interval_ms = 1000
[fleets.{name}.hash]
seed = "0"
[fleets.{name}.key]
preset = "mooncake-store-0.30"
[fleets.{name}.pool]
kind = "mooncake"
addresses = ["{pool}"]
deadline_ms = 500
"""


class Gateway(Serving):
    """A gateway with both fleets."""

    def __init__(self, args):
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.config = tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8")
        self.config.write('[server]\nhost = "127.0.0.1"\nport = 0\n')
        self.config.write(fleet("chat", CHAT, "tiny", args.chat_model, args.pool))
        self.config.write(fleet("code", CODE, "code", args.code_model, args.pool))
        self.config.flush()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PD_PROXY", "PYTHONHASHSEED"))}
        command = [args.gateway, "--config", self.config.name]
        self.process = subprocess.Popen(command, stdout=self.file, stderr=self.file, env=environment)

    @property
    def url(self):
        """Where it listens."""
        return self.line(r"listening on (http://[0-9.:]+)")[1]

    def count(self, name, *labels):
        """Sum of the series of a metric that have all these labels."""
        lines = fetch(self.url + "/metrics")[1].splitlines()
        found = [line for line in lines if line.startswith(name) and all(label in line for label in labels)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def has_listed(self, *models):
        """True once it lists these models."""
        listed = {entry["id"] for entry in json.loads(fetch(self.url + "/v1/models")[1])["data"]}
        return listed.issuperset(models)


def compared(args, gateway, model, ref, decode):
    """check_equal.py on its way: 52 cases against the plain engine."""
    command = [sys.executable, args.check, "--url", gateway.url, "--ref", f"http://{ref}", "--decode", f"http://{decode}"]
    return subprocess.Popen([*command, "--model", model, "--token-ids"], stdout=subprocess.PIPE, text=True)


def compare_both(args, gateway, named, names):
    """Both fleets at the same time."""
    runs = []
    for (name, engines), model in zip(named, names):
        runs.append((name, model, compared(args, gateway, model, engines["ref"], engines["decode"][0])))
    for name, model, run in runs:
        said = run.communicate()[0]
        last = said.strip().splitlines()[-1] if said.strip() else "nothing"
        check(f"{name} as {model}", last == f"equal {CASES}, different 0, failed 0", last)
        if not last.startswith(f"equal {CASES},"):
            print(said)


def pools(gateway):
    """Each fleet finds in the pool what its own engines stored, by keys of its own, once their own caches are empty."""
    status, _ = fetch(gateway.url + "/reset_prefix_cache", {})
    check("caches of all engines are emptied", status == 200, status)
    for name, model in (("chat", "tiny"), ("code", "code")):
        body = {"model": model, "temperature": 0, "max_tokens": 2, "prompt": LONG}
        request = urllib.request.Request(gateway.url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            number = answer.headers["x-request-id"]
        placed = json.loads(fetch(f"{gateway.url}/debug/route/{number}")[1])["placements"][-1]
        winner = placed["winner"]
        found = winner["any_tokens"]
        check(f"{name}: blocks of the pool are found", found > 0 and winner["hbm_tokens"] == 0, f"{found} of {placed['request']['prompt_tokens']} tokens")
        check(f"{name}: its prefiller loads as many", placed["cached_tokens"] == found, placed["cached_tokens"])


def adapter_request(number):
    """Path and body of one of the requests for the adapter."""
    text = f"Number {number}. The import statement combines two operations."
    body = {"model": ADAPTER, "temperature": 0, "max_tokens": 4, "stream": number % 4 == 3}
    if number % 2:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
    return "/v1/completions", {**body, "prompt": text}


def said(path, text, is_stream):
    """The text of an answer."""
    events = re.findall(r"(?m)^data: (\{.*\})$", text) if is_stream else [text]
    choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
    if path.endswith("chat/completions"):
        parts = [choice.get("delta", choice.get("message"))["content"] for choice in choices]
    else:
        parts = [choice["text"] for choice in choices]
    return "".join(part or "" for part in parts)


def ask_for_adapter(gateway, ref, what):
    """200 requests at once after a change: none may be refused, and each is answered as the plain engine does."""
    def ask(number):
        path, body = adapter_request(number)
        status, text = fetch(gateway.url + path, body)
        if status != 200:
            return status, text[:300]
        want = fetch(f"http://{ref}{path}", body)[1]
        return status, said(path, text, body["stream"]) == said(path, want, body["stream"])

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, range(REQUESTS)))
    refused = [answer for answer in answers if answer[0] != 200]
    check(f"{what}: requests that are not answered", not refused, f"{len(refused)} of {REQUESTS} {refused[:2] or ''}")
    equal = sum(answer == (200, True) for answer in answers)
    check(f"{what}: answers as the plain engine's", equal == REQUESTS, f"{equal} of {REQUESTS}")


def order(at, path, body):
    """Loads or unloads the adapter."""
    status, text = fetch(f"http://{at}{path}", body)
    check(f"{path} at {at}", status == 200, "" if status == 200 else text[:300])


def adapters(args, gateway):
    """An adapter that comes without the gateway on some engines, then through it on all."""
    load = {"lora_name": ADAPTER, "lora_path": args.adapter}
    order(CHAT["ref"], "/v1/load_lora_adapter", load)
    # At the same time, so that the gateway has not read a list of either before the first request.
    with concurrent.futures.ThreadPoolExecutor(len(WITH_ADAPTER)) as pool:
        list(pool.map(lambda engine: order(engine, "/v1/load_lora_adapter", load), WITH_ADAPTER))
    ask_for_adapter(gateway, CHAT["ref"], "loaded at one of two prefillers")
    refused = gateway.count("pd_proxy_refusals_total", f'engine="{CHAT["prefill"][0]}"')
    check("the prefiller without it was not asked for it", refused == 0, refused)
    for engine in WITH_ADAPTER:
        order(engine, "/v1/unload_lora_adapter", {"lora_name": ADAPTER})
    at = gateway.url.removeprefix("http://")
    order(at, "/v1/load_lora_adapter?fleet=chat", load)
    ask_for_adapter(gateway, CHAT["ref"], "loaded through the gateway")
    order(at, "/v1/unload_lora_adapter?fleet=chat", {"lora_name": ADAPTER})
    path, body = adapter_request(0)
    status, _ = fetch(gateway.url + path, body)
    check("unloaded: 404", status == 404, status)


def main():
    parser = argparse.ArgumentParser()
    for name in ("gateway", "check", "chat-model", "code-model", "adapter", "pool"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    with Gateway(args) as gateway:
        gateway.until("list of both models", lambda: gateway.has_listed("tiny", "code"))
        named = [("chat", CHAT), ("code", CODE)]
        for model in ("tiny", "code"):
            status, _ = fetch(gateway.url + "/v1/completions", {"model": model, "max_tokens": 2, "prompt": LONG})
            check(f"{model}: a long prompt", status == 200, status)
        compare_both(args, gateway, named, ["tiny", "code"])
        compare_both(args, gateway, named, ["gpt-chat", "gpt-code"])
        pools(gateway)
        adapters(args, gateway)
        if wrong:
            print(gateway.said()[-6000:])
    print("all as it should be" if not wrong else f"{len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
