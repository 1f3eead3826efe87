#!/usr/bin/env python3
"""Compares the names of the blocks before images with a real vLLM engine's KV events. image_blocks.sh runs it.

Seeded chats with images in various places are sent to the engine. `pd-proxy keys` names the blocks of each up to its
first image, and must name no other; it asks the engine itself whether its prompts begin so. Exit status 0: all equal.
"""
import argparse
import base64
import json
import random
import struct
import sys
import zlib

from kv_events import PARA, Engine, Gateway, names, part


def png(width, height, colour):
    """A picture of one colour."""

    def chunk(kind, data):
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    rows = (b"\0" + bytes(colour) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def image(luck):
    data = png(luck.randint(28, 300), luck.randint(28, 300), [luck.randrange(256) for _ in range(3)])
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


def text(luck):
    words = PARA.split()
    odd = ["\n", "\n\n", "  ", "!", "日本語", "🙂", "<|im", "{{ x }}", "é", ""]
    return " ".join(luck.choice(words) for _ in range(luck.randint(0, 120))) + luck.choice(odd)


def content(luck):
    """Text, or parts of which some are images."""
    if luck.random() < 0.4:
        return text(luck)
    return [image(luck) if luck.random() < 0.4 else part(text(luck)) for _ in range(luck.randint(1, 4))]


def chat(luck, number):
    """A chat that begins like no other, and has an image."""
    messages = [{"role": "system", "content": f"Chat {number}. {text(luck)}"}]
    for _ in range(luck.randint(0, 2)):
        messages += [{"role": "user", "content": content(luck)}, {"role": "assistant", "content": text(luck)}]
    last = [part(text(luck)), image(luck), part(text(luck))]
    luck.shuffle(last)
    return {"messages": [*messages, {"role": "user", "content": last}]}


def differences(engine, tokens, chain, listing):
    """What of a prompt is not as the engine says, in words."""
    known, computed = listing["tokens"], names(listing, "number")
    if (listing["exact"], listing["reason"]) != (False, "media"):
        yield f"exact {listing['exact']}, reason {listing['reason']}"
    if not known or tokens[: len(known)] != known or len(known) >= len(tokens):
        yield f"{len(known)} tokens are known, and are not the first of the engine's {len(tokens)}"
    if len(computed) != len(known) // engine.block or chain[: len(computed)] != computed:
        yield f"{len(computed)} blocks are named, the engine's first ones have other names"


def main():
    parser = argparse.ArgumentParser()
    for flag in ("gateway", "rig", "model", "port", "block", "algo", "seed", "form"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--chance", type=int, default=1, help="seed of the chats")
    args = parser.parse_args()
    luck = random.Random(args.chance)
    engine, gateway = Engine(args), Gateway(args, args.seed)
    image_id = json.load(open(f"{args.model}/config.json", encoding="utf-8"))["image_token_id"]
    wrong = blocks = before = lost = 0
    for number in range(args.chats):
        request = {"model": "tiny", "temperature": 0, "max_tokens": 1, "return_token_ids": True, **chat(luck, number)}
        body = json.dumps(request, ensure_ascii=False)
        tokens, chain, _new = engine.ask("/v1/chat/completions", body)
        listing = gateway.keys(body)
        found = list(differences(engine, tokens, chain, listing))
        for words in found:
            print(f"WRONG chat {number}: {words}", flush=True)
        wrong += bool(found)
        blocks += len(listing["blocks"])
        # The mark in front of the image's tokens belongs to the image.
        first = tokens.index(image_id) - 1
        before += first // engine.block
        lost += first - len(listing["tokens"])
    print(f"{args.chats - wrong} of {args.chats} chats with images: {blocks} blocks before images have the engine's names")
    print(f"the engine has {before} whole blocks there; {lost} tokens before images are not known in all")
    sys.exit(1 if wrong or blocks == 0 else 0)


if __name__ == "__main__":
    main()
