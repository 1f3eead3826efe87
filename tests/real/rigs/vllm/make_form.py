#!/usr/bin/env python3
"""Writes the rig's tiny model anew with a tokenizer, or chats, of another form: two directories, the engine's and the gateway's.

usage: make_form.py MODEL_DIR FORM OUT, FORM is kimi (a rank file of tiktoken with code of its own) or deepseek_v32 (chats by code). OUT/engine and
OUT/gateway differ in the architecture alone: the engine computes with the tiny model's and is told its --tokenizer-mode.
"""
import base64
import json
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parents[2] / "golden"
KIMI = "[BOS] [EOS] <|im_end|> <|im_user|> <|im_assistant|> [EOT] <|im_system|> <|im_middle|> <|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|> [UNK] [PAD]".split()
DEEPSEEK = "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> <think> </think> ｜DSML｜".split()
SPECIAL_TOKENS = 256


def added(names, first):
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {str(first + at): {"content": name, **flags} for at, name in enumerate(names)}


def bytes_of():
    """The byte that a character of a byte-level vocabulary stands for."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + at): byte for at, byte in enumerate(hidden)}}


def kimi(folder, tokenizer, vocabulary):
    """Ranks in the order of the merges, with room for the special tokens within the model's vocabulary."""
    byte = bytes_of()
    ranks = [bytes([at]) for at in range(256)]
    for merge in tokenizer["model"]["merges"]:
        token = bytes(byte[char] for char in "".join(merge if isinstance(merge, list) else merge.split(" ")))
        if token not in ranks and len(ranks) < vocabulary - SPECIAL_TOKENS:
            ranks.append(token)
    (folder / "tokenizer.json").unlink()
    lines = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks))
    (folder / "tiktoken.model").write_text(lines)
    shutil.copy(HERE / "forms/tokenization_kimi.py", folder)
    shutil.copy(GOLDEN / "templates/kimi_k2.jinja", folder / "chat_template.jinja")
    config = {
        "added_tokens_decoder": added(KIMI, len(ranks)),
        "additional_special_tokens": KIMI[2:13],
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "tokenizer_class": "TikTokenTokenizer", "model_max_length": 8192,
        "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def deepseek_v32(folder, tokenizer, vocabulary):
    """The tiny model's vocabulary, whose last tokens make room for DeepSeek's special ones."""
    first = vocabulary - len(DEEPSEEK)
    model = tokenizer["model"]
    model["vocab"] = {token: at for token, at in model["vocab"].items() if at < first}
    pairs = (merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"])
    model["merges"] = [list(pair) for pair in pairs if "".join(pair) in model["vocab"]]
    tokens = added(DEEPSEEK, first)
    tokenizer["added_tokens"] += [{"id": int(at), **token} for at, token in tokens.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    config["added_tokens_decoder"] |= tokens
    path.write_text(json.dumps(config | {"bos_token": DEEPSEEK[0], "eos_token": DEEPSEEK[1]}, ensure_ascii=False))


def main():
    source, form, out = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    for side in ("engine", "gateway"):
        folder = out / side
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        (folder / "special_tokens_map.json").unlink()
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        {"kimi": kimi, "deepseek_v32": deepseek_v32}[form](folder, tokenizer, config["vocab_size"])
        if (form, side) == ("deepseek_v32", "gateway"):
            (folder / "config.json").write_text(json.dumps(config | {"architectures": ["DeepseekV32ForCausalLM"]}))


main()
