"""Draws what Prometheus recorded of the gauges for autoscalers, for scaling.py. The colours follow the reader's system, light or dark."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "docs/images"))
from life import WIDTH, picture, text, with_fallbacks  # noqa: E402

LEFT, RIGHT, TOP, PANEL, GAP = 60, 820, 74, 120, 46
STYLE = with_fallbacks("""<style>
svg { --other: #bc4c00; } @media (prefers-color-scheme: dark) { svg { --other: #f0883e; } }
.grid { stroke: var(--line); stroke-width: 0.5; } .phase { stroke: var(--soft); stroke-dasharray: 2 4; }
.prefill, .decode { fill: none; stroke-width: 2; } .prefill { stroke: var(--work); } .decode { stroke: var(--other); } .present { stroke-dasharray: 3 4; stroke-width: 1.5; }
.of-prefill { fill: var(--work); } .of-decode { fill: var(--other); }
</style>""")
# A heading; the gauge, and one that is drawn dashed beside it; a value with a line of its own.
PANELS = [
    ("pd_proxy_work_seconds", "pd_proxy_work_seconds", None, None),
    ("pd_proxy_saturation; 1 is the limit", "pd_proxy_saturation", None, 1),
    ("pd_proxy_engines_needed; dashed: the engines that are there", "pd_proxy_engines_needed", "pd_proxy_engines", None),
]
ROLES = ("prefill", "decode")


def points(series, role):
    """Times and finite values of a role's gauge."""
    found = [one["values"] for one in series if one["metric"]["role"] == role]
    return [(float(at), float(value)) for values in found for at, value in values if value not in ("NaN", "+Inf", "-Inf")]


def round_up(value):
    """The next value that reads well."""
    return next(step * 10 ** power for power in range(-1, 6) for step in (1, 2, 5) if step * 10 ** power >= value)


class Panel:
    """One diagram over the whole time."""

    def __init__(self, number, times, most):
        self.bottom = TOP + number * (PANEL + GAP) + PANEL
        self.begin, self.end = times
        self.most = round_up(most)

    def x(self, at):
        return round(LEFT + (at - self.begin) / (self.end - self.begin) * (RIGHT - LEFT), 1)

    def y(self, value):
        return round(self.bottom - value / self.most * PANEL, 1)

    def frame(self, heading, mark):
        parts = [text(LEFT, self.bottom - PANEL - 10, heading, "", "start")]
        for value in {0, self.most / 2, self.most} | ({mark} if mark else set()):
            parts.append(f'<path class="grid" d="M{LEFT} {self.y(value)}H{RIGHT}"/>')
            parts.append(text(LEFT - 8, self.y(value) + 4, f"{value:g}", "soft", "end"))
        return parts

    def line(self, values, style):
        return f'<polyline class="{style}" points="{" ".join(f"{self.x(at)},{self.y(value)}" for at, value in values)}"/>'


def draw(series, begun, end):
    """The whole drawing. `begun`: times at which the load changed, with words; `end`: the last time."""
    parts, begin = [STYLE], begun[0][0]
    for number, (heading, gauge, beside, mark) in enumerate(PANELS):
        lines = [(points(series[name], role), f"{role}{style}") for name, style in ((gauge, ""), (beside, " present")) if name for role in ROLES]
        panel = Panel(number, (begin, end), max(value for values, _ in lines for _, value in values))
        parts += panel.frame(heading, mark)
        parts += [panel.line(values, style) for values, style in lines]
    for at, words in begun:
        parts.append(f'<path class="phase" d="M{panel.x(at)} {TOP - 26}V{panel.bottom}"/>')
        parts.append(text(panel.x(at) + 4, TOP - 30, words, "soft", "start"))
    for place, role in enumerate(ROLES):
        parts.append(text(RIGHT - 70 * (1 - place), 24, role + "rs" if role == "decode" else "prefillers", f"of-{role}", "end"))
    for second in range(0, int(end - begin) + 1, 60):
        parts.append(text(panel.x(begin + second), panel.bottom + 18, f"{second // 60} min", "soft"))
    assert WIDTH > RIGHT
    return picture(panel.bottom + 34, "Work, saturation and engines needed while the load changes", parts)
