#!/usr/bin/env python3
"""Drift watch: compares what the gateway relies on in engines and pools with a newer release of theirs.

    tests/real/drift.py                                   each package's newest release with what was recorded
    tests/real/drift.py --package vllm --to 0.33.0        one package, one release
    tests/real/drift.py --package vllm --from 0.32.0      two releases, whatever is recorded
    tests/real/drift.py --self-check                      facts are where they were read, and planted changes are found
    tests/real/drift.py --package vllm --record           takes the newest release as read: after the code follows it
    tests/real/drift.py --facts                           the form of the facts, without an index

The facts are in drift/*.toml: what is relied on, where in a wheel it is, and which file of ours uses it. drift/readings.json has
what was read of each, and in which release. Wheels come from the index that pip is configured for. Python 3.11, nothing else.

Exit status: 0 nothing moved, 1 something did, 2 a wheel could not be read, 77 there is no index.
"""

import argparse
import difflib
import json
import re
import sys
import tempfile
import tomllib
from pathlib import Path

from drift_symbols import KINDS, Reading, look
from drift_wheels import Index, NoIndex, Unreadable

ROOT = Path(__file__).resolve().parents[2]
FACTS = Path(__file__).resolve().parent / "drift"
READINGS = FACTS / "readings.json"
# Lines of a difference that are shown, names of a set, columns, and columns from which on a line is broken into its parts.
MAX_LINES = 24
MAX_NAMES = 40
WIDTH = 160
BROKEN = 120
SAME, MOVED, GONE, NEW = "same", "moved", "gone", "new"


class Wrong(Exception):
    """Facts that say something impossible."""


def load():
    """The packages with their facts, in the order of their files."""
    packages = {}
    for file in sorted(FACTS.glob("*.toml")):
        package = tomllib.loads(file.read_text())
        packages[package["package"]] = package
        names = [fact["name"] for fact in package["fact"]]
        if len(set(names)) < len(names):
            raise Wrong(f"{file.name}: a name stands twice: {sorted(name for name in names if names.count(name) > 1)}")
        for fact in package["fact"]:
            check(file.name, fact)
    return packages


def check(file, fact):
    """Refuses a fact that says too little or names files that we don't have."""
    where = f"{file}: {fact['name']}"
    for key in ("file", "kind", "relies", "used"):
        if not fact.get(key):
            raise Wrong(f"{where}: has no {key}")
    if fact["kind"] not in KINDS:
        raise Wrong(f"{where}: {fact['kind']} is none of {', '.join(KINDS)}")
    if fact["kind"] in ("texts", "bytes", "entries") and not fact.get("names"):
        raise Wrong(f"{where}: names nothing to look for")
    absent = [path for path in fact["used"] if not (ROOT / path).exists()]
    if absent:
        raise Wrong(f"{where}: not in this repository: {', '.join(absent)}")


def recorded():
    return json.loads(READINGS.read_text()) if READINGS.is_file() else {}


def write(readings):
    """One line for each fact, so that a change of one is a change of one."""
    lines = [f"{json.dumps(package)}: {{\n" + ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(kept)}" for name, kept in sorted(facts.items())
    ) + "\n}" for package, facts in sorted(readings.items())]
    READINGS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def wheel_of(package):
    """The distribution that has the files; some packages only choose one."""
    return package.get("wheel", package["package"])


def look_in(release, fact):
    return look(fact, release.members, release.read)


def bounded(lines, most):
    shown = [line[:WIDTH] for line in lines[:most]]
    return shown + [f"… and {len(lines) - most} more lines"] if len(lines) > most else shown


def broken(text):
    """Lines of a source; long ones are broken where their parts begin, so that a difference is in what is shown."""
    for line in text.splitlines():
        yield from re.sub(r", |(?=@)", "\n", line).splitlines() if len(line) > BROKEN else [line]


def difference(old, new):
    """Lines that say what moved between two readings."""
    if old.names is not None or new.names is not None:
        before, after = old.names or [], new.names or []
        gone, come = [n for n in before if n not in after], [n for n in after if n not in before]
        lines = [f"- {name}" for name in gone] + [f"+ {name}" for name in come]
        return bounded(lines or [f"in another order: {', '.join(after)}"], MAX_NAMES)
    if old.text is None or new.text is None:
        return []
    lines = difflib.unified_diff(list(broken(old.text)), list(broken(new.text)), lineterm="", n=1)
    return bounded([line for line in lines if not line.startswith(("---", "+++"))], MAX_LINES)


def judge(old, new):
    if old is None:
        return NEW if new else SAME
    if new is None:
        return GONE
    return SAME if old.same(new) else MOVED


class Watch:
    """A comparison of facts of one package."""

    def __init__(self, index, package, options):
        self.index, self.package = index, package
        self.wheel = wheel_of(package)
        self.to = index.release(self.wheel, options.to or index.newest(self.wheel))
        self.since = index.release(self.wheel, options.since) if options.since else None
        self.kept = recorded().get(package["package"], {})

    def before(self, fact):
        """What it was, and in which release."""
        if self.since:
            return look_in(self.since, fact), self.since.version
        kept = self.kept.get(fact["name"])
        if kept is None:
            return None, None
        return Reading(print_=kept.get("print"), names=kept.get("names")), kept["release"]

    def compare(self, fact):
        old, release = self.before(fact)
        new = look_in(self.to, fact)
        verdict = judge(old, new)
        lines = []
        if verdict == MOVED:
            if old.names is None and old.text is None:
                # The record has a fingerprint only.
                old = look_in(self.index.release(self.wheel, release), fact) or old
            lines = difference(old, new)
        elif verdict == NEW and self.since is None:
            lines = ["nothing is recorded of it"]
        place = f"  (now in {new.place})" if new and new.place else ""
        return verdict, place, lines

    def report(self):
        """Prints a line for each fact, and returns how often each verdict was given."""
        since = self.since.version if self.since else ", ".join(sorted({kept["release"] for kept in self.kept.values()}))
        print(f"\n=== {self.package['package']}: {since or 'nothing recorded'} -> {self.to.version}")
        counts = dict.fromkeys((SAME, MOVED, GONE, NEW), 0)
        for fact in self.package["fact"]:
            verdict, place, lines = self.compare(fact)
            counts[verdict] += 1
            print(f"{verdict:5}  {fact['name']}{place}")
            if verdict != SAME:
                where = fact["file"] if isinstance(fact["file"], str) else ", ".join(fact["file"])
                print(f"         {where} {fact.get('symbol', '')}")
                print(f"         relied on: {fact['relies']}")
                print(f"         used by: {', '.join(fact['used'])}")
                print("".join(f"           {line}\n" for line in lines), end="")
        print(f"--- {self.package['package']}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        return counts

    def record(self):
        """Takes what the release says as read; facts that it lacks keep what was read of them before."""
        kept = {fact["name"]: self.kept[fact["name"]] for fact in self.package["fact"] if fact["name"] in self.kept}
        for fact in self.package["fact"]:
            reading = look_in(self.to, fact)
            if reading:
                kept[fact["name"]] = {"release": self.to.version, **reading.kept()}
            else:
                print(f"{self.package['package']}: {fact['name']}: not in {self.to.version}", file=sys.stderr)
        write(recorded() | {self.package["package"]: kept})
        print(f"{self.package['package']}: {len(kept)} facts as in {self.to.version}")


def run(index, package, options):
    """True if something moved."""
    if options.self_check:
        from drift_check import check_package

        return check_package(index, package, recorded().get(package["package"], {}), wheel_of(package))
    watch = Watch(index, package, options)
    if options.record:
        watch.record()
        return False
    counts = watch.report()
    return any(counts[verdict] for verdict in (MOVED, GONE, NEW))


def arguments(packages):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", choices=packages, help="may be given more than once; default: all")
    parser.add_argument("--from", dest="since", help="the older release; default: what is recorded")
    parser.add_argument("--to", help="the newer release; default: the newest final one of the index")
    parser.add_argument("--cache", default=Path(tempfile.gettempdir()) / "pd-proxy-drift", help="folder of what was read")
    parser.add_argument("--self-check", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--facts", action="store_true")
    options = parser.parse_args()
    options.package = options.package or list(packages)
    if (options.since or options.to) and len(options.package) != 1:
        parser.error("--from and --to are of one package: name it by --package")
    return options


def main():
    try:
        packages = load()
    except Wrong as why:
        sys.exit(f"{why}")
    options = arguments(packages)
    if options.facts:
        print(f"{sum(len(package['fact']) for package in packages.values())} facts of {len(packages)} packages")
        return 0
    moved, unread = False, []
    with Index(options.cache) as index:
        for name in options.package:
            try:
                moved |= run(index, packages[name], options)
            except Unreadable as why:
                unread.append(type(why))
                print(f"\n=== {name}: NOT READ: {why}")
    if unread.count(NoIndex) == len(options.package):
        print("NOT RUN: no index of packages knows any of them")
        return 77
    return 2 if unread else int(moved)


if __name__ == "__main__":
    sys.exit(main())
