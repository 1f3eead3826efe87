#!/usr/bin/env python3
"""Write a tiny random-weight Qwen3 model + byte-level BPE tokenizer to disk.

Everything is local and seeded: the tokenizer is trained on CPython's own
pydoc text (pydoc_data.topics, shipped with every CPython), the weights come
from a seeded torch generator.  The result is loadable by `vllm serve DIR` with
HF_HUB_OFFLINE=1.

usage: make_model.py --out DIR [--seed N] [--layers N] [--hidden N]
"""
import argparse
import hashlib
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

# ChatML-like, with tools, so that /tokenize(messages, tools, add_generation_prompt) shows a difference.
CHAT_TEMPLATE = (
    "{%- if tools %}"
    "{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}"
    "{{- '# Tools\\n' }}"
    "{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for m in messages %}"
    "{%- if not (m.role == 'system' and loop.first) %}"
    "{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.content %}{{- m.content }}{%- endif %}"
    "{%- if m.tool_calls %}{%- for tc in m.tool_calls %}"
    "{{- '<tool_call>' + (tc.function | tojson) + '</tool_call>' }}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def corpus():
    from pydoc_data import topics

    for key in sorted(topics.topics):
        text = topics.topics[key]
        for line in text.splitlines():
            if line.strip():
                yield line


def train_tokenizer(vocab_size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(list(corpus()), trainer)
    return tok


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--seed", type=int, default=20240607)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--kv-heads", type=int, default=2)
    ap.add_argument("--head-dim", type=int, default=32)
    ap.add_argument("--inter", type=int, default=256)
    ap.add_argument("--vocab", type=int, default=2048)
    ap.add_argument("--max-len", type=int, default=8192)
    ap.add_argument("--special", default="", help="more special tokens, with commas, as parsers of reasoning and tools want them")
    a = ap.parse_args()
    SPECIAL.extend(filter(None, a.special.split(",")))
    os.makedirs(a.out, exist_ok=True)

    tok = train_tokenizer(a.vocab)
    vocab = tok.get_vocab_size()
    assert vocab == a.vocab, vocab
    tok.save(os.path.join(a.out, "tokenizer.json"))

    def w(name, obj):
        with open(os.path.join(a.out, name), "w") as f:
            json.dump(obj, f, indent=1, ensure_ascii=False)

    w("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": a.max_len,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(i): {"content": s, "lstrip": False, "rstrip": False,
                     "normalized": False, "single_word": False, "special": True}
            for i, s in enumerate(SPECIAL)
        },
        "chat_template": CHAT_TEMPLATE,
    })
    with open(os.path.join(a.out, "chat_template.jinja"), "w") as f:
        f.write(CHAT_TEMPLATE)
    w("special_tokens_map.json", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    w("config.json", {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "head_dim": a.head_dim,
        "hidden_act": "silu",
        "hidden_size": a.hidden,
        "initializer_range": 0.02,
        "intermediate_size": a.inter,
        "max_position_embeddings": a.max_len,
        "max_window_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_hidden_layers": a.layers,
        "num_key_value_heads": a.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": vocab,
    })
    # No sampling defaults here: greedy comes from temperature=0 in the request.
    w("generation_config.json", {"eos_token_id": [2], "pad_token_id": 0})

    g = torch.Generator().manual_seed(a.seed)

    def rnd(*shape, std):
        return (torch.randn(*shape, generator=g, dtype=torch.float32) * std).contiguous()

    H, D, NH, NKV, I = a.hidden, a.head_dim, a.heads, a.kv_heads, a.inter
    sd = {"model.embed_tokens.weight": rnd(vocab, H, std=1.0)}
    for i in range(a.layers):
        p = f"model.layers.{i}."
        sd[p + "input_layernorm.weight"] = torch.ones(H)
        sd[p + "post_attention_layernorm.weight"] = torch.ones(H)
        # q/k norm > 1 sharpens attention, v/o gain makes the output depend
        # strongly on the KV cache (a corrupt transfer must change the text).
        sd[p + "self_attn.q_norm.weight"] = torch.full((D,), 1.8)
        sd[p + "self_attn.k_norm.weight"] = torch.full((D,), 1.8)
        sd[p + "self_attn.q_proj.weight"] = rnd(NH * D, H, std=H ** -0.5)
        sd[p + "self_attn.k_proj.weight"] = rnd(NKV * D, H, std=H ** -0.5)
        sd[p + "self_attn.v_proj.weight"] = rnd(NKV * D, H, std=2.0 * H ** -0.5)
        sd[p + "self_attn.o_proj.weight"] = rnd(H, NH * D, std=2.0 * (NH * D) ** -0.5)
        sd[p + "mlp.gate_proj.weight"] = rnd(I, H, std=H ** -0.5)
        sd[p + "mlp.up_proj.weight"] = rnd(I, H, std=H ** -0.5)
        sd[p + "mlp.down_proj.weight"] = rnd(H, I, std=I ** -0.5)
    sd["model.norm.weight"] = torch.ones(H)
    lm = rnd(vocab, H, std=0.35)
    lm[0:3] = 0.0          # never emit the special tokens greedily by accident ...
    lm[2] = rnd(H, std=0.25)  # ... except sometimes eos (<|im_end|>)
    sd["lm_head.weight"] = lm.contiguous()
    save_file(sd, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
    for n in ("tokenizer.json", "model.safetensors", "config.json"):
        h = hashlib.sha256(open(os.path.join(a.out, n), "rb").read()).hexdigest()
        print(n, os.path.getsize(os.path.join(a.out, n)), h)


if __name__ == "__main__":
    main()
