#!/usr/bin/env python3
"""Write a LoRA adapter with random weights for a model of make_model.py, as `vllm serve` loads one.

usage: make_adapter.py --model DIR --out DIR [--seed N] [--rank N]
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--rank", type=int, default=8)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as file:
        model = json.load(file)
    hidden, head = model["hidden_size"], model["head_dim"]
    rows = {"q_proj": model["num_attention_heads"] * head, "v_proj": model["num_key_value_heads"] * head}
    random = torch.Generator().manual_seed(args.seed)
    weights = {}
    for layer in range(model["num_hidden_layers"]):
        for name, size in rows.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            # As large as the model's own weights: another answer from the first token on.
            weights[f"{key}.lora_A.weight"] = torch.randn(args.rank, hidden, generator=random) * hidden**-0.5
            weights[f"{key}.lora_B.weight"] = torch.randn(size, args.rank, generator=random)
    save_file(weights, os.path.join(args.out, "adapter_model.safetensors"), metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": args.model, "inference_mode": True,
        "r": args.rank, "lora_alpha": 2 * args.rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(rows), "fan_in_fan_out": False, "modules_to_save": None,
    }
    with open(os.path.join(args.out, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)


if __name__ == "__main__":
    main()
