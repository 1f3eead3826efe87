#!/usr/bin/env python3
"""Draws legs.svg beside this file: what pd-proxy sends to whom for one request, and the ways of the KV.

`legs.py --check` fails if the drawing in the tree is another. Standard library only.
"""
import pathlib

from life import picture, text, write_or_check

FILE = pathlib.Path(__file__).with_name("legs.svg")
HEIGHT = 346
# Name, the line below it, left, top, width, height; how many of them stand one behind the other.
BOXES = [
    ("client", "", 20, 140, 90, 50, 1),
    ("pd-proxy", "chooses both engines", 210, 120, 170, 90, 1),
    ("prefillers", "compute prompts", 600, 34, 150, 64, 3),
    ("decoders", "generate answers", 600, 232, 150, 64, 3),
    ("KV pool", "if there is one", 640, 140, 110, 50, 1),
]
# Points of a line, whether KV goes there, and the label: its place, anchor, number, words.
ARROWS = [
    ([(110, 156), (208, 156)], False, (160, 148, "middle", "", "request")),
    ([(210, 176), (112, 176)], False, (160, 194, "middle", "", "stream")),
    ([(260, 120), (260, 50), (598, 50)], False, (272, 42, "start", "1", "prefill leg: the body, for one token")),
    ([(600, 82), (330, 82), (330, 118)], False, (342, 100, "start", "2", "hand-off: where the KV is")),
    ([(260, 210), (260, 280), (598, 280)], False, (272, 300, "start", "3", "decode leg: the body and the hand-off")),
    ([(600, 248), (330, 248), (330, 212)], False, (342, 240, "start", "4", "tokens")),
    ([(380, 165), (638, 165)], False, (400, 157, "start", "", "what of this prompt is there?")),
    ([(620, 98), (620, 230)], True, None),
    ([(690, 98), (690, 138)], True, (698, 122, "start", "", "KV")),
    ([(665, 140), (665, 100)], True, None),
    ([(690, 190), (690, 230)], True, (698, 214, "start", "", "KV")),
]


def boxes():
    for name, below, left, top, width, height, count in BOXES:
        for behind in range(count - 1, -1, -1):
            at = f'x="{left + 5 * behind}" y="{top - 5 * behind}" width="{width}" height="{height}"'
            yield f'<rect class="head" {at} rx="6"/>'
        middle = top + height // 2 + 5
        yield text(left + width // 2, middle - (9 if below else 0), name)
        if below:
            yield text(left + width // 2, middle + 10, below, "soft")


def arrows():
    for points, kv, label in ARROWS:
        path = "L".join(f"{x} {y}" for x, y in points)
        yield f'<path class="arrow{" dashed" if kv else ""}" d="M{path}"/>'
        if label:
            at, y, anchor, number, words = label
            mark = f'<tspan class="number">{number}</tspan>  ' if number else ""
            yield f'<text x="{at}" y="{y}" text-anchor="{anchor}">{mark}{words}</text>'


def draw():
    note = text(20, HEIGHT - 14, "dashed: KV, which never passes through pd-proxy", "soft", "start")
    return picture(HEIGHT, "Two legs and a pool: pd-proxy between a client, prefillers, decoders and a KV pool", [*boxes(), *arrows(), note])


if __name__ == "__main__":
    write_or_check(FILE, draw())
