"""Compares the token ids of chats that engines render by code with those of vLLM's own modules, end to end.

Run by `chat_forms.sh` with a Python that has vLLM 0.32 or 0.33: for each form a model's directory is written, requests are made up from a seed,
vLLM's renderer and the form's tokenizer make token ids of them, and so does `examples/prompts.rs`. Each request is `equal`, refused by both,
unknown here alone, rendered here alone (the engine refuses the schema of a tool, so that nothing depends on it), or wrong.
"""

import argparse
import collections
import copy
import json
import logging
import pathlib
import random
import subprocess
import sys
import tempfile

import vllm
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))

import make_encoded_families as families  # noqa: E402
from chat_requests import Requests  # noqa: E402

RELEASE = vllm.__version__.split("+")[0].rsplit(".", 1)[0]
ARCHITECTURES = {"deepseek_v32": "DeepseekV32ForCausalLM", "deepseek_v4": "DeepseekV4ForCausalLM", "deepseek_v41": "DeepseekV41ForCausalLM"}
# Special tokens of the newer models that V3's tokenizer lacks.
DEEPSEEK_SPECIAL = "｜DSML｜ <｜System｜> <｜latest_reminder｜> <｜action｜> <｜query｜> <｜authority｜> <｜domain｜> <｜title｜> <｜read_url｜> <｜deepseek_image｜>".split()
GPT_OSS_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_OSS_RANKS = 199_998


def deepseek(name, tokenizer_json):
    """A directory with V3's tokenizer and this model's architecture, and vLLM's text by that tokenizer."""
    file = json.loads(pathlib.Path(tokenizer_json).read_text())
    known = {token["content"] for token in file["added_tokens"]}
    first = max(token["id"] for token in file["added_tokens"]) + 1
    for at, token in enumerate(token for token in DEEPSEEK_SPECIAL if token not in known):
        file["added_tokens"].append({"id": first + at, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True})
    text = json.dumps(file, ensure_ascii=False)
    tokenizer = Tokenizer.from_str(text)
    render = families.text_by(*families.deepseek_renderers()[name])
    ids = lambda body: tokenizer.encode(render(body), add_special_tokens=bool(body.get("add_special_tokens"))).ids
    return {"tokenizer.json": text, "config.json": json.dumps({"architectures": [ARCHITECTURES[name]]})}, ids


def gpt_oss():
    """gpt-oss's vocabulary as the Harmony library has it, written as a tokenizer.json."""
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    shown = byte_characters()
    tokens = [bytes(encoding._inner.decode_bytes([rank])) for rank in range(GPT_OSS_RANKS)]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    spelled = ["".join(shown[byte] for byte in token) for token in tokens]
    merges = []
    for token in tokens:
        splits = [(ranks.get(token[:at]), ranks.get(token[at:])) for at in range(1, len(token))]
        merges += [[spelled[left], spelled[right]] for left, right in sorted(pair for pair in splits if None not in pair)]
    special = {encoding.encode(token, allowed_special="all")[0]: token for token in encoding.special_tokens_set}
    file = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
        "added_tokens": [
            {"id": at, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for at, token in sorted(special.items())
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": GPT_OSS_PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": dict(zip(spelled, range(GPT_OSS_RANKS))), "merges": merges},
    }  # fmt: skip
    files = {"tokenizer.json": json.dumps(file, ensure_ascii=False), "config.json": json.dumps({"model_type": "gpt_oss"})}
    return files, families.harmony_ids()


def byte_characters():
    """The character that stands for a byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{byte: chr(byte) for byte in shown}, **{byte: chr(256 + at) for at, byte in enumerate(hidden)}}


def mistral(version, sees=False):
    ids, _ = families.mistral_ids(version, 130_816, sees)
    return {"tekken.json": families.mistral_file(version, 130_816, sees)}, ids


def forms(tokenizer_json):
    for name in ARCHITECTURES:
        yield name, lambda name=name: deepseek(name, tokenizer_json)
    yield "gpt_oss", gpt_oss
    for version in ("v3", "v7", "v11", "v13", "v15"):
        yield f"mistral_{version}", lambda version=version: mistral(version)
    # The last: they replace what reads the other chats.
    for version in ("v3", "v7", "v11", "v13", "v15"):
        yield f"mistral_{version}_images", lambda version=version: mistral(version, sees=True)


def outcome(ids, body):
    """The ids, or the name of the exception with which the engine refuses the request."""
    try:
        return list(ids(copy.deepcopy(body)))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:160]}"


def compare(name, make, args):
    files, ids = make()
    folder = pathlib.Path(tempfile.mkdtemp())
    for file, content in files.items():
        (folder / file).write_text(content)
    draw = random.Random(f"{args.seed} {name}")
    bodies = [Requests(draw, name).body() for _ in range(args.count)]
    expected = [outcome(ids, body) for body in bodies]
    lines = "".join(json.dumps({"api": "chat", "body": body}) + "\n" for body in bodies)
    run = subprocess.run([args.program, folder, RELEASE, families.TODAY], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(bodies), f"{len(answers)} answers to {len(bodies)} requests"
    counts, unknown, wrong, begun = collections.Counter(), collections.Counter(), [], 0
    for body, expect, answer in zip(bodies, expected, answers):
        first = answer.get("first") if isinstance(answer, dict) else None
        if isinstance(expect, str):
            # Nobody computes a prompt that the engine refuses; but only one reason for it is known not to be looked at here.
            alone_kind = "here_alone" if "Invalid tool schema" in expect or first else "wrong"
            kind = "both_refuse" if isinstance(answer, dict) and not first else alone_kind
        elif first:
            kind = "beginning" if answer["reason"] == "media" and expect[: len(first)] == first else "wrong"
            begun += len(first)
        else:
            kind = "unknown_here" if isinstance(answer, dict) else "equal" if answer == expect else "wrong"
        counts[kind] += 1
        if kind == "unknown_here":
            unknown[answer["reason"]] += 1
        if kind == "wrong":
            wrong.append((body, expect, answer))
        if args.only_kind == kind:
            print(json.dumps(body, ensure_ascii=False), expect if isinstance(expect, str) else "", answer if isinstance(answer, dict) else "")
    tokens = sum(len(expect) for expect in expected if not isinstance(expect, str))
    print(
        f"{name} (vllm {RELEASE}): {len(bodies)} requests, {tokens} tokens: {counts['equal']} equal, {counts['both_refuse']} refused by both, "
        f"{counts['unknown_here']} unknown here alone, {counts['here_alone']} rendered here alone, {counts['wrong']} wrong",
        flush=True,
    )
    if counts["beginning"]:
        print(f"  the beginning known, up to an image: {counts['beginning']} requests, {begun} tokens")
    for why, count in unknown.most_common():
        print(f"  unknown here alone {count}: {why}")
    for body, expect, answer in wrong[: args.shown]:
        if isinstance(expect, str):
            print(f"  refused ({expect}): {json.dumps(body, ensure_ascii=False)}")
            continue
        answer = answer["first"] if isinstance(answer, dict) else answer
        place = next((at for at, (a, b) in enumerate(zip(answer, expect)) if a != b), min(len(answer), len(expect)))
        print(f"  token {place} of {len(expect)}: {answer[place : place + 6]}, expected {expect[place : place + 6]}: {json.dumps(body, ensure_ascii=False)}")
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--tokenizer-json", required=True)
    parser.add_argument("--seed", default="36")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--only", default="")
    parser.add_argument("--shown", type=int, default=5)
    parser.add_argument("--only-kind", default="", help="prints the requests of one kind, as unknown_here")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = False
    for name, make in forms(args.tokenizer_json):
        if args.only in name:
            counts = compare(name, make, args)
            # A form of which nothing is equal was not compared.
            failed |= counts["wrong"] > 0 or (counts["equal"] + counts["beginning"]) * 4 < args.count
    sys.exit(1 if failed else 0)


main()
