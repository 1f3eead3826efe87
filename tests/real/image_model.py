#!/usr/bin/env python3
"""Makes a model of Qwen2.5-VL's form of the rig's tiny model: its files beside others for images, without weights.

    image_model.py --out DIR

The engine makes weights of its own (--load-format dummy): what they are does not matter to tokens and block hashes.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
# As Qwen2.5-VL's: parts of a content, and the marks of an image in the place of the part.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


# Engines make tokenizers of this class by its own pattern, whatever the file says: so the file says the same.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def with_pattern(tokens):
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        **tokens,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, type=Path)
    out = parser.parse_args().out
    rig = Path(__file__).parent / "rigs" / "vllm" / "make_model.py"
    subprocess.run([sys.executable, rig, "--out", out, "--special", ",".join(SPECIAL)], check=True)
    os.remove(out / "model.safetensors")
    tokens = with_pattern(json.loads((out / "tokenizer.json").read_text()))
    ids = {token["content"]: token["id"] for token in tokens["added_tokens"]}
    text = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2048,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [4, 6, 6]},
        "tie_word_embeddings": False,
        "eos_token_id": ids["<|im_end|>"],
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": 128,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
        "in_channels": 3,
        "tokens_per_second": 2,
    }
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "torch_dtype": "float32",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|image_pad|>"],
        "vision_config": vision,
        **text,
    }
    processor = {
        "processor_class": "Qwen2_5_VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 3136,
        "max_pixels": 200704,
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    tokenizer.update(chat_template=TEMPLATE, tokenizer_class="Qwen2TokenizerFast", image_token="<|image_pad|>")
    for name, content in [
        ("tokenizer.json", tokens),
        ("config.json", config),
        ("preprocessor_config.json", processor),
        ("tokenizer_config.json", tokenizer),
    ]:
        (out / name).write_text(json.dumps(content, indent=1))
    (out / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    main()
