#!/usr/bin/env python3
"""Proves the files by which users deploy the gateway: config/kubernetes and config/systemd.

* Every manifest is what Kubernetes' own schemas allow, of the oldest and the newest release that are known here; no field is unknown.
* Names, labels, ports, paths, times and rights that stand in several of them, in the configuration and in the unit are the same.
* The program accepts the ConfigMaps' configurations and the Secret's keys, and run by that of `dns` it finds its engines by [discovery],
  answers the probes, asks for keys, follows changes of both, and drains at SIGTERM. There is no API server here: discovery through it is
  proven by the program's own tests.
* Those by which engines are scaled say the same, KEDA's by KEDA's own schema (deploy_autoscale.py).
* The unit is one that systemd can read, where its tool is installed.

At the end the checks are given faults, which they must find. Started by deploy.sh. Exit status 0: all as it should be.
"""
import argparse
import copy
import pathlib
import re
import shutil
import subprocess
import tempfile

import yaml

import deploy_autoscale
import deploy_live
from deploy_rules import RELEASE_MS, RELEASES, ROOT, Manifests, agreement, apart, dns, fits, headless, merged

try:
    import tomllib
except ImportError:
    import tomli as tomllib

FOLDER = ROOT / "config/kubernetes"
UNIT = ROOT / "config/systemd/pd-proxy.service"
SOCKET, REPLACE = ROOT / "config/systemd/pd-proxy.socket", ROOT / "config/systemd/replace.conf"
APPLIED = {"configmap.yaml", "deployment.yaml", "networkpolicy.yaml", "pdb.yaml", "rbac.yaml", "service.yaml"}
SERVICES = ["dns/engines.yaml", "dns/kthena.yaml"]
OTHERS = {"dns/configmap.yaml", *SERVICES, "example/secret.yaml", "example/two-models.yaml", *deploy_autoscale.FILES}
# What the program opens beside two descriptors for each stream.
OTHER_FILES = 100


class Strict(yaml.SafeLoader):
    """YAML without keys that stand twice, of which the others would be lost in silence."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, f"a key stands twice among {keys}", node.start_mark)
        return super().construct_mapping(node, deep)


class Files(Manifests):
    """All that is judged: what is applied, what may be applied in its place, an example, a unit."""

    def __init__(self):
        self.found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.y*ml")}
        self.manifests = {name: list(yaml.load_all((FOLDER / name).read_text(), Strict)) for name in sorted(self.found)}
        self.unit, self.socket, self.replace = UNIT.read_text(), SOCKET.read_text(), REPLACE.read_text()

    @property
    def docs(self):
        return [doc for name in sorted(APPLIED) for doc in self.manifests[name]]

    @property
    def secret(self):
        one, = self.manifests["example/secret.yaml"]
        return one["stringData"]

    @property
    def keys(self):
        return self.secret["keys.toml"]

    @property
    def by_dns(self):
        """As they are applied where engines are found by DNS."""
        return Manifests([doc for doc in self.docs if doc["kind"] != "ConfigMap"] + self.manifests["dns/configmap.yaml"], self.keys)


def schema(files):
    if files.found != APPLIED | OTHERS:
        yield f"files are {sorted(files.found)}"
    for name, docs in files.manifests.items():
        for doc in docs:
            yield from (deploy_autoscale.fits if deploy_autoscale.is_scaled_object(doc) else fits)(name, doc)
            if "namespace" in doc["metadata"]:
                yield f"{name}: {doc['kind']} names a namespace"


def engines(files):
    """What is applied for DNS: the names that the gateway asks for are Services whose addresses are pods."""
    by_dns = files.by_dns
    if {key: value for key, value in by_dns.said.items() if key != "discovery"} != {key: value for key, value in files.said.items() if key != "discovery"}:
        yield "dns/configmap.yaml differs from configmap.yaml in more than [discovery]"
    for file in SERVICES:
        yield from headless(file, files.manifests[file], dns(by_dns))
        yield from apart(file, [doc["spec"]["selector"] for doc in files.manifests[file]], files.pod["metadata"]["labels"])


def secrets(files):
    """What the example has is what the pods read."""
    there = {(files.manifests["example/secret.yaml"][0]["metadata"]["name"], key) for key in files.secret}
    volumes = [volume["secret"] for volume in files.pod["spec"]["volumes"] if "secret" in volume]
    read = {(volume["secretName"], item["key"]) for volume in volumes for item in volume["items"]}
    if there != read:
        yield f"the example of a Secret has {there}, mounted is {read}"


def unit(files, defaults):
    """By what systemd takes for granted, by the program's own numbers, and by systemd's tool."""
    said = dict(line.split("=", 1) for line in files.unit.splitlines() if re.match(r"[A-Z]\w+=", line))
    server = defaults["server"]
    needed = server["lame_duck_ms"] + server["drain_ms"] + RELEASE_MS
    if int(said["TimeoutStopSec"]) * 1_000 <= needed:
        yield f"TimeoutStopSec={said['TimeoutStopSec']}, a shutdown may take {needed} ms"
    if int(said["LimitNOFILE"]) < 2 * defaults["limit"]["connections"] + OTHER_FILES:
        yield f"LimitNOFILE={said['LimitNOFILE']} is too low for limit.connections"
    wanted = {"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "",
              "KillSignal": "SIGTERM", "ExecReload": "/bin/kill -HUP $MAINPID"}
    for name, value in wanted.items():
        if said.get(name) != value:
            yield f"{name}={said.get(name)}, expected {value!r}"
    for text, line in [(files.socket, f"ListenStream={server['port']}"), (files.socket, "Service=pd-proxy@a.service"), (files.replace, "Sockets=pd-proxy.socket")]:
        if line not in text.splitlines():
            yield f"the units for a replacement lack {line}"
    if tool := shutil.which("systemd-analyze"):
        with tempfile.TemporaryDirectory() as folder:
            # As they are installed; the program need not be here.
            unit = files.unit.replace("ExecStart=/usr/bin/pd-proxy ", "ExecStart=/bin/true ")
            paths = {UNIT.name: unit, "pd-proxy@.service": unit, SOCKET.name: files.socket, "pd-proxy@.service.d/replace.conf": files.replace}
            for name, text in paths.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            named = [pathlib.Path(folder, name) for name in (UNIT.name, SOCKET.name, "pd-proxy@a.service")]
            run = subprocess.run([tool, "verify", "--man=no", *named], capture_output=True, text=True, timeout=60)
            # Of these units alone: it also speaks of others on the machine.
            yield from (line for line in run.stderr.splitlines() if "pd-proxy" in line or folder in line)


def problems(program, files, defaults):
    """All that is wrong with the files, without running a gateway by them."""
    found = list(schema(files))
    if found:
        # What the schemas refuse has no shape that could be looked into.
        return found
    config, refused = merged(program, files)
    if refused:
        return [refused]
    found += engines(files)
    found += secrets(files)
    found += deploy_autoscale.problems(files.manifests)
    if refused := merged(program, files.by_dns)[1]:
        found.append(f"dns: {refused}")
    return found + agreement(files, config) + list(unit(files, defaults))


def edit(text, old, new):
    assert old in text, old
    return text.replace(old, new)


def config_fault(old, new):
    def plant(files):
        files.of("ConfigMap")["data"]["pd-proxy.toml"] = edit(files.toml, old, new)
    return plant


def dns_fault(old, new):
    def plant(files):
        data = files.by_dns.of("ConfigMap")["data"]
        data["pd-proxy.toml"] = edit(data["pd-proxy.toml"], old, new)
    return plant


def socket_fault(old, new):
    return lambda files: setattr(files, "socket", files.socket.replace(old, new))


def unit_fault(old, new):
    def plant(files):
        files.unit = edit(files.unit, old, new)
    return plant


# What is planted, and a word of what must be said of it.
FAULTS = {
    "a field that does not exist": (lambda f: f.container.update(readOnlyRootFilesystem=True), "readOnlyRootFilesystem"),
    "a text for a number": (lambda f: f.of("Deployment")["spec"].update(replicas="two"), "'two'"),
    "a kind that does not exist": (lambda f: f.of("Service").update(apiVersion="v2"), "schema"),
    "a namespace": (lambda f: f.of("Service")["metadata"].update(namespace="llm"), "namespace"),
    "a key that does not exist": (config_fault("drain_ms", "drian_ms"), "drian_ms"),
    "a longer drain": (config_fault("120_000", "140_000"), "terminationGracePeriodSeconds"),
    "no time to notice": (config_fault("lame_duck_ms = 10_000", "lame_duck_ms = 1_000"), "lame_duck_ms"),
    "another port": (config_fault("port = 8000", "port = 8001"), "container's ports"),
    "the loopback": (config_fault('host = "0.0.0.0"\nport', 'host = "localhost"\nport'), "server.host"),
    "a host over the file's": (lambda f: f.container["env"].append({"name": "PD_PROXY__SERVER__HOST", "value": "::"}), "of the image"),
    "another name": (dns_fault("pd-proxy-decoders", "decoders"), "asks for"),
    "another configuration for DNS": (dns_fault("120_000", "110_000"), "more than [discovery]"),
    "one selector": (config_fault("role=decode", "role=prefill"), "apart"),
    "the gateway as an engine": (config_fault("app=vllm,role=decode", "app.kubernetes.io/name=pd-proxy"), "apart"),
    "discovery by Services": (config_fault("prefill_selector = \"app=vllm,role=prefill\"", "prefill_service = \"engines\""), "rights"),
    "no right to watch": (lambda f: f.of("Role")["rules"][0]["verbs"].remove("watch"), "rights"),
    "a right too many": (lambda f: f.of("Role")["rules"][0]["resources"].append("secrets"), "rights"),
    "rights for another": (lambda f: f.of("RoleBinding")["subjects"][0].update(name="default"), "RoleBinding"),
    "another account": (lambda f: f.pod["spec"].update(serviceAccountName="default"), "accounts are"),
    "no token": (lambda f: f.pod["spec"].update(automountServiceAccountToken=False), "token"),
    "no way to the API server": (lambda f: f.of("NetworkPolicy")["spec"]["egress"].pop(1), "egress"),
    "engines elsewhere": (config_fault("decode_ports = [\"8000\"]", "decode_ports = [\"7100\"]"), "egress"),
    "another Secret": (lambda f: f.pod["spec"]["volumes"][1]["secret"].update(secretName="keys"), "example of a Secret"),
    "keys elsewhere": (config_fault("pd-proxy-keys/", "pd-proxy/"), "auth.keys_file"),
    "a key in the clear": (lambda f: f.secret.update({"keys.toml": '[[key]]\nname = "a"\nkey = "sk-1"\n'}), "key"),
    "a closed port": (lambda f: f.of("NetworkPolicy")["spec"]["ingress"][0]["ports"][0].update(port=80), "ingress"),
    "no way to engines": (lambda f: f.of("NetworkPolicy")["spec"]["egress"].pop(), "egress"),
    "other pods": (lambda f: f.of("Service")["spec"].update(selector={"app": "vllm"}), "selects"),
    "a Service with an address": (lambda f: f.manifests["dns/engines.yaml"][1]["spec"].pop("clusterIP"), "headless"),
    "one role": (lambda f: f.manifests["dns/kthena.yaml"][1]["spec"]["selector"].update(
        {"modelserving.volcano.sh/role": "prefill"}), "apart"),
    "a probe elsewhere": (lambda f: f.container["livenessProbe"]["httpGet"].update(port="http"), "livenessProbe"),
    "root": (lambda f: f.pod["spec"]["securityContext"].update(runAsUser=0), "root"),
    "no budget": (lambda f: f.of("PodDisruptionBudget")["spec"].update(maxUnavailable=2), "at once"),
    "systemd's patience": (unit_fault("TimeoutStopSec=60", "TimeoutStopSec=30"), "TimeoutStopSec"),
    "few files": (unit_fault("LimitNOFILE=131072", "LimitNOFILE=1024"), "LimitNOFILE"),
    "a socket elsewhere": (socket_fault("ListenStream=8000", "ListenStream=9000"), "ListenStream"),
    "no sandbox": (unit_fault("ProtectSystem=strict", "ProtectSystem=no"), "ProtectSystem"),
}
# Only systemd's tool can find it.
SYSTEMD_FAULT = (unit_fault("RestartSec=2", "RestartSec=soon"), "Failed to parse")


def self_test(program, files, defaults):
    faults = FAULTS | deploy_autoscale.FAULTS | ({"no number for systemd": SYSTEMD_FAULT} if shutil.which("systemd-analyze") else {})
    for name, (plant, word) in faults.items():
        broken = copy.deepcopy(files)
        plant(broken)
        found = problems(program, broken, defaults)
        if not any(word in problem for problem in found):
            raise SystemExit(f"deploy: the checks don't find {name}: {found}")
    try:
        yaml.load("a: 1\na: 2\n", Strict)
    except yaml.constructor.ConstructorError:
        return len(faults) + 1
    raise SystemExit("deploy: a key that stands twice is not found")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    program = str(pathlib.Path(parser.parse_args().program).resolve())
    files = Files()
    run = subprocess.run([program, "check", "--offline", "--show"], capture_output=True, text=True, timeout=60, check=True)
    defaults = tomllib.loads(run.stdout)
    found = problems(program, files, defaults)
    if not found:
        found = deploy_live.problems(program, files.by_dns, merged(program, files.by_dns)[0])
    for problem in found:
        print(f"deploy: {problem}")
    if found:
        raise SystemExit(1)
    count = sum(map(len, files.manifests.values()))
    print(f"deploy: {count} manifests fit Kubernetes {' and '.join(RELEASES)}, or KEDA; names, ports, paths, times and rights agree; a gateway runs by them")
    if not shutil.which("systemd-analyze"):
        print("deploy: there is no systemd-analyze: the unit was looked at by our own rules alone")
    planted = self_test(program, files, defaults)
    print(f"deploy: {planted} planted faults were found")


if __name__ == "__main__":
    main()
