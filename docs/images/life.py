#!/usr/bin/env python3
"""Draws life-of-a-request.svg beside this file: who does what, and when, for one streamed request.

Time goes down. The colours follow the reader's system, light or dark. `life.py --check` fails if the
drawing in the tree is not what this script draws. Standard library only.
"""
import pathlib
import re
import sys
from xml.sax.saxutils import escape

FILE = pathlib.Path(__file__).with_name("life-of-a-request.svg")
WIDTH, TOP, LEFT, RIGHT = 840, 64, 90, 750
LANES = ["client", "pd-proxy", "prefiller", "decoder", "KV pool"]
STEP = 44
COLOURS = """
svg { font: 13px system-ui, sans-serif; --ink: #1f2328; --soft: #59636e; --line: #818b98; --box: #f6f8fa; --work: #0969da; --back: #ffffff; }
@media (prefers-color-scheme: dark) { svg { --ink: #f0f6fc; --soft: #9198a1; --line: #656c76; --box: #151b23; --work: #4493f8; --back: #0d1117; } }
text { fill: var(--ink); } .soft { fill: var(--soft); font-size: 12px; } .number { fill: var(--work); font-weight: 600; }
.lane { stroke: var(--line); stroke-dasharray: 2 4; } .head { fill: var(--box); stroke: var(--line); }
.arrow { stroke: var(--ink); fill: none; marker-end: url(#tip); } .dashed { stroke-dasharray: 6 4; } #tip path { fill: var(--ink); }
.work { fill: var(--work); } .back { fill: var(--back); }
"""


def with_fallbacks(style):
    """The same rules with the light colour before each variable, for viewers that know no variables (librsvg)."""
    light = dict(colour for text in (COLOURS, style) for colour in re.findall(r"(--\w+): (#\w+)", text[: text.find("@media")]))
    return re.sub(r"([a-z]+): var\((--\w+)\);", lambda it: f"{it[1]}: {light[it[2]]}; {it[0]}", style)


STYLE = with_fallbacks(COLOURS)
# From, to, number, text; dashed arrows are KV, which never passes through the gateway.
ARROWS = [
    (0, 1, "1", "the request, whole and in bounds", False),
    (1, 4, "2", "which blocks of this prompt are there?", False),
    (1, 2, "4", "the body, for one token: keep the KV", False),
    (2, 1, "5", "the hand-off", False),
    (1, 3, "6", "the body and the hand-off", False),
    (2, 3, "", "KV blocks", True),
    (3, 1, "7", "first event", False),
    (1, 0, "8", "200, then event by event", False),
]
NOTES = {1: "3  waits here until the best prefiller is about to be free"}


def x(lane):
    return LEFT + lane * (RIGHT - LEFT) // (len(LANES) - 1)


def text(at, y, words, kind="", anchor="middle"):
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{at}" y="{y}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def arrow(y, start, end, number, words, dashed):
    step = 8 if end > start else -8
    style = "arrow dashed" if dashed else "arrow"
    middle = (x(start) + x(end)) // 2
    label = f'<tspan class="number">{number}</tspan>  {escape(words)}' if number else escape(words)
    # Letters of 7 units: a label that is wider than its arrow begins at the arrow's left end.
    wide = len(words) * 7 > abs(x(end) - x(start))
    at, anchor = (min(x(start), x(end)) + 10, "start") if wide else (middle, "middle")
    return [f'<path class="{style}" d="M{x(start)} {y}H{x(end) - step}"/>', f'<text x="{at}" y="{y - 7}" text-anchor="{anchor}">{label}</text>']


def picture(height, title, parts):
    """A whole drawing, on a background of its own, which reads on a page of either colour."""
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">\n'
            f'<title id="title">{escape(title)}</title>\n<style>{STYLE}</style>\n'
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L10 5L0 10z"/></marker></defs>\n<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>\n'
            + "\n".join(parts) + "\n</svg>\n")


def draw():
    parts, y, tops = [], TOP + 50, {}
    for index, (start, end, number, words, dashed) in enumerate(ARROWS):
        parts += arrow(y, start, end, number, words, dashed)
        tops[index] = y
        y += STEP
        if index in NOTES:
            parts.append(text(x(1) + 12, y - 14, NOTES[index], "soft", "start"))
            y += STEP // 2
    bottom = y
    lanes = []
    for lane, name in enumerate(LANES):
        lanes.append(f'<line class="lane" x1="{x(lane)}" y1="{TOP}" x2="{x(lane)}" y2="{bottom}"/>')
        lanes.append(f'<rect class="head" x="{x(lane) - 52}" y="{TOP - 32}" width="104" height="32" rx="6"/>')
        lanes.append(text(x(lane), TOP - 11, name))
    # Work: the prompt is computed between 4 and 5, the answer from 7 on.
    for lane, first, last in [(2, tops[2], tops[3]), (3, tops[5], bottom)]:
        lanes.append(f'<rect class="work" x="{x(lane) - 4}" y="{first}" width="8" height="{last - first}" rx="3"/>')
    lanes.append(text(x(3) + 12, bottom - 8, "generates", "soft", "start"))
    return picture(bottom + 16, "The life of a request: client, gateway, prefiller, decoder and pool over time", lanes + parts)


def write_or_check(file, drawn):
    """Writes a drawing; with `--check` fails if the one in the tree is another."""
    if "--check" not in sys.argv[1:]:
        file.write_text(drawn)
    elif file.read_text() != drawn:
        raise SystemExit(f"docs: {file.name} is not what {pathlib.Path(sys.argv[0]).name} draws: run it")


if __name__ == "__main__":
    write_or_check(FILE, draw())
