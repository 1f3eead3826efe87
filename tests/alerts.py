#!/usr/bin/env python3
"""Proves the alerts of config/prometheus/alerts.yml on a real Prometheus, before fleets that run: exactly those that should fire do, within their time.

Fleets that are well (plain, idle, with a pool, with KV events) have none all the time. Beside them are fleets in which one trouble each is planted; the
table TROUBLES has what must fire then, how soon, and for which engines. Nothing else may.

All times of the rules are divided by a scale: what takes half an hour takes a minute and a half. Scrapes come each second, which is seldom for rules
that are so short. Rates per second and times of the engines are not touched.

At the end rules with faults are tried on what was recorded, which must be found. Started by alerts.sh. Exit status 0: all as it should be.
"""
import argparse
import json
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time

import alerts_rig as rigs
from processes import Process, free_port, get, wait

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Once more by half of it where the machine was too busy to scrape everything in time.
SCALES = (20, 8)
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
# Minutes of the rules before the troubles are planted, and after it.
BEFORE, AFTER = 6, 32
WELL = {"plain": rigs.plain, "idle": rigs.idle, "pool": rigs.pool, "events": rigs.events}
ENGINES = object()
# Minutes until an alert must fire: its `for`, the range that it looks at where that must fill, and two for noticing.
TROUBLES = {
    "one decoder killed": (rigs.decoder_killed, {"PdProxyEngineRests": (12, ENGINES)}),
    "both decoders killed": (rigs.decoders_killed, {
        "PdProxyEngineRests": (12, ENGINES), "PdProxyAllEnginesRest": (4, None), "PdProxyErrors": (5, None), "PdProxyHandoffsExpired": (5, None)}),
    # Its gateway starts with the trouble, which takes some of its minutes.
    "nobody listens": (rigs.nobody_listens, {
        "PdProxyEngineRests": (15, ENGINES), "PdProxyAllEnginesRest": (7, None), "PdProxyErrors": (8, None)}),
    "a decoder restarts": (rigs.decoder_restarts, {"PdProxyEngineRestarted": (4, ENGINES), "PdProxyEngineRestartsOften": (10, ENGINES)}),
    # It comes back with another key: a restart, too.
    "a decoder refuses": (rigs.decoder_refuses, {
        "PdProxyEngineRefuses": (12, ENGINES), "PdProxyEngineRests": (12, ENGINES), "PdProxyEngineRestarted": (4, ENGINES)}),
    "a slow decoder": (rigs.decoder_slow, {"PdProxySlowTokens": (17, None)}),
    "no room": (rigs.no_room, {"PdProxyTurnedAway": (8, None), "PdProxyErrors": (5, None), "PdProxyQueueStands": (8, None)}),
    "the store killed": (rigs.store_killed, {"PdProxyShareAway": (5, None)}),
    "an unknown gateway": (rigs.gateway_unknown, {"PdProxyGatewaysDiffer": (8, None)}),
    "the pool killed": (rigs.pool_killed, {"PdProxyPoolAway": (12, None)}),
    # Names that are known to be wrong don't steer: the second alert follows from the first.
    "a wrong seed": (rigs.wrong_seed, {"PdProxyBlockNamesWrong": (9, None), "PdProxyPredictionsDistrusted": (18, None)}),
    "events lost": (rigs.events_lost, {"PdProxyEventsLost": (13, ENGINES)}),
    "another block size": (rigs.blocks_differ, {"PdProxyBlocksUnnamed": (13, None), "PdProxyEngineRestarted": (4, ENGINES)}),
    "the gateway killed": (rigs.gateway_killed, {"PdProxyDown": (3, None)}),
    "the last prefiller removed": (rigs.prefiller_removed, {"PdProxyNoEngine": (3, None), "PdProxyErrors": (5, None)}),
    "broken files": (rigs.files_broken, {
        "PdProxyDiscoveryFails": (7, None), "PdProxyConfigRefused": (3, None), "PdProxyKeysBroken": (3, None)}),
}


def scaled(text, scale):
    """Rules whose times are shorter."""
    def shorter(match):
        return f"{match[1]}{round(1000 * float(match[2]) * UNITS[match[3]] / scale)}ms"
    return re.sub(r"(\bfor: |\[|\boffset )(\d+)(ms|[smh])\b", shorter, text)


class Prometheus:
    """A real one, that scrapes the sites by the example configuration."""

    def __init__(self, rig, program, scale):
        self.rig = rig
        rules = (ROOT / "config/prometheus/alerts.yml").read_text()
        self.address = f"127.0.0.1:{free_port()}"
        text, intervals = re.subn("_interval: 15s", "_interval: 1s", (ROOT / "config/prometheus/prometheus.yml").read_text())
        assert (text.count("localhost:8000"), intervals) == (1, 2), "prometheus.yml has other targets or intervals than this expects"
        # One group of targets for each site, which a file adds as soon as it runs.
        text = re.sub(r"static_configs:.*?\n\n", f"file_sd_configs:\n      - files: [{rig.directory}/sites.json]\n        refresh_interval: 1s\n\n", text, flags=re.S)
        (rig.directory / "sites.json").write_text("[]")
        (rig.directory / "prometheus.yml").write_text(text)
        (rig.directory / "alerts.yml").write_text(scaled(rules, scale))
        rig.processes.append(Process(rig.directory, "prometheus", [
            program, f"--config.file={rig.directory}/prometheus.yml", f"--web.listen-address={self.address}", f"--storage.tsdb.path={rig.directory}/data",
            "--query.lookback-delta=10s"]))
        wait("Prometheus to start", self.ready)

    def ready(self):
        try:
            return "Ready" in get(self.address, "/-/ready")
        except OSError:
            return False

    def watch(self):
        sites = [{"targets": [site.address], "labels": {"site": name, **site.labels}} for name, site in self.rig.sites.items() if hasattr(site, "address")]
        part = self.rig.directory / "sites.part"
        part.write_text(json.dumps(sites))
        part.rename(self.rig.directory / "sites.json")

    def query(self, path, **query):
        answer = json.loads(get(self.address, f"/api/v1/{path}", **query))
        assert answer["status"] == "success", answer
        return answer["data"]

    def fired(self, begin, end):
        """Per site and alert: when it first fired, and for which engines."""
        found = {}
        for series in self.query("query_range", query='ALERTS{alertstate="firing"}', start=begin, end=end, step=0.5)["result"]:
            labels = series["metric"]
            at, engines = found.setdefault((labels.get("site") or self.site_of(labels["instance"]), labels["alertname"]), ([], set()))
            at.append(series["values"][0][0])
            engines.add(labels.get("engine"))
        return {key: (min(at), engines) for key, (at, engines) in found.items()}

    def missed(self, begin, end):
        """Scrapes of gateways that ran, and did not answer in time."""
        names = "|".join(name for name in self.rig.sites if name != "the gateway killed")
        late = self.query("query", query=f'sum(count_over_time((up{{site=~"{names}"}} == 0)[{round(end - begin)}s:1s]))', time=end)["result"]
        return int(float(late[0]["value"][1])) if late else 0

    def site_of(self, instance):
        """Sums have no label that this test added."""
        return next(name for name, site in self.rig.sites.items() if getattr(site, "address", None) == instance)


class Seen:
    """What fired, when each trouble was planted, and how many scrapes were missed."""

    def __init__(self, scale, fired, planted, missed):
        self.scale, self.fired, self.planted, self.missed = scale, fired, planted, missed

    def minutes(self, name, at):
        """After the trouble, in the rules' own time."""
        return (at - self.planted.get(name, at)) * self.scale / 60

    def but(self, fired):
        return Seen(self.scale, fired, self.planted, self.missed)


def judge(seen, sites):
    """What is wrong with what fired."""
    fired = seen.fired
    for name, (_, expected) in TROUBLES.items():
        for alert, (within, engines) in expected.items():
            if (name, alert) not in fired:
                yield f"{name}: no {alert}"
                continue
            at, about = fired[name, alert]
            late = seen.minutes(name, at)
            if not 0 <= late <= within:
                yield f"{name}: {alert} after {late:.1f} minutes, expected within {within}"
            if engines is ENGINES and about != set(sites[name].victims):
                yield f"{name}: {alert} is for {sorted(about)}, expected {sorted(sites[name].victims)}"
    for name, alert in fired:
        if alert not in TROUBLES.get(name, (None, {}))[1]:
            yield f"{name}: {alert} fires, and should not"


def run(rig, program, scale):
    """Everything from the start to the end."""
    prometheus = Prometheus(rig, program, scale)
    plants = {}
    for name, make in WELL.items():
        make(rig.site(name))
    for name, (make, _) in TROUBLES.items():
        plants[name] = make(rig.site(name))
    prometheus.watch()
    begin = time.time()
    time.sleep(BEFORE * 60 / scale)
    planted = {}

    def plant(name):
        planted[name] = time.time()
        plants[name]()
    threads = [threading.Thread(target=plant, args=(name,)) for name in TROUBLES]
    for thread in threads:
        thread.start()
    # Those that start with their trouble are known by now.
    time.sleep(2)
    prometheus.watch()
    for thread in threads:
        thread.join()
    time.sleep(max(0, max(planted.values()) + AFTER * 60 / scale - time.time()))
    end = time.time()
    return Seen(scale, prometheus.fired(begin, end), planted, prometheus.missed(begin, end))


def served(rig):
    """What clients of the fleets that are well were answered."""
    for name in WELL:
        site = rig.sites[name]
        wrong = [status for status in site.statuses if status != 200]
        if wrong:
            yield f"{name}: {len(wrong)} of {len(site.statuses)} requests got {sorted(set(wrong))}"


def finds_faults(seen, sites):
    """What fired, with one fault each."""
    fired, planted = seen.fired, seen.planted

    def without(key):
        return {other: value for other, value in fired.items() if other != key}
    down, rests = ("the gateway killed", "PdProxyDown"), ("one decoder killed", "PdProxyEngineRests")
    faults = {
        "an alert that is missing": without(down),
        "an alert of a fleet that is well": fired | {("plain", "PdProxyBlocksUnnamed"): (0, {None})},
        "an alert that is late": fired | {down: (fired[down][0] + 600 / seen.scale, {None})},
        "an alert that was there before": fired | {down: (planted[down[0]] - 1, {None})},
        "another engine": fired | {rests: (fired[rests][0], {"127.0.0.1:1"})},
        "one alert too many": fired | {(down[0], "PdProxyErrors"): (planted[down[0]] + 1, {None})},
    }
    for name, changed in faults.items():
        if not list(judge(seen.but(changed), sites)):
            yield f"nobody found the fault: {name}"


def look(options, scale):
    """One run, and what is wrong with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        rig = rigs.Rig(pathlib.Path(options.program).resolve(), pathlib.Path(directory))
        try:
            seen = run(rig, options.prometheus, scale)
            wrong = [*judge(seen, rig.sites), *served(rig)] or list(finds_faults(seen, rig.sites))
        finally:
            rig.stop()
    for (name, alert), (at, _) in sorted(seen.fired.items()):
        print(f"  {name}: {alert} after {seen.minutes(name, at):.1f} minutes")
    return seen, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--program", "--prometheus"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    # So that the rig is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for scale in SCALES:
        seen, wrong = look(options, scale)
        if not wrong or not seen.missed:
            break
        print(f"alerts: {seen.missed} scrapes were late: this machine is too busy for times {scale} times shorter")
    for why in wrong:
        print(f"BAD {why}")
    print(f"alerts: {len(WELL)} fleets that are well, {len(TROUBLES)} troubles, {len(seen.fired)} alerts fired, times {seen.scale} times shorter")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
