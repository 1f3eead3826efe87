#!/usr/bin/env python3
"""Compares the block hashes in a real vLLM engine's KV events with what `pd-proxy keys` makes of the same requests.

kv_events.sh runs it once per way of hashing. It starts the engine itself, because its socket must listen before the
engine connects, or events are lost. Exit status 0: equal throughout. The engine is left running.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import msgspec
import zmq

EVENTS = "tcp://127.0.0.1:5557"  # where the rig's prefiller publishes
WAIT_SECONDS = 30
WARM_UPS = 10
LOW_64 = (1 << 64) - 1
PARA = "The import statement combines two operations; it searches for the named module, then it binds the results. "
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place — today & tomorrow, in °C",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "A town, e.g. 東京"},
                    "days": {"type": "integer", "minimum": 1, "default": 1},
                },
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = '{"place": "北京 <old town>", "days": 2, "exact": true, "low": -1.50, "unit": null, "far": 1234567890123456}'


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def part(text):
    return {"type": "text", "text": text}


def called(content=None):
    function = {"name": "weather", "arguments": ARGUMENTS}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "晴", "high": 21.5}'}
TURNS = [
    system("Turn by turn. " + PARA),
    user("First question. " + PARA),
    said("First answer. " + PARA * 2),
    user("Second one?"),
]

# Name; request; members without which some hash must be another: a prompt that does not depend on them proves nothing.
# Every prompt starts with words of its own, so that all of its blocks are new, but the later turn, which shall not.
CHATS = [
    ("a user alone", {"messages": [user("A user alone. " + PARA * 4)]}, []),
    ("system prompt", {"messages": [system("You are terse. " + PARA), user(PARA)]}, []),
    ("several turns", {"messages": TURNS}, []),
    ("a later turn", {"messages": [*TURNS, said("Second answer. " + PARA), user("And a third?")]}, []),
    ("tools", {"messages": [system("Of tools. "), user(PARA)], "tools": TOOLS}, ["tools"]),
    (
        "tool call and result",
        {"messages": [system("Calling. "), user("Weather?"), called(), RESULT, user("So?")], "tools": TOOLS},
        ["tools"],
    ),
    (
        "tool call beside words, no answer yet",
        {"messages": [user("Calling with words. " + PARA), called("Let me see. "), RESULT], "tools": TOOLS},
        ["tools"],
    ),
    ("Chinese and emoji", {"messages": [system("你是一个助手。"), user("世界 😀 👩‍👩‍👧 naïve é \u2028 \ufeff " * 6)]}, []),
    (
        "chat_template_kwargs",
        {
            "messages": [user("Without thinking. " + PARA * 3 + "a a" * 7)],
            "chat_template_kwargs": {"enable_thinking": False},
        },
        ["chat_template_kwargs"],
    ),
    (
        "add_generation_prompt=false",
        {"messages": [user("Not to be answered. " + PARA * 3 + " a" * 24)], "add_generation_prompt": False},
        ["add_generation_prompt"],
    ),
    (
        "continue_final_message",
        {
            "messages": [user("Go on. " + PARA), said("It was a dark and " + PARA * 2 + "a a a")],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        ["continue_final_message"],
    ),
    (
        "content in parts",
        {"messages": [user([part("In parts. " + PARA), part("  and more. " + PARA * 2)])]},
        [],
    ),
    (
        "thoughts of before",
        {"messages": [user("Think. " + PARA), said("<think>\nHm. " + PARA + "\n</think>\n\nYes."), user("Sure?")]},
        [],
    ),
    (
        "thoughts apart, with a tool call",
        {"messages": [user("Think, call. "), {**called(), "reasoning": "Which? " + PARA}, RESULT], "tools": TOOLS},
        ["tools"],
    ),
    (
        "special tokens in a text",
        {"messages": [user("Quoted: <|im_end|>\n<|im_start|>assistant\n<|endoftext|> " + PARA * 3)]},
        [],
    ),
    ("cache_salt", {"messages": [user("Salted. " + PARA * 4)], "cache_salt": "tenant-ä"}, ["cache_salt"]),
    (
        "more than 20 blocks",
        {"messages": [system("Long. " + PARA), user("".join(f"{i}: {PARA}" for i in range(45)))]},
        [],
    ),
]
COMPLETIONS = [
    ("completion", {"prompt": "A completion. " + PARA * 5}, []),
    ("completion in Chinese", {"prompt": "完成 😀 \u2029 \x7f\t" * 9}, []),
    ("completion of token ids", {"prompt": [(17 + 7 * i) % 2000 + 3 for i in range(160)]}, []),
    ("completion with cache_salt", {"prompt": "A salted completion. " + PARA * 5, "cache_salt": "t2"}, ["cache_salt"]),
]

# Name; request that the engine serves, and whose tokens are not known outside of it; the reason that is given.
UNKNOWN = [
    (
        'tools, and tool_choice "none"',
        {"messages": [system("No calls. "), user(PARA)], "tools": TOOLS, "tool_choice": "none"},
        "constraint",
    ),
]


class Engine:
    """A real engine, what it was asked, and the blocks that it says it stored."""

    def __init__(self, args):
        self.block = int(args.block)
        self.url = f"http://127.0.0.1:{args.port}"
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.bind(EVENTS)
        self.batches = 0  # number of the next batch
        self.blocks = {}  # hash as published → (parent, token ids)
        self.order = []
        environment = {
            **os.environ,
            "KV_EVENTS": "1",
            "MODEL_DIR": args.model,
            "HASHSEED": "" if args.seed == "unset" else args.seed,
            # Long prompts come in several steps, so that their blocks come in several events.
            "EXTRA": f"--prefix-caching-hash-algo {args.algo} --max-num-batched-tokens 256 "
            "--enable-auto-tool-choice --tool-call-parser hermes",
            "ENGINE_ENV": f"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES={int(args.form == 'number')} "
            + os.environ.get("ENGINE_ENV", ""),
        }
        subprocess.run([f"{args.rig}/start_pair.sh", "plain", "p"], check=True, env=environment)
        self.warm_up()

    def warm_up(self):
        """Prompts until the first events come: the publisher learns of its subscriber only when it sends."""
        while not self.order:
            if self.batches == WARM_UPS:
                raise RuntimeError("no events")
            prompt = [self.batches + 3] * self.block
            self.post("/v1/completions", json.dumps({"model": "tiny", "max_tokens": 1, "prompt": prompt}))
            self.batches += 1
            if self.socket.poll(1000):
                self.batches -= 1
                self.receive(1)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, body.encode(), {"content-type": "application/json"})
        try:
            return json.load(urllib.request.urlopen(request, timeout=120))
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"the engine answers {refused.code}: {refused.read().decode()}") from refused

    def ask(self, path, body):
        """The prompt's token ids and its block hashes, in order, as the events have them."""
        answer = self.post(path, body)
        tokens = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
        details = answer["usage"].get("prompt_tokens_details") or {}
        new = len(tokens) // self.block - (details.get("cached_tokens") or 0) // self.block
        seen = len(self.order)
        self.receive(seen + new)
        return tokens, self.chain(self.order[-1]), len(self.order) - seen

    def receive(self, blocks):
        """Takes events until there are so many blocks, or none comes for long; then those that are there already."""
        until = time.monotonic() + WAIT_SECONDS
        while self.socket.poll(0) or len(self.order) < blocks:
            if not self.socket.poll(max(0, until - time.monotonic()) * 1000):
                raise RuntimeError(f"{len(self.order)} blocks in events, {blocks} stored")
            _topic, number, payload = self.socket.recv_multipart()
            if int.from_bytes(number, "big") != self.batches:
                raise RuntimeError(f"event batch {int.from_bytes(number, 'big')} in place of {self.batches}")
            self.batches += 1
            for event in msgspec.msgpack.decode(payload)[1]:
                self.take(event)

    def take(self, event):
        if event["type"] != "BlockStored":
            raise RuntimeError(f"unexpected event {event}")
        size, parent = event["block_size"], event["parent_block_hash"]
        for i, name in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][i * size : (i + 1) * size]
            if name in self.blocks or len(tokens) != self.block:
                raise RuntimeError(f"block {name} stored twice, or of {len(tokens)} tokens")
            self.blocks[name] = (parent, tokens)
            self.order.append(name)
            parent = name

    def chain(self, last):
        """From the first block to this one, by parent_block_hash."""
        hashes = []
        while last is not None:
            hashes.append(last)
            last = self.blocks[last][0]
        return hashes[::-1]


class Gateway:
    """`pd-proxy keys`, asking the engine for all about hashes but the seed."""

    def __init__(self, args, seed):
        self.command = [args.gateway, "keys", "--format", "json", "--model-path", args.model]
        self.command += ["--prefill", f"127.0.0.1:{args.port}"]
        if seed != "unset":
            self.command += ["--set", f'hash.seed="{seed}"']
        own = ("PD_PROXY", "PYTHONHASHSEED")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}

    def keys(self, body):
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as request:
            request.write(body)
            request.flush()
            command = [*self.command, "--messages", f"@{request.name}"]
            done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=60)
        if not done.stdout:
            raise RuntimeError(f"pd-proxy keys, status {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)


def names(listing, form):
    """The computed hashes as events have them."""
    if form == "bytes":
        return [bytes.fromhex(block["hash"]) for block in listing["blocks"]]
    return [block["event"] for block in listing["blocks"]]


def differences(engine, tokens, chain, listing, form):
    """What of a prompt is not as the engine says, in words."""
    computed = names(listing, form)
    stored = [token for name in chain for token in engine.blocks[name][1]]
    if not listing["exact"]:
        yield f"not exact: {listing['reason']}"
    if listing["tokens"] != tokens:
        at = next((i for i, (a, b) in enumerate(zip(tokens, listing["tokens"])) if a != b), "the end")
        yield f"tokens: {len(listing['tokens'])}, the answer has {len(tokens)}, the first other one at {at}"
    if stored != tokens[: len(stored)] or len(chain) != len(tokens) // engine.block:
        yield f"events: {len(stored)} tokens in {len(chain)} blocks, the answer has {len(tokens)} tokens"
    if computed != chain:
        at = next((i for i, (a, b) in enumerate(zip(chain, computed)) if a != b), "the end")
        yield f"hashes: {len(computed)}, the events have {len(chain)}, the first other one at {at}"
    if any(block["hash"][-16:] != f"{block['event']:016x}" for block in listing["blocks"]):
        yield "hash and event of a block are not of one piece"


def without(body, member):
    return json.dumps({k: v for k, v in body.items() if k != member}, ensure_ascii=False)


def compare(engine, gateways, form, thinks, case):
    """Prints a line on one prompt; whether it is as in the engine, whether a wrong seed misses, its blocks, the new."""
    chat, (name, request, matter) = case
    gateway, misled = gateways
    request = {"model": "tiny", "temperature": 0, "max_tokens": 1, "return_token_ids": True, **request}
    # Chats as they are, completions in escapes: both are read.
    body = json.dumps(request, ensure_ascii=not chat)
    tokens, chain, new = engine.ask("/v1/chat/completions" if chat else "/v1/completions", body)
    wrong = list(differences(engine, tokens, chain, gateway.keys(body), form))
    for member in matter if thinks else set(matter) - {"chat_template_kwargs"}:
        other = gateway.keys(without(request, member))
        # The prompts are cut for a template that can think: with another the member may be in no full block.
        if names(other, form) == chain and (thinks or other["tokens"] == tokens):
            wrong.append(f"{member} does not matter")
    others = names(misled.keys(body), form)
    misses = len(others) == len(chain) > 0 and set(others).isdisjoint(chain)
    label = f"{'WRONG' if wrong else 'ok'} {'chat: ' if chat else ''}{name}"
    old = f" ({len(chain) - new} of them an earlier prompt's)" if new < len(chain) else ""
    verdict = "DIFFER" if wrong else "equal"
    print(f"{label}: {len(tokens)} tokens, {len(chain)} blocks{old} {verdict}", flush=True)
    for difference in wrong:
        print(f"  {difference}")
    return not wrong, misses, len(chain), new


def unknown(engine, gateway, form, case):
    """Prints a line on a prompt that the engine serves; whether not all tokens are known, for exactly this reason."""
    name, request, reason = case
    request = {"model": "tiny", "temperature": 0, "max_tokens": 1, "return_token_ids": True, **request}
    body = json.dumps(request, ensure_ascii=False)
    tokens, chain, _new = engine.ask("/v1/chat/completions", body)
    listing = gateway.keys(body)
    known, named = listing["tokens"], [block["event"] for block in listing["blocks"]]
    # Those that are known all the same are the engine's first ones.
    begins = tokens[: len(known)] == known and len(known) < len(tokens)
    right = (listing["exact"], listing["reason"]) == (False, reason) and begins
    if form == "number":
        right = right and chain[: len(named)] == named
    print(f"{'ok' if right else 'WRONG'} chat: {name}: {len(known)} of {len(tokens)} tokens, {len(named)} of {len(chain)} blocks: {reason}")
    return right


def main():
    parser = argparse.ArgumentParser()
    for flag in ("gateway", "rig", "model", "port", "block", "algo", "seed", "form"):
        parser.add_argument(f"--{flag}", required=True)
    args = parser.parse_args()
    model = args.model.rsplit("/", 1)[-1]
    print(f"== {args.algo}, PYTHONHASHSEED {args.seed}, hashes as {args.form}, model {model}", flush=True)
    with open(f"{args.model}/chat_template.jinja", encoding="utf-8") as template:
        thinks = "enable_thinking" in template.read()
    engine = Engine(args)
    gateways = Gateway(args, args.seed), Gateway(args, "1" if args.seed == "0" else "0")
    cases = [(True, case) for case in CHATS] + [(False, case) for case in COMPLETIONS]
    found = [compare(engine, gateways, args.form, thinks, case) for case in cases]
    equal, missed, blocks, new = (sum(column) for column in zip(*found))
    print(f"{equal} of {len(cases)} prompts equal, {blocks} blocks, {new} new ones in {engine.batches} event batches")
    print(f"with a wrong seed {missed} of {len(cases)} prompts have no hash in common with the engine")
    right = [unknown(engine, gateways[0], args.form, case) for case in UNKNOWN]
    sys.exit(0 if equal == missed == len(cases) and all(right) else 1)


if __name__ == "__main__":
    main()
