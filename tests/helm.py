#!/usr/bin/env python3
"""Proves the chart of config/helm, as tests/helm/render.go renders it, and that Helm's own engine makes the same of it: Helm's Go packages, as a
Python package has them. What render.go does not stand for of helm, it says itself.

* With its default values the chart says what the manifests of config/kubernetes say, but for differences that are listed here with their reasons;
  where engines are found by DNS, what those of `dns` say. The presets are what the guides have.
* Rendered by each of many values, what comes out is what Kubernetes' schemas allow, agrees with itself and with the program (deploy_rules.py),
  and is the same whatever type helm gives to numbers. Every value is set somewhere, and every one that is set changes something.
* Values that make no sense are refused, by a message that names them and says what to do.
* Pods fit the profile `restricted` of pod security, and by values-openshift.yaml OpenShift's constraint restricted-v2.
* A gateway runs by a rendered ConfigMap; the key in the chart's own Secret is one that the Secret's keys.toml knows.

At the end faults are planted in the chart, which must be found. Started by helm.sh. Exit status 0: all as it should be.
"""
import argparse
import base64
import copy
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

import jsonschema
import yaml

import deploy
import deploy_live
from deploy_rules import ROOT, Manifests, agreement, dns, fits, headless, merged, tomllib
from helm_itself import Helm
from helm_values import CASES, DIFFERENCES, FAULTS, REFUSED, leaves
from pod_security import openshift

CHART = ROOT / "config/helm/pd-proxy"
NUMBERS = ["float64", "json", "int64"]
# The fields of the Prometheus operator's own kind, which is in no schema of Kubernetes, as its documentation has them.
ENDPOINT = {"port", "path", "interval", "scheme", "tlsConfig", "relabelings"}
RULE = {"alert", "expr", "for", "labels", "annotations"}


class Refused(Exception):
    """What helm would say in place of manifests."""


class Chart:
    """The chart in a folder, which may be a copy with a fault."""

    def __init__(self, renderer, folder):
        self.renderer, self.folder = renderer, folder
        self.schema = json.loads((folder / "values.schema.json").read_text())
        self.presets = sorted(folder.glob("values-*.yaml"))

    def files(self, values, numbers="float64", strict=False, release="pd-proxy"):
        """The text of each template, by values or by a file with some."""
        with tempfile.TemporaryDirectory() as folder:
            path = values
            if not isinstance(values, pathlib.Path):
                path = pathlib.Path(folder, "values.yaml")
                path.write_text(json.dumps(values))
            command = [self.renderer, "-chart", self.folder, "-numbers", numbers, "-release", release, f"-strict={str(strict).lower()}", path]
            run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        said = json.loads(run.stdout)
        for error in jsonschema.Draft7Validator(self.schema).iter_errors(said.get("values") or {}):
            raise Refused(f"{'.'.join(map(str, error.absolute_path))}: {error.message}")
        if "error" in said:
            raise Refused(said["error"])
        return said["files"]

    def manifests(self, values, **how):
        docs = []
        for name, text in sorted(self.files(values, **how).items()):
            if name != "NOTES.txt":
                try:
                    docs += [doc for doc in yaml.load_all(text, deploy.Strict) if doc]
                except yaml.YAMLError as error:
                    raise Refused(f"{name} is no YAML: {error}") from error
        return Manifests(docs, deploy.Files().keys)


def fitting(doc):
    """What schemas have against a manifest."""
    if doc["kind"] == "PrometheusRule":
        groups = doc["spec"]["groups"]
        good = all(group.keys() == {"name", "rules"} and all(rule.keys() <= RULE for rule in group["rules"]) for group in groups)
        return [] if good and doc["apiVersion"] == "monitoring.coreos.com/v1" else [f"PrometheusRule has {groups}"]
    if doc["kind"] != "ServiceMonitor":
        return fits(f"{doc['kind']} {doc['metadata']['name']}", doc)
    spec = doc["spec"]
    good = spec.keys() == {"selector", "endpoints"} and all(one.keys() <= ENDPOINT for one in spec["endpoints"])
    return [] if good and doc["apiVersion"] == "monitoring.coreos.com/v1" else [f"ServiceMonitor has {spec}"]


def flat(value, path=()):
    """Every value in a tree, by its path; the configuration as what it says."""
    if path[-1:] == ("pd-proxy.toml",):
        value = deploy.tomllib.loads(value)
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if not inner:
        return {" > ".join(map(str, path)): value}
    return {key: leaf for name, one in inner for key, leaf in flat(one, (*path, name)).items()}


def by_name(docs):
    return {key: leaf for doc in docs for key, leaf in flat(doc, (doc["kind"], doc["metadata"]["name"])).items()}


def same(what, plain, rendered, allowed):
    """Whether both say the same, but for what is allowed to differ, which must."""
    ours, theirs = by_name(plain), by_name(rendered)
    different = {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}
    for path in sorted(different):
        if not any(re.search(pattern, path) for pattern in allowed):
            yield f"{what}: {path} is {theirs.get(path)!r} by the chart, {ours.get(path)!r} in the plain manifests"
    for pattern in allowed:
        if not any(re.search(pattern, path) for path in different):
            yield f"{what}: {pattern} differs no longer: take it from the list"


def defaults(chart):
    plain = deploy.Files()
    yield from same("defaults", plain.docs, chart.manifests({}).docs, DIFFERENCES)
    by_dns = chart.manifests({"discovery": {"mode": "dns"}})
    kinds = ("ConfigMap", "Service")
    plain_docs = plain.by_dns.all("Service") + plain.by_dns.all("ConfigMap") + plain.manifests["dns/engines.yaml"]
    allowed = [pattern for pattern in DIFFERENCES if not re.search("RoleBinding|Secret", pattern)] + [r"^Service > pd-proxy-\w+ > metadata > labels > "]
    yield from same("dns", plain_docs, [doc for kind in kinds for doc in by_dns.all(kind)], allowed)
    engines = [by_dns.of("Service", name.split(":")[0]) for name in dns(by_dns)]
    yield from headless("dns", engines, dns(by_dns))
    yield from own_keys(chart.manifests({}).of("Secret"))


def own_keys(secret):
    """The key of the first client is the one whose hash keys.toml has."""
    said = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    key, = tomllib.loads(said["keys.toml"])["key"]
    if key["sha256"] != hashlib.sha256(said["CLIENT_API_KEY"].encode()).hexdigest():
        yield f"the key in the chart's own Secret opens nothing: {said}"


def itself(chart, helm):
    """Where Helm's own engine makes something else of the chart."""
    cases = {path.name: path for path in chart.presets} | {"defaults": {}} | {name: values for name, (values, _) in CASES.items()}
    for name, values in cases.items():
        ours, theirs = chart.files(values), helm.files(values)
        for file in sorted(ours.keys() | theirs.keys()):
            if parsed(file, ours.get(file)) != parsed(file, theirs.get(file)):
                yield f"{name}: Helm makes another {file}: {theirs.get(file)}"
    for name, (values, words) in REFUSED.items():
        try:
            helm.files(values)
            yield f"{name}: Helm does not refuse it"
        except Refused as error:
            # What the schema refuses Helm says in words of its own.
            if words[0].split(".")[-1] not in str(error):
                yield f"{name}: Helm's {str(error)!r} does not say {words[0]}"
    yield from (f"helm lint: {finding}" for finding in helm.lint())


def parsed(file, text):
    """What a file says, without what is another each time."""
    if text is None or file == "NOTES.txt":
        return text
    docs = [doc for doc in yaml.load_all(text, deploy.Strict) if doc]
    for doc in docs:
        if doc["kind"] == "Secret":
            doc["data"] = sorted(doc["data"])
    return docs


def presets(chart):
    """Kthena's labels are those of dns/kthena.yaml, EMS's ports those of config/ems.toml."""
    if [path.name for path in chart.presets] != ["values-ems-cce.yaml", "values-kthena.yaml", "values-openshift.yaml"]:
        yield f"presets are {chart.presets}"
        return
    yield from (f"values-openshift.yaml: {problem}" for problem in openshift(chart.manifests(chart.presets[2]).pod["spec"]))
    labels = {doc["metadata"]["name"]: doc["spec"]["selector"] for doc in deploy.Files().manifests["dns/kthena.yaml"]}
    ems = deploy.tomllib.loads((ROOT / "config/ems.toml").read_text())
    ports = {"values-ems-cce.yaml": (ems["server"]["port"], ems["fleet"]["prefill"][0].rsplit(":", 1)[1]), "values-kthena.yaml": (8000, "8000")}
    for path in chart.presets[:2]:
        preset = chart.manifests(path)
        for role, many in [("prefill", "prefillers"), ("decode", "decoders")]:
            wanted = ",".join(f"{key}={value}" for key, value in labels[f"pd-proxy-{many}"].items())
            got = preset.kubernetes.get(f"{role}_selector")
            if got != wanted:
                yield f"{path.name}: {role} has the labels {got}, expected {wanted}"
            if preset.kubernetes[f"{role}_ports"] != [ports[path.name][1]]:
                yield f"{path.name}: engines are at {preset.kubernetes}, expected {ports[path.name]}"
        port = preset.of("Service")["spec"]["ports"][0]["port"]
        if (port, preset.said["server"]["port"]) != (ports[path.name][0],) * 2:
            yield f"{path.name}: clients ask {port}, expected {ports[path.name]}"


def without(values, path):
    """A copy that does not say that; tables that are empty then are gone, too."""
    left = copy.deepcopy(values)
    tables = [left]
    for key in path[:-1]:
        tables.append(tables[-1][key])
    for table, key in reversed(list(zip(tables, path))):
        if key == path[-1] or not table[key]:
            del table[key]
    return left


def outcome(chart, values, **how):
    try:
        return chart.files(values, **how)
    except Refused as error:
        return str(error)


def rendered(chart, program, name, values):
    """What is wrong with what comes out by some values."""
    files = chart.manifests(values)
    said = yaml.safe_load(values.read_text()) if isinstance(values, pathlib.Path) else values
    policy = said.get("networkPolicy", {})
    files.more_out = {("TCP", port) for port in policy.get("enginePorts", [])}
    files.more_out |= {(protocol, port) for port in policy.get("dnsPorts", []) for protocol in ("TCP", "UDP")}
    files.more_out |= {(port.get("protocol", "TCP"), port["port"]) for rule in policy.get("extraEgress", []) for port in rule["ports"]}
    files.more_out |= {("TCP", 6379)} if said.get("share", {}).get("valkey", {}).get("enabled") else set()
    files.rights_elsewhere = said.get("rbac", {}).get("create") is False
    files.account_elsewhere = said.get("serviceAccount", {}).get("create") is False
    texts = chart.files(values)
    for how in [{"numbers": numbers} for numbers in NUMBERS[1:]] + [{"strict": True}]:
        if outcome(chart, values, **how) != texts:
            yield f"{name}: it is another with {how}: {outcome(chart, values, **how)}"
    if "<" in re.sub(r">>", "", texts["NOTES.txt"]) or "%!" in "".join(texts.values()):
        yield f"{name}: NOTES.txt or a template prints what is no value: {texts['NOTES.txt']}"
    for doc in files.docs:
        yield from (f"{name}: {problem}" for problem in fitting(doc))
    names = [(doc["kind"], doc["metadata"]["name"]) for doc in files.docs]
    if len(names) != len(set(names)):
        yield f"{name}: of {names} some are twice"
    config, refused = merged(program, files)
    if refused:
        yield f"{name}: {refused}"
        return
    yield from (f"{name}: {problem}" for problem in agreement(files, config))


def cases(chart, program):
    for path in chart.presets:
        yield from rendered(chart, program, path.name, path)
    yield from rendered(chart, program, "defaults", {})
    # But for what the profile `restricted` lets nobody change.
    unset = {path for path in leaves(yaml.safe_load((chart.folder / "values.yaml").read_text())) if not {"podSecurityContext", "securityContext"} & set(path)}
    for name, (values, expected) in CASES.items():
        yield from case(chart, program, name, values, expected)
        for path in leaves(values):
            unset -= {known for known in unset if known[:len(path)] == path or path[:len(known)] == known}
    for path in sorted(unset):
        yield f"no case sets {'.'.join(path)}"
    other = chart.manifests({}, release="llm")
    if {doc["metadata"]["name"] for doc in other.docs} != {"llm-pd-proxy"} or other.pod["metadata"]["labels"]["app.kubernetes.io/instance"] != "llm":
        yield "another release has the names of this one"


def case(chart, program, name, values, expected):
    """What is wrong by some values: all of them must show, and what is expected."""
    try:
        yield from rendered(chart, program, name, values)
        if not expected(chart.manifests(values)):
            yield f"{name}: it does not show in what is rendered"
    except Refused as error:
        yield f"{name}: refused: {error}"
        return
    for path in leaves(values):
        if outcome(chart, without(values, path)) == outcome(chart, values):
            yield f"{name}: {'.'.join(path)} changes nothing"


def refusals(chart):
    for name, (values, words) in REFUSED.items():
        said = outcome(chart, values)
        if not isinstance(said, str):
            yield f"{name} is not refused"
        elif not all(word in said for word in words):
            yield f"{name}: {said!r} does not say {words}"


def known(chart):
    """Values and their schema have the same keys."""
    def walk(values, schema, path):
        schema = chart.schema["definitions"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
        there = schema.get("properties", {}).keys() - {"global"}
        if there and isinstance(values, dict):
            if values.keys() != there:
                yield f"values.yaml and values.schema.json differ at {path or 'the top'}: {sorted(values.keys() ^ there)}"
            for key in values.keys() & there:
                yield from walk(values[key], schema["properties"][key], f"{path}.{key}")
    yield from walk(yaml.safe_load((chart.folder / "values.yaml").read_text()), chart.schema, "")
    about = yaml.safe_load((chart.folder / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    if (about["version"], about["appVersion"]) != (version, version):
        yield f"Chart.yaml has {about['version']} and {about['appVersion']}, the program is {version}"


def problems(chart, program, only=None):
    """All that is wrong, the soonest first; or by one of CASES alone."""
    if only:
        yield from case(chart, program, only, *CASES[only])
        return
    try:
        yield from known(chart)
        yield from defaults(chart)
        yield from presets(chart)
        yield from refusals(chart)
        yield from cases(chart, program)
    except Refused as error:
        yield f"refused: {error}"
    except deploy.tomllib.TOMLDecodeError as error:
        yield f"the configuration is no TOML: {error}"


def self_test(renderer, program):
    for name, (file, old, new, word, *only) in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder, "pd-proxy")
            shutil.copytree(CHART, broken)
            text = (broken / file).read_text()
            (broken / file).write_text(deploy.edit(text, old, new))
            found = []
            for problem in problems(Chart(renderer, broken), program, *only):
                found.append(problem)
                if word in problem:
                    break
            else:
                raise SystemExit(f"helm: the checks don't find {name}: {found}")
    return len(FAULTS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--renderer", required=True, type=pathlib.Path)
    given = parser.parse_args()
    program, chart = str(pathlib.Path(given.program).resolve()), Chart(given.renderer.resolve(), CHART)
    helm = Helm(CHART, Refused)
    found = list(problems(chart, program)) or list(itself(chart, helm))
    if not found:
        files = chart.manifests({"discovery": {"mode": "dns"}})
        found = deploy_live.problems(program, files, merged(program, files)[0])
    for problem in found:
        print(f"helm: {problem}")
    if found:
        raise SystemExit(1)
    print(f"helm: the chart says what the plain manifests say; by {len(CASES)} sets of values and {len(chart.presets)} presets it agrees with the program; "
          f"{len(REFUSED)} are refused; a gateway runs by it")
    print(f"helm: {self_test(chart.renderer, program)} planted faults were found. Helm {helm.version} renders the same as tests/helm/render.go")


if __name__ == "__main__":
    main()
