#!/usr/bin/env python3
"""Makes vllm-token-texts.jsonl by vLLM's own code, which must be importable: `make_token_texts.py > vllm-token-texts.jsonl`.

Answers are drawn from texts, characters of several tokens and special tokens; what an engine tells of each event is recorded.
"""
import json
import pathlib
import random
from types import SimpleNamespace

import numpy
from transformers import PreTrainedTokenizerFast
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsLists

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TEXTS = ["Hello, world! It's a tale.", " na\u00efve caf\u00e9", "\u4e2d\u6587\u7684\u53e5\u5b50\u3002", "\U0001f600\U0001f389",
         "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8", "\n\n", "a  b   c", " don't", "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440",
         "fn main() {}", "\U0001d518\U0001d52b\U0001d526", "\u00df\u00fc\u20ac"]
ANSWERS = 24
END = 2


def scores(ids):
    """What a sampler tells of these tokens when no alternatives are asked for."""
    told = {"logprob_token_ids": numpy.array([[number] for number in ids]),
            "logprobs": numpy.zeros((len(ids), 1), dtype=numpy.float32),
            "sampled_token_ranks": numpy.zeros(len(ids), dtype=numpy.int64)}
    return LogprobsLists(**{name: told.get(name) for name in LogprobsLists._fields})


def answer(draw, tokenizer, special):
    ids = []
    for _ in range(draw.randint(2, 5)):
        ids += tokenizer.encode(draw.choice(TEXTS), add_special_tokens=False)
        if draw.random() < 0.4:
            ids.append(draw.choice(special))
    finish = draw.choice(["stop", "length"])
    ids += [END] if finish == "stop" else []
    request = SimpleNamespace(request_id="r", prompt_embeds=None, prompt_token_ids=tokenizer.encode("A prompt of some words"),
                              sampling_params=SamplingParams(logprobs=0, skip_special_tokens=True, max_tokens=1000))
    detokenizer = FastIncrementalDetokenizer(tokenizer, request)
    processor = LogprobsProcessor.from_new_request(tokenizer, request)
    events, at = [], 0
    while at < len(ids):
        piece = ids[at:at + draw.choice([1, 1, 1, 2, 3])]
        at += len(piece)
        last, before = at >= len(ids), len(processor.logprobs)
        stops = last and finish == "stop"
        processor._update_sample_logprobs(scores(piece))
        texts = [next(iter(told.values())).decoded_token for told in processor.logprobs[before:]]
        detokenizer.update(piece, stops)
        text = detokenizer.get_next_output_text(last, True)
        within = piece[:-1] if stops else piece
        events.append([text, texts, len(piece), finish if last else None, any(number in special for number in within)])
    return events


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / "tokenizer.json"))
    added = tokenizer._tokenizer.get_added_tokens_decoder()
    special = sorted(number for number, token in added.items() if token.special)
    draw = random.Random(35)
    for _ in range(ANSWERS):
        print(json.dumps(answer(draw, tokenizer, special), separators=(",", ":")))


main()
