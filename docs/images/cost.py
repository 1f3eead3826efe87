#!/usr/bin/env python3
"""Draws cost.svg beside this file: CPU time per request as a share of other proxies'.

The figures are those of the first table of ../performance.md. `cost.py --check` fails if the drawing
in the tree is another. Standard library only.
"""
import pathlib
import re

from life import WIDTH, picture, text, write_or_check

HERE = pathlib.Path(__file__).parent
LEFT, SCALE, BAR, GAP = 250, 480, 14, 22


def figures():
    """The rows of the table with a number for both routers: what was sent, and the two ratios."""
    rows = re.findall(r"^\| ([^|]*) \| ([\d.]+) \| ([\d.]+) \| – \|$", (HERE.parent / "performance.md").read_text(), re.M)
    return [(what, float(vllm), float(sglang)) for what, vllm, sglang in rows]


def draw():
    parts, y = [text(LEFT, 28, "CPU time of pd-proxy, as a share of that of …", "", "start")], 56
    for what, *ratios in figures():
        parts.append(text(LEFT - 12, y + BAR + 4, what, "", "end"))
        for ratio, proxy in zip(ratios, ["vllm-router 0.1.17", "sglang-router 0.3.2"]):
            parts.append(f'<rect class="head" x="{LEFT}" y="{y}" width="{SCALE}" height="{BAR}"/>')
            parts.append(f'<rect class="work" x="{LEFT}" y="{y}" width="{ratio * SCALE:.0f}" height="{BAR}"/>')
            parts.append(text(LEFT + ratio * SCALE + 8, y + BAR - 3, f"{ratio:.2f}  {proxy}", "soft", "start"))
            y += BAR + 4
        y += GAP
    parts.append(text(LEFT + SCALE, y, "1.00 = as much", "soft", "end"))
    assert WIDTH > LEFT + SCALE
    return picture(y + 20, "CPU time per request beside vllm-router and sglang-router", parts)


if __name__ == "__main__":
    write_or_check(HERE / "cost.svg", draw())
