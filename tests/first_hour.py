#!/usr/bin/env python3
"""Prints what a newcomer is told in a first hour: for a few fleets in trouble what the log, /readyz, the status page's data, metrics, alerts and
`pd-proxy check` each say, as a table in Markdown. Nothing is judged: it is for people who read the words.

    python3 tests/first_hour.py --program target/release/pd-proxy --prometheus /usr/bin/prometheus

The Python needs pyzmq, as that of alerts.sh has it. Alerts have times that are shorter, as in alerts.py.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import alerts
import alerts_rig as rigs
from processes import ask, get

SCALE = 30
# Minutes of the rules that the trouble lasts.
AFTER = 16


def keys_forgotten(site):
    """Clients must show a key, and show none."""
    site.pair()
    made = subprocess.run([site.rig.program, "api-key", "new", "--name", "good"], capture_output=True, text=True, check=True)
    keys = site.rig.directory / f"{site.name}-keys"
    keys.write_text(made.stdout)
    site.serve(f'[auth]\nkeys_file = "{keys}"\n')
    return lambda: site.clients()


def engines_keys_forgotten(site):
    """Engines ask for a key that nobody told the gateway."""
    env = os.environ | {"SIM_KEY": "secret"}
    for role in ("prefill", "decode"):
        site.engine(role, "--api-key-env", "SIM_KEY", env=env)
    site.serve()
    return lambda: site.clients()


def nothing(make):
    def well(site):
        make(site)
        return lambda: None
    return well


FLEETS = {
    "plain fleet, well": nothing(rigs.plain),
    "nothing listens": rigs.nobody_listens,
    "one decoder killed": rigs.decoder_killed,
    "both decoders killed": rigs.decoders_killed,
    "a wrong seed": rigs.wrong_seed,
    "the pool away": rigs.pool_killed,
    "clients forget their key": keys_forgotten,
    "the engines' key forgotten": engines_keys_forgotten,
}


def log(site):
    """What it says of engines and roles that are down, and the last lines beside them, each kind once."""
    kinds = {}
    for line in site.gateway.said().splitlines():
        if match := re.match(r"\S+ +(INFO|WARN|ERROR) (.*)", re.sub(r"\x1b\[[0-9;]*m", "", line)):
            kinds[re.sub(r"[0-9]+|[0-9a-f-]{36}", "#", match[2])[:60]] = f"{match[1]} {match[2]}"
    grave = [line for line in kinds.values() if not line.startswith("INFO")] or list(kinds.values())
    states = [line for line in grave if re.match(r"\w+ (engine|role) ", line)]
    return " / ".join(line[:130] for line in states[:2] + [line for line in grave if line not in states][-1:])


def readyz(site):
    status = ask(site.address, path="/readyz")
    return f"{status} {get(site.address, '/readyz').strip()}"


def page(site):
    shown = json.loads(get(site.address, "/status.json"))
    if "engines" not in shown:
        return f"none: {shown['error']['message']}"
    engines = [f"{one['role']} {one['state']}" + (f" ({one['cause']})" if one["cause"] else "") for one in shown["engines"]]
    recent = shown["recent"]
    unfound = "".join(f"; nothing stored is found in {source}" for source in shown["beliefs"]["unfound"])
    return f"{shown['gateway']['state']}; {', '.join(engines)}; {recent['failed']} of {recent['ended']} failed{unfound}"


def metrics(site):
    text = get(site.address, "/metrics")
    roles = re.findall(r'^pd_proxy_role_state{role="(\w+)",state="(\w+)"} 1$', text, re.M)
    ends = re.findall(r'^pd_proxy_requests_total{.*code="(\d+)",reason="(\w+)"} (\d+)$', text, re.M)
    unfound = re.findall(r'^pd_proxy_block_names_unfound{source="(\w+)"} 1$', text, re.M)
    roles += [(f"names of {source}", "unfound") for source in unfound]
    return ", ".join(f"{role} {state}" for role, state in roles) + "; requests: " + ", ".join(f"{n} {code} {reason}" for code, reason, n in ends if n != "0")


def checked(site):
    run = subprocess.run([site.rig.program, "check", "--config", site.config], capture_output=True, text=True, timeout=60)
    lines = [line for line in run.stdout.splitlines() + run.stderr.splitlines() if line.strip()]
    return f"exit {run.returncode}: " + " / ".join(line[:150] for line in lines[:2])


def tell(rig, prometheus):
    plants = {name: make(rig.site(name)) for name, make in FLEETS.items()}
    run = alerts.Prometheus(rig, prometheus, SCALE)
    run.watch()
    time.sleep(3)
    began = time.time()
    for plant in plants.values():
        plant()
    time.sleep(2)
    run.watch()
    time.sleep(AFTER * 60 / SCALE)
    fired = run.fired(began, time.time())
    print("| Fleet | Log | /readyz | Page | Metrics | Alerts | check |\n|---|---|---|---|---|---|---|")
    for name, site in rig.sites.items():
        told = [f"{alert.removeprefix('PdProxy')} after {(at - began) * SCALE / 60:.0f} min" for (of, alert), (at, _) in sorted(fired.items()) if of == name]
        cells = [log(site), readyz(site), page(site), metrics(site), ", ".join(told) or "none", checked(site)]
        print(f"| {name} | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--program", "--prometheus"):
        parser.add_argument(name, required=True, type=pathlib.Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        rig = rigs.Rig(options.program.resolve(), pathlib.Path(directory))
        try:
            tell(rig, options.prometheus)
        finally:
            rig.stop()


if __name__ == "__main__":
    main()
