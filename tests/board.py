#!/usr/bin/env python3
"""Proves the Grafana board and Prometheus's alerts (config/grafana, config/prometheus) on a real Prometheus that scrapes real gateways.

* Every query of the board and of the alerts is answered by Prometheus. Every panel shows something, and every label of its legends
  is in what it shows.
* Every metric that is named exists at one of the gateways, with the labels that are named. A literal value of a label is one that a
  gateway shows, or, since many only show in trouble, one that docs/ have in backticks or in their table of errors.
* The gateway that is well has no alert, the one in trouble those that it should have.
* The board is laid out without overlaps, its panels have titles, units and a word on what to do, and all metrics of docs/metrics.md are
  on it. Keys of the configuration that texts name exist.

At the end the checks are given faults, which they must find. Started by board.sh. Exit status 0: all as it should be.
"""
import argparse
import copy
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import board_rig
from processes import get, wait

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS = ["At a glance", "Latency", "Routing and cache", "Trouble", "Tokens and keys"]
# Panels that are open at first.
OVERVIEW = 10
UNITS = {"s", "reqps", "ops", "short", "none", "percentunit", "bytes"}
# What Grafana puts in for its variables.
VARIABLES = {"$__rate_interval": "20s", "$instance": ".+", "$fleet": ".*", "$role": ".+", "$engine": ".+"}
# Label of the series of one of several fleets.
FLEET = "fleet"
# What Prometheus adds to each series of a gateway.
TARGET = {"instance", "job"}
OF_PROMETHEUS = {"up": TARGET}
# Alerts of the gateway in trouble, once nobody waits for their `for`.
# PdProxyRetriesDenied is not among them: while its engines rest the gateway tries one request at a time. promtool tests it.
EXPECTED = {
    "PdProxyAllEnginesRest", "PdProxyEngineRests", "PdProxyErrors", "PdProxyHandoffsExpired", "PdProxyPoolAway",
    "PdProxyEngineRestarted", "PdProxyStreamsLost", "PdProxyDiscoveryFails", "PdProxyConfigRefused",
    "PdProxyKeysBroken", "PdProxyEventsLost",
}
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_:][\w:]*|\d[\w.]*|=~|!~|!=|==|>=|<=|\S')
WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
OPERATORS = {"and", "or", "unless", "offset", "bool"}
# Pages that use values of labels and don't define any.
NO_REFERENCE = {"README", "configuration", "security", "stability", "troubleshooting", "upgrade"}


class Facts:
    """What gateways show, and what docs/ say of it."""

    def __init__(self, expositions):
        self.labels, self.values, self.kinds = {}, {}, {}
        for text in expositions:
            self.kinds |= dict(re.findall(r"^# TYPE (\w+) (\w+)", text, re.M))
            for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M):
                pairs = re.findall(r'(\w+)="([^"]*)"', labels)
                self.labels.setdefault(name, set()).update(label for label, _ in pairs)
                for label, value in pairs:
                    self.values.setdefault((name, label), set()).add(value)
        # Beside the labels of its row, a metric may have the fleet's; see the head of the page.
        table = (ROOT / "docs/metrics.md").read_text()
        pages = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/reference").glob("*.md"))]
        pages = [page for page in pages if page.stem not in NO_REFERENCE]
        text = "".join(page.read_text() for page in pages)
        rows = re.findall(r"^\| `(pd_proxy_\w+)` \| (\w+) \|([^|]*)\|", table, re.M)
        self.documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
        self.words = {word for words in re.findall(r"`([^`\n]+)`", text) for word in re.split(r"[^\w.]+", words)}
        self.words |= set(re.findall(r"^\| (\d{3}) \|", text, re.M))
        self.keys, self.sections, section = set(), set(), None
        for header, key in re.findall(r"^\[(\w+)\]$|^(?:# )?(\w+) = ", (ROOT / "config/pd-proxy.toml").read_text(), re.M):
            section = header or section
            self.sections.add(section)
            self.keys.add(f"{section}.{key}")

    def complaints(self):
        """Where docs/metrics.md and gateways differ."""
        for name, kind in self.kinds.items():
            said, labels = self.documented.get(name, (None, None))
            shown = set().union(*(self.labels.get(name + end, set()) for end in ("", "_bucket"))) - {"le", FLEET}
            if not name.startswith("process_") and (said, labels) != (kind, shown):
                yield f"{name} is a {kind} with {sorted(shown)}, docs/metrics.md says {said} with {labels}"
        if missing := set(self.documented) - set(self.kinds):
            yield f"neither gateway shows {sorted(missing)}"

    def base(self, name):
        """The metric that a series belongs to."""
        for end in ("_bucket", "_sum", "_count"):
            if name.endswith(end) and self.kinds.get(name.removesuffix(end)) == "histogram":
                return name.removesuffix(end)
        return name

    def unknown_keys(self, text):
        """Keys of the configuration that a text names and that do not exist."""
        named = re.findall(r"(?<![\w./-])([a-z]+\.[a-z_0-9]+)\b(?![./])", text)
        return [key for key in named if key.split(".")[0] in self.sections and key not in self.keys]


def scan(expression):
    """The series that an expression selects, each with its matchers, and all labels that it groups by."""
    tokens, series, grouped, at = TOKEN.findall(expression), [], set(), 0
    while at < len(tokens):
        token, after = tokens[at], tokens[at + 1] if at + 1 < len(tokens) else ""
        at += 1
        if token in WORDS and after == "(":
            end = tokens.index(")", at)
            grouped |= set(tokens[at + 1:end]) - {","}
            at = end + 1
        elif re.fullmatch(r"[A-Za-z_:][\w:]*", token) and after not in WORDS | {"("} and token not in WORDS | OPERATORS:
            matchers = []
            if after == "{":
                end = tokens.index("}", at)
                inner = tokens[at + 1:end]
                matchers = [(inner[i], inner[i + 1], inner[i + 2].strip('"')) for i in range(0, len(inner), 4)]
                at = end + 1
            series.append((token, matchers))
    return series, grouped


def judge(expression, facts):
    """What is wrong with the names in an expression."""
    series, grouped = scan(expression)
    if not series:
        yield "no metric at all"
    possible = {"le"}
    for name, matchers in series:
        labels = OF_PROMETHEUS.get(name)
        if labels is None and facts.base(name) not in facts.documented and not name.startswith("process_"):
            yield f"docs/metrics.md has no {name}"
        if labels is None and name not in facts.labels:
            yield f"no gateway has {name}"
        labels = (labels or facts.labels.get(name, set())) | TARGET
        possible |= labels
        for label, operator, value in matchers:
            if label not in labels:
                yield f"{name} has no label {label}"
            elif label not in TARGET and not known(value, operator, facts.values.get((name, label), set()) | facts.words):
                yield f"{name}: nothing is known as {label}{operator}{value}"
    if strange := grouped - possible:
        yield f"nothing in it has {sorted(strange)}"


def known(value, operator, words):
    if operator in ("=", "!="):
        return value in words
    return all(any(re.fullmatch(part, word) for word in words) for part in value.split("|"))


def panels_of(board):
    """All panels, those of rows that are closed among them."""
    return [inner for panel in board["panels"] for inner in (panel["panels"] if panel["type"] == "row" else [panel])]


def filled(expression):
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def layout(board):
    """What is wrong with the board as Grafana would read it."""
    seen = set()
    if board.get("id") is not None or not 30 <= board["schemaVersion"] <= 42 or not board["uid"] or not board["title"]:
        yield "id, uid, title or schemaVersion are not those of a board to import"
    if [row["title"] for row in board["panels"] if row["type"] == "row"] != ROWS:
        yield f"the rows are not {ROWS}"
    if board["panels"][0]["type"] != "row":
        yield "it does not begin with a row"
    open_panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    if len(open_panels) != OVERVIEW or any(not row["collapsed"] for row in board["panels"][OVERVIEW + 1:]):
        yield f"it does not open with {OVERVIEW} panels alone"
    for variable in ("datasource", "instance", "fleet", "role", "engine"):
        if variable not in {entry["name"] for entry in board["templating"]["list"]}:
            yield f"there is no variable {variable}"
    for group in (board["panels"], *(row["panels"] for row in board["panels"] if row["type"] == "row")):
        yield from places(group, seen)
    for panel in panels_of(board):
        yield from (f"{panel.get('title')}: {why}" for why in content(panel))


def places(group, seen):
    """What is wrong with the places of panels that are shown together."""
    taken = {}
    for panel in group:
        title, at = panel.get("title"), panel["gridPos"]
        if panel["id"] in seen:
            yield f"{title}: its id is not its own"
        seen.add(panel["id"])
        if not (0 <= at["x"] and at["x"] + at["w"] <= 24 and at["w"] > 0 and at["h"] > 0):
            yield f"{title}: beyond the 24 columns"
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if others := {taken[cell] for cell in cells & taken.keys()}:
            yield f"{title}: overlaps {sorted(others)}"
        taken.update(dict.fromkeys(cells, title))


def content(panel):
    unit = panel["fieldConfig"]["defaults"].get("unit")
    if not panel.get("title") or len(panel.get("description", "")) < 40:
        yield "no title, or no word on what to do"
    if unit not in UNITS:
        yield f"unit {unit}"
    references = [target["refId"] for target in panel["targets"]]
    if len(set(references)) != len(references) or not references:
        yield "no queries, or two with one refId"
    if any(source.get("uid") != "${datasource}" for source in [panel["datasource"]] + [t["datasource"] for t in panel["targets"]]):
        yield "a data source that is not the variable's"
    for target in panel["targets"]:
        expression = target["expr"]
        if "$instance" not in expression:
            yield f"not of the chosen gateways: {expression}"
        if re.search(r"_seconds_(bucket|sum)", expression) and unit != "s":
            yield f"seconds in the unit {unit}"
        if "$" in filled(expression):
            yield f"a variable that is not there: {expression}"


def names(board, facts):
    """What is wrong with the names in a board's queries and texts."""
    for panel in panels_of(board):
        for target in panel["targets"]:
            yield from (f"{panel['title']}: {why}" for why in judge(filled(target["expr"]), facts))
        yield from (f"{panel['title']}: no key {key}" for key in facts.unknown_keys(panel.get("description", "")))
    text = " ".join(target["expr"] for panel in panels_of(board) for target in panel["targets"])
    shown = {facts.base(name) for name in re.findall(r"pd_proxy_\w+", text)}
    if missing := set(facts.documented) - shown:
        yield f"not on the board: {sorted(missing)}"


def answers(board, rig, facts):
    """What is wrong with Prometheus's answers to a board's queries."""
    for panel in panels_of(board):
        results = 0
        for target in panel["targets"]:
            answer = rig.query(filled(target["expr"]))
            if answer["status"] != "success":
                yield f"{panel['title']}: {answer['error']}: {target['expr']}"
                continue
            result = answer["data"]["result"]
            results += len(result)
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]) if result else []:
                # A label without a value is none to Prometheus.
                empty = any("" in values for (_, name), values in facts.values.items() if name == label)
                if not empty and not any(label in series["metric"] for series in result):
                    yield f"{panel['title']}: the legend names {label}, which no series has"
        if not results:
            yield f"{panel['title']}: Prometheus has nothing for it"


def alerts(rules, rig, facts):
    """What is wrong with the alerts, given Prometheus's list of them."""
    listed = re.findall(r"^ +- alert: (\w+)", (ROOT / "config/prometheus/alerts.yml").read_text(), re.M)
    if sorted(listed) != sorted(rule["name"] for rule in rules):
        yield "Prometheus has not loaded all of alerts.yml"
    firing = {rig.healthy: set(), rig.troubled: set(), rig.fleets: set()}
    for rule in rules:
        name, notes = rule["name"], rule["annotations"]
        if rule["health"] != "ok":
            yield f"{name}: {rule['health']}: {rule.get('lastError')}"
        if rule["labels"].get("severity") not in ("critical", "warning", "info") or not {"summary", "description", "runbook_url"} <= set(notes):
            yield f"{name}: severity, summary, description or runbook_url is missing"
        yield from (f"{name}: {why}" for why in judge(rule["query"], facts))
        yield from (f"{name}: no key {key}" for key in facts.unknown_keys(" ".join(notes.values())))
        yield from (f"{name}: no metric {word}" for word in re.findall(r"pd_proxy_\w+", " ".join(notes.values()))
                    if facts.base(word) not in facts.documented)
        answer = rig.query(rule["query"])
        if answer["status"] != "success":
            yield f"{name}: {answer['error']}"
            continue
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(notes.values())))
        for series in answer["data"]["result"]:
            firing[series["metric"]["instance"]].add(name)
            if missing := used - set(series["metric"]):
                yield f"{name}: its text names {sorted(missing)}, which its result has not"
    if firing[rig.healthy]:
        yield f"alerts of a gateway that is well: {sorted(firing[rig.healthy])}"
    if missing := EXPECTED - firing[rig.troubled]:
        yield f"in trouble, and no {sorted(missing)}"


def faults(board):
    """Copies of the board with one fault each, and a word that the complaint must have."""
    def copied(change):
        changed = copy.deepcopy(board)
        change(changed, panels_of(changed))
        return changed

    def renamed(old, new):
        return json.loads(json.dumps(board).replace(old, new))

    yield renamed("pd_proxy_retries_total", "pd_proxy_retry_total"), "no gateway has pd_proxy_retry_total"
    yield renamed("by (role, reason)", "by (role, cause)"), "cause"
    yield renamed('kind=\\"output\\"', 'kind=\\"outputs\\"'), "outputs"
    yield renamed("{{engine}}", "{{motor}}"), "the legend names motor"
    yield renamed("[$__rate_interval]", "[$__rate_interval"), "parse error"
    yield renamed("limit.inflight", "limit.in_flight"), "no key limit.in_flight"
    yield copied(lambda b, p: p[3]["gridPos"].update(p[2]["gridPos"])), "overlaps"
    yield copied(lambda b, p: p[3].update(id=p[2]["id"])), "its id is not its own"
    yield copied(lambda b, p: p[3]["fieldConfig"]["defaults"].pop("unit")), "unit None"
    yield copied(lambda b, p: p[3].pop("description")), "what to do"
    yield copied(lambda b, p: p[3]["targets"][0]["datasource"].update(uid="abc")), "data source"
    yield copied(lambda b, p: p[3]["targets"][0].update(expr='up{job="nothing", instance=~"$instance"}')), "nothing for it"
    yield copied(lambda b, p: [row["panels"].remove(q) for row in b["panels"] if row["type"] == "row" for q in list(row["panels"])
                               if q["title"] == "Connections"]), "pd_proxy_open_connections"
    yield copied(lambda b, p: b["panels"][-1].update(collapsed=False)), "it does not open with"


def untested(promtool):
    """Faults in the alerts that their unit tests must find."""
    text, tests = ((ROOT / "config/prometheus" / name).read_text() for name in ("alerts.yml", "tests.yml"))
    for old, new in (("> 0.05", "> 0.5"), ("for: 10m", "for: 20m"), ("pd_proxy_handoffs_total", "pd_proxy_handoff_total"),
                     ('code!~"4.."', 'code=~"5.."')):
        assert old in text, old
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "alerts.yml").write_text(text.replace(old, new))
            pathlib.Path(directory, "tests.yml").write_text(tests)
            if subprocess.run([promtool, "test", "rules", f"{directory}/tests.yml"], capture_output=True).returncode == 0:
                yield f"promtool's tests pass with {new} in place of {old}"


def all_of(board, rig, facts):
    return [*layout(board), *names(board, facts), *answers(board, rig, facts)]


def check(rig, promtool):
    """Everything; a list of complaints."""
    rig.traffic()
    facts = Facts(get(address, "/metrics") for address in (rig.healthy, rig.troubled, rig.fleets))
    scraped = rig.value("max(timestamp(up))")
    # Two looks at least at what the last of the trouble began.
    wait("two more scrapes", lambda: rig.value("min(timestamp(up))") >= scraped + 3)
    board = json.loads((ROOT / "config/grafana/pd-proxy.json").read_text())
    rules = [rule for group in json.loads(get(rig.prometheus, "/api/v1/rules"))["data"]["groups"] for rule in group["rules"]]
    wrong = [*facts.complaints(), *all_of(board, rig, facts), *alerts(rules, rig, facts)]
    found = 0
    for broken, word in faults(board):
        said = all_of(broken, rig, facts)
        found += any(word in why for why in said)
        if not any(word in why for why in said):
            wrong.append(f"nobody found the fault {word!r}: {said[:3]}")
    wrong.extend(untested(promtool))
    queries = sum(len(panel["targets"]) for panel in panels_of(board))
    print(f"board: {len(panels_of(board))} panels, {queries} queries, {len(rules)} alerts, {len(facts.documented)} metrics; "
          f"{found} planted faults found")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--program", "--prometheus", "--promtool"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    # So that the rig is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as directory:
        rig = board_rig.Rig(pathlib.Path(options.program).resolve(), options.prometheus, ROOT / "config/prometheus", directory)
        try:
            wrong = check(rig, options.promtool)
        finally:
            rig.stop()
    for why in wrong:
        print(f"BAD {why}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
