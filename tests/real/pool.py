#!/usr/bin/env python3
"""What the gateway's own lookup finds in a real Mooncake store is what two real engines put there.

pool.sh starts the engines and runs this. What is right is told without the gateway: from the token ids in the decoder's
answers (the blocks that a prompt shares with those before it), the number of keys that the master holds, and what the
prefiller loads once its own cache is emptied. Exit status 0: equal throughout, and a wrong hash seed was noticed.
"""
import argparse
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import pool_outage
from kv_events import CHATS, COMPLETIONS, PARA, said, system, user
from proof import Serving

DEADLINE_MS = 200
FRESH_MS = 1000
WAIT_SECONDS = 300

TURN = [system("The whole of it. " + PARA * 2), user("One? " + PARA * 3)]
IDS = [(23 + 11 * i) % 2000 + 3 for i in range(330)]
# Name, path, request; those in pairs differ in one thing at the beginning.
FEW = [
    ("chat with system prompt", True, {"messages": TURN}),
    ("its next turn", True, {"messages": [*TURN, said("So. " + PARA), user("Two?")]}),
    ("Chinese and emoji", True, {"messages": [system("池子里有什么？"), user("世界 😀 👩‍👩‍👧 é " * 9)]}),
    ("token ids", False, {"prompt": IDS}),
    ("salted", False, {"prompt": "With salt. " + PARA * 4, "cache_salt": "a"}),
]
OTHERS = [
    ("another first token", False, {"prompt": [IDS[0] + 1, *IDS[1:]]}),
    ("token ids with a salt", False, {"prompt": IDS, "cache_salt": "b"}),
    ("another salt", False, {"prompt": "With salt. " + PARA * 4, "cache_salt": "c"}),
    ("no salt", False, {"prompt": "With salt. " + PARA * 4}),
    ("another system prompt", True, {"messages": [system("The half of it. " + PARA * 2), TURN[1]]}),
    ("less than a block", False, {"prompt": IDS[5:25]}),
]
MANY = [(name, True, request) for name, request, _ in CHATS] + [(name, False, r) for name, r, _ in COMPLETIONS]


def tagged(request, tag):
    """The request with another beginning."""
    request = copy.deepcopy(request)
    if not tag:
        return request
    if "messages" in request:
        first = request["messages"][0]
        parts = first["content"]
        if isinstance(parts, list):
            parts[0]["text"] = tag + parts[0]["text"]
        else:
            first["content"] = tag + parts
    elif isinstance(request["prompt"], str):
        request["prompt"] = tag + request["prompt"]
    else:
        request["prompt"] = [sum(tag.encode()), *request["prompt"]]
    return request


def fetch(url, body=None, headers=None, timeout=120):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    return urllib.request.urlopen(request, timeout=timeout).read().decode()


class Gateway(Serving):
    """A gateway before both engines, which asks the pool."""

    def __init__(self, args, kind, seed="0", more=None):
        self.kind = kind
        self.asked = 0
        address = args.store if kind == "mooncake_http" else args.master
        settings = {
            "prompt.tokens": "local",
            "prompt.verify_interval_ms": 1000,
            "hash.seed": f'"{seed}"',
            "key.preset": "mooncake-store-0.30",
            "pool.kind": kind,
            "pool.addresses": json.dumps([address]),
            "pool.deadline_ms": DEADLINE_MS,
            "pool.fresh_ms": FRESH_MS,
            "log.format": "json",
            **(more or {}),
        }
        command = [args.gateway, "--host", "127.0.0.1", "--port", "0", "--model-path", args.model]
        command += ["--prefill", args.prefill, "--decode", args.decode]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PD_PROXY", "PYTHONHASHSEED"))}
        self.process = subprocess.Popen(command, stdout=self.file, stderr=self.file, env=environment)

    def metrics(self):
        url = self.line(r"listening on (http://[0-9.:]+)")[1] + "/metrics"
        lines = fetch(url).splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))

    def verdicts(self):
        """How many lookups ended how."""
        found = {}
        for name, value in self.metrics().items():
            if name.startswith("pd_proxy_pool_lookups_total{"):
                found[re.search(r'verdict="(\w+)"', name)[1]] = int(value)
        return found

    def post(self, chat, request, name="unnamed"):
        """The decoder's answer."""
        body = {"model": "tiny", "temperature": 0, "max_tokens": 3, "return_token_ids": True, **request}
        url = self.line(r"listening on (http://[0-9.:]+)")[1]
        path = "/v1/chat/completions" if chat else "/v1/completions"
        return json.loads(fetch(url + path, body, {"x-request-id": name}))

    def ask(self, chat, request):
        """The prompt's token ids by the decoder, and the line of the gateway's log."""
        self.asked += 1
        name = f"asked-{self.asked}"
        answer = self.post(chat, request, name)
        ids = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
        return ids, json.loads(self.line(rf'(?m)^\{{.*"message":"request","id":"{name}".*\}}$')[0])


class Pool:
    """The real master, and what the engines must have put there."""

    def __init__(self, args):
        self.args = args
        self.block = int(args.block)
        self.prompts = []  # salt and token ids of each
        self.deadline_ms = DEADLINE_MS
        self.wrong = 0
        self.compared = 0

    def keys(self):
        """All that are written and not lost again: keys are listed before they are written."""
        listed = fetch(f"http://{self.args.store}/get_all_keys").split()
        if not listed:
            return set()
        found = json.loads(fetch(f"http://{self.args.store}/batch_query_keys?keys={','.join(listed)}"))["data"]
        return {key for key in listed if found[key]["ok"]}

    def shared(self, salt, ids):
        """Leading tokens of whole blocks that an earlier prompt has, too."""
        best = 0
        for other_salt, other in self.prompts:
            if other_salt == salt:
                same = next((i for i, (a, b) in enumerate(zip(ids, other)) if a != b), min(len(ids), len(other)))
                best = max(best, same // self.block * self.block)
        return best

    def settled(self, before, blocks):
        """The keys that came, as soon as they are so many and no more come."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            came = self.keys() - before
            if len(came) >= blocks:
                time.sleep(0.3)
                if self.keys() - before == came:
                    return came
            time.sleep(0.1)
        return self.keys() - before

    def tell(self, name, wrong, text):
        self.compared += 1
        self.wrong += bool(wrong)
        print(f"{'WRONG' if wrong else 'ok'} {name}: {text}{''.join('; ' + w for w in wrong)}", flush=True)

    def new(self, gateway, case, fresh=False):
        """A prompt for the first time: it has what it shares with others, and then its other blocks are stored.

        With `fresh` it must share nothing."""
        name, chat, request = case
        before = self.keys()
        ids, line = gateway.ask(chat, request)
        salt = request.get("cache_salt")
        shared, full = self.shared(salt, ids), len(ids) // self.block * self.block
        came = self.settled(before, (full - shared) // self.block)
        pooled, wrong = line.get("pooled_tokens"), []
        if pooled != shared or (fresh and shared):
            wrong.append(f"{shared} tokens are shared with earlier prompts")
        if len(came) * self.block != full - shared:
            wrong.append(f"the store got {len(came)} keys for {full - shared} tokens")
        self.prompts.append((salt, ids))
        self.tell(f"new, {name}", wrong, f"{len(ids)} tokens, {pooled} in the pool, {len(came)} keys came")

    def again(self, gateway, case, compare=True):
        """A prompt whose blocks are all stored, asked of engines with empty caches; whether the pool has it whole."""
        name, chat, request = case
        for engine in (self.args.prefill, self.args.decode):
            fetch(f"http://{engine}/reset_prefix_cache", {})
        ids, line = gateway.ask(chat, request)
        full = self.shared(request.get("cache_salt"), ids)
        # The last token is always computed, and with it the whole block that it ends.
        usable = min(full, (len(ids) - 1) // self.block * self.block)
        pooled, loaded, wrong = line.get("pooled_tokens"), line.get("cached_tokens"), []
        if full != len(ids) // self.block * self.block:
            wrong.append("it was not stored")
        if pooled != full:
            wrong.append(f"{full // self.block} blocks are stored, {full} tokens")
        if loaded != usable:
            wrong.append(f"the engine can use {usable}")
        if compare:
            self.tell(f"again, {name}", wrong, f"{len(ids)} tokens, {pooled} in the pool, the engine loaded {loaded}")
        return pooled, full

    def counted(self, gateway):
        verdicts = {k: v for k, v in gateway.verdicts().items() if v}
        wrong = [] if verdicts == {"answered": gateway.asked} else [f"{gateway.asked} requests"]
        self.tell(f"{gateway.kind}, lookups by verdict", wrong, str(verdicts))


def rounds(pool, gateway, cases, tag):
    """Every prompt for the first time, every prompt again, and prompts that differ at the beginning."""
    cases, others = ([(n, c, tagged(r, tag)) for n, c, r in some] for some in (cases, OTHERS))
    for case in cases:
        pool.new(gateway, case)
    time.sleep(2 * FRESH_MS / 1000)
    for case in cases:
        pool.again(gateway, case)
    for case in others:
        pool.new(gateway, case, fresh=True)
    pool.counted(gateway)
    return cases


def misled(pool, cases):
    """With a wrong hash seed nothing is found, which the comparison notices."""
    with Gateway(pool.args, "mooncake", seed="1") as gateway:
        gateway.shows(tokens_proven=1, block_names_known=1)
        found = [pool.again(gateway, case, compare=False) for case in cases]
    noticed = sum(pooled == 0 < full for pooled, full in found)
    wrong = [] if noticed == len(cases) else [f"{noticed} noticed"]
    pool.tell("hash.seed=1", wrong, f"nothing is found of {noticed} of {len(cases)} stored prompts")


def simulated(args, port):
    """An engine that answers at once, whatever becomes of the pool."""
    command = [args.gateway, "sim", "--port", port, "--model", "tiny", "--connector", "pool", "--block-tokens", args.block]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def trouble(pool, gateways, stored):
    """The master fails, under the gateways before the real engines, and under others before a simulated one."""
    args = copy.copy(pool.args)
    args.prefill = args.decode = f"127.0.0.1:{args.sim}"
    known = {"prompt.verify": "false", "hash.version": "0.32.0", "hash.algo": "sha256", "hash.block_tokens": args.block}
    engine = simulated(args, args.sim)
    try:
        with Gateway(args, "mooncake", more=known) as rpc, Gateway(args, "mooncake_http", more=known) as http:
            for gateway in (rpc, http):
                gateway.shows(block_names_known=1)
            pool_outage.stopped(pool, (rpc, http))
            pool_outage.killed(pool, gateways, (rpc, http), stored)
    finally:
        engine.kill()
        engine.wait()
    afterwards(pool, gateways)


def afterwards(pool, gateways):
    """The engines store again, and it is found again."""
    pool.prompts.clear()
    pool.settled(set(), 0)
    for gateway in gateways:
        case = (f"{gateway.kind}, afterwards", True, tagged(FEW[0][2], f"Afterwards, {gateway.kind}. "))
        pool.new(gateway, case)
        time.sleep(2 * FRESH_MS / 1000)
        pool.again(gateway, case)


def main():
    parser = argparse.ArgumentParser()
    for flag in ("gateway", "model", "prefill", "decode", "master", "store", "block", "pid", "restart", "sim", "cases"):
        parser.add_argument(f"--{flag}", required=True)
    args = parser.parse_args()
    pool = Pool(args)
    with Gateway(args, "mooncake") as rpc, Gateway(args, "mooncake_http") as http:
        for gateway in (rpc, http):
            gateway.shows(tokens_proven=1, block_names_known=1)
        cases = rounds(pool, rpc, MANY + FEW if args.cases == "all" else FEW, "")
        others = rounds(pool, http, FEW, "Over HTTP. ")
        if args.cases == "all":
            misled(pool, cases)
            trouble(pool, (rpc, http), (others[2], others[4]))
    expected = {"all": 2 * (len(MANY) + 2 * len(FEW)) + 2 * len(OTHERS) + 18, "few": 4 * len(FEW) + 2 * len(OTHERS) + 2}
    print(f"{pool.compared - pool.wrong} of {pool.compared} cases equal, {expected[args.cases]} expected", flush=True)
    sys.exit(0 if pool.wrong == 0 and pool.compared == expected[args.cases] else 1)


if __name__ == "__main__":
    main()
