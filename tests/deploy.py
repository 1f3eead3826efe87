#!/usr/bin/env python3
"""Proves the files by which users deploy the gateway: config/kubernetes and config/systemd.

* Every manifest is what Kubernetes' own schemas allow, of the oldest and the newest release that are known here; no field is unknown.
* Names, labels, ports, paths and times that stand in several of them, in the configuration and in the unit are the same.
* The program accepts the ConfigMap's configuration and the Secret's keys, and run by them it finds its engines by [discovery], answers the
  probes, asks for keys, follows changes of both, and drains at SIGTERM.
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

import kubernetes_validate
import yaml

import deploy_live

try:
    import tomllib
except ImportError:
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "config/kubernetes"
UNIT = ROOT / "config/systemd/pd-proxy.service"
RELEASES = ["1.25", "1.37"]
APPLIED = {"configmap.yaml", "deployment.yaml", "engines.yaml", "networkpolicy.yaml", "pdb.yaml", "service.yaml"}
OTHERS = {"kthena/engines.yaml", "example/secret.yaml"}
# What a shutdown takes beside server.lame_duck_ms and server.drain_ms, as ARCHITECTURE.md says: two waits for hand-offs, one for spans.
RELEASE_MS = 13_000
# What the program opens beside two descriptors for each stream.
OTHER_FILES = 100


class Strict(yaml.SafeLoader):
    """YAML without keys that stand twice, of which the others would be lost in silence."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, f"a key stands twice among {keys}", node.start_mark)
        return super().construct_mapping(node, deep)


class Files:
    """All that is judged, in a form in which faults can be planted."""

    def __init__(self):
        self.found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.y*ml")}
        self.manifests = {name: list(yaml.load_all((FOLDER / name).read_text(), Strict)) for name in sorted(self.found)}
        self.unit = UNIT.read_text()

    def of(self, kind, name="pd-proxy", file=None):
        files = [file] if file else sorted(APPLIED | {"example/secret.yaml"})
        one, = (doc for part in files for doc in self.manifests[part] if (doc["kind"], doc["metadata"]["name"]) == (kind, name))
        return one

    @property
    def pod(self):
        return self.of("Deployment")["spec"]["template"]

    @property
    def container(self):
        one, = self.pod["spec"]["containers"]
        return one

    @property
    def toml(self):
        text, = self.of("ConfigMap")["data"].values()
        return text

    @property
    def keys(self):
        return self.of("Secret")["stringData"]["keys.toml"]


def merged(program, files):
    """The whole configuration that the program makes of the ConfigMap's; what it says where it refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        config, keys = pathlib.Path(folder, "pd-proxy.toml"), pathlib.Path(folder, "keys.toml")
        config.write_text(files.toml)
        keys.write_text(files.keys)
        command = [program, "check", "--offline", "--config", config, "--set", f"auth.keys_file={keys}"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return (tomllib.loads(run.stdout), "") if run.returncode == 0 else (None, run.stderr.strip())


def schema(files):
    if files.found != APPLIED | OTHERS:
        yield f"files are {sorted(files.found)}"
    for name, docs in files.manifests.items():
        for doc in docs:
            for release in RELEASES:
                try:
                    kubernetes_validate.validate(doc, release, strict=True)
                except kubernetes_validate.ValidationError as error:
                    yield f"{name}, Kubernetes {release}: {error.message} at {'/'.join(map(str, error.absolute_path))}"
                except kubernetes_validate.SchemaNotFoundError as error:
                    yield f"{name}: {error.message}"
            if "namespace" in doc["metadata"]:
                yield f"{name}: {doc['kind']} names a namespace"


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def labels(files):
    """Whatever means the gateway's pods finds them, and the engines' Services don't."""
    own, spec = files.pod["metadata"]["labels"], files.of("Deployment")["spec"]
    for what, selector in [
        ("Deployment", spec["selector"]["matchLabels"]),
        ("topologySpreadConstraints", files.pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]),
        ("Service", files.of("Service")["spec"]["selector"]),
        ("PodDisruptionBudget", files.of("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]),
        ("NetworkPolicy", files.of("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]),
    ]:
        if not selects(selector, own):
            yield f"{what} selects {selector}, the pods have {own}"
    for file in ["engines.yaml", "kthena/engines.yaml"]:
        roles = [doc["spec"]["selector"] for doc in files.manifests[file]]
        if roles[0] == roles[1] or any(selects(role, own) for role in roles):
            yield f"{file}: {roles} don't tell prefillers, decoders and the gateway apart"
    if spec["replicas"] <= files.of("PodDisruptionBudget")["spec"]["maxUnavailable"]:
        yield "the PodDisruptionBudget lets all replicas go at once"


def ports(files, config):
    server, told = config["server"], {port["name"]: port["containerPort"] for port in files.container["ports"]}
    if told != {"http": server["port"], "admin": server["admin_port"]}:
        yield f"the container's ports are {told}, the configuration has {server['port']} and {server['admin_port']}"
    for host in ["host", "admin_host"]:
        if server[host] not in ("0.0.0.0", "::"):
            yield f"server.{host} is {server[host]}: nobody outside the pod could connect"
    port, = files.of("Service")["spec"]["ports"]
    if (port["targetPort"], port["port"]) != ("http", told["http"]):
        yield f"the Service's port is {port}"
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
        if files.container[probe]["httpGet"]["port"] != "admin":
            yield f"{probe} is not at the port for operators"
    if files.pod["metadata"]["annotations"]["prometheus.io/port"] != str(told["admin"]):
        yield "Prometheus is sent to another port"
    spec = files.of("NetworkPolicy")["spec"]
    for rule in spec["ingress"]:
        wanted = told["admin" if "from" in rule else "http"]
        if [(port["port"], port["protocol"]) for port in rule["ports"]] != [(wanted, "TCP")]:
            yield f"ingress of the NetworkPolicy has {rule}, expected {wanted}"
    out = {(port["protocol"], port["port"]) for rule in spec["egress"] for port in rule["ports"]}
    wanted = {("UDP", 53), ("TCP", 53), ("TCP", config["dialect"]["bootstrap_port"])}
    wanted |= {("TCP", int(name.rsplit(":", 1)[1])) for name in dns(config)}
    if out != wanted or len(spec["ingress"]) != 2:
        yield f"egress of the NetworkPolicy is {sorted(out)}, expected {sorted(wanted)}"


def dns(config):
    return config["discovery"]["prefill_dns"] + config["discovery"]["decode_dns"]


def engines(files, config):
    """The names that the gateway asks for are Services whose addresses are pods."""
    for file in ["engines.yaml", "kthena/engines.yaml"]:
        found = {}
        for doc in files.manifests[file]:
            spec, (port,) = doc["spec"], doc["spec"]["ports"]
            found[f"{doc['metadata']['name']}:{port['targetPort']}"] = spec
            if (spec.get("clusterIP"), spec.get("ipFamilyPolicy"), port["port"]) != ("None", "SingleStack", port["targetPort"]):
                yield f"{file}: {doc['metadata']['name']} is not headless, or of two families, or its ports differ"
            if spec.get("publishNotReadyAddresses"):
                yield f"{file}: engines would be found before they are ready"
        if list(found) != dns(config):
            yield f"{file} has {list(found)}, the configuration asks for {dns(config)}"


def paths(files, config):
    """What is mounted is what is read."""
    mounted = {}
    volumes = {volume["name"]: volume for volume in files.pod["spec"]["volumes"]}
    for mount in files.container["volumeMounts"]:
        volume = volumes.pop(mount["name"])
        if not mount.get("readOnly") or "subPath" in mount:
            yield f"{mount['name']} is not read-only, or a single file"
        if "configMap" in volume:
            source = files.of("ConfigMap", volume["configMap"]["name"])["data"]
            keep = list(source)
        else:
            source = files.of("Secret", volume["secret"]["secretName"])["stringData"]
            keep = [item["path"] for item in volume["secret"]["items"] if item["key"] in source]
        mounted |= {f"{mount['mountPath']}/{name}": mount["name"] for name in keep}
    if volumes:
        yield f"not mounted: {list(volumes)}"
    if files.container["args"] != ["--config", next((path for path, name in mounted.items() if name == "config"), None)]:
        yield f"the arguments are {files.container['args']}, mounted is {mounted}"
    keys_file = tomllib.loads(files.toml)["auth"]["keys_file"]
    if mounted.get(keys_file) != "keys":
        yield f"auth.keys_file is {keys_file}, mounted is {mounted}"
    if config["auth"]["keys_file"] == keys_file:
        yield "the keys were not read"


def times(files, config):
    server = config["server"]
    needed = server["lame_duck_ms"] + server["drain_ms"] + RELEASE_MS
    given = files.pod["spec"]["terminationGracePeriodSeconds"] * 1_000
    if given <= needed:
        yield f"terminationGracePeriodSeconds gives {given} ms, a shutdown may take {needed} ms"
    probe = files.container["readinessProbe"]
    notice = probe["periodSeconds"] * probe["failureThreshold"] * 1_000
    if server["lame_duck_ms"] <= notice:
        yield f"lame_duck_ms is over before readiness has failed, {notice} ms"


def safety(files, _):
    pod, own = files.pod["spec"], files.container["securityContext"]
    context = pod["securityContext"]
    if not (context["runAsNonRoot"] and context["runAsUser"] and context["seccompProfile"] == {"type": "RuntimeDefault"}):
        yield "the pod may run as root, or without seccomp"
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    if own != wanted:
        yield f"the container's securityContext is {own}"
    if pod["automountServiceAccountToken"] or pod["enableServiceLinks"]:
        yield "the pod is given what it does not need"
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    if user.groups() != (str(context["runAsUser"]), str(context["runAsGroup"])):
        yield "the image's user is another"


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
    if tool := shutil.which("systemd-analyze"):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, UNIT.name)
            # The program need not be installed here.
            path.write_text(files.unit.replace("ExecStart=/usr/bin/pd-proxy ", "ExecStart=/bin/true "))
            run = subprocess.run([tool, "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
            # Of this unit alone: it also speaks of others on the machine.
            yield from (line for line in run.stderr.splitlines() if UNIT.name in line)


def problems(program, files, defaults):
    """All that is wrong with the files, without running a gateway by them."""
    found = list(schema(files))
    if found:
        # What the schemas refuse has no shape that could be looked into.
        return found
    config, refused = merged(program, files)
    if refused:
        return [refused]
    found += labels(files)
    for check in [ports, engines, paths, times, safety]:
        found += check(files, config)
    return found + list(unit(files, defaults))


def edit(text, old, new):
    assert old in text, old
    return text.replace(old, new)


def config_fault(old, new):
    def plant(files):
        files.of("ConfigMap")["data"]["pd-proxy.toml"] = edit(files.toml, old, new)
    return plant


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
    "another name": (config_fault("pd-proxy-decoders", "decoders"), "asks for"),
    "keys elsewhere": (config_fault("pd-proxy-keys/", "pd-proxy/"), "auth.keys_file"),
    "a key in the clear": (lambda f: f.of("Secret")["stringData"].update({"keys.toml": '[[key]]\nname = "a"\nkey = "sk-1"\n'}), "key"),
    "a closed port": (lambda f: f.of("NetworkPolicy")["spec"]["ingress"][0]["ports"][0].update(port=80), "ingress"),
    "no way to engines": (lambda f: f.of("NetworkPolicy")["spec"]["egress"].pop(), "egress"),
    "other pods": (lambda f: f.of("Service")["spec"].update(selector={"app": "vllm"}), "selects"),
    "a Service with an address": (lambda f: f.of("Service", "pd-proxy-decoders")["spec"].pop("clusterIP"), "headless"),
    "one role": (lambda f: f.manifests["kthena/engines.yaml"][1]["spec"]["selector"].update(
        {"modelserving.volcano.sh/role": "prefill"}), "apart"),
    "a probe elsewhere": (lambda f: f.container["livenessProbe"]["httpGet"].update(port="http"), "livenessProbe"),
    "root": (lambda f: f.pod["spec"]["securityContext"].update(runAsUser=0), "root"),
    "no budget": (lambda f: f.of("PodDisruptionBudget")["spec"].update(maxUnavailable=2), "at once"),
    "systemd's patience": (unit_fault("TimeoutStopSec=60", "TimeoutStopSec=30"), "TimeoutStopSec"),
    "few files": (unit_fault("LimitNOFILE=131072", "LimitNOFILE=1024"), "LimitNOFILE"),
    "no sandbox": (unit_fault("ProtectSystem=strict", "ProtectSystem=no"), "ProtectSystem"),
}
# Only systemd's tool can find it.
SYSTEMD_FAULT = (unit_fault("RestartSec=2", "RestartSec=soon"), "Failed to parse")


def self_test(program, files, defaults):
    faults = FAULTS | ({"no number for systemd": SYSTEMD_FAULT} if shutil.which("systemd-analyze") else {})
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
    run = subprocess.run([program, "check", "--offline"], capture_output=True, text=True, timeout=60, check=True)
    defaults = tomllib.loads(run.stdout)
    found = problems(program, files, defaults)
    if not found:
        found = deploy_live.problems(program, files, merged(program, files)[0])
    for problem in found:
        print(f"deploy: {problem}")
    if found:
        raise SystemExit(1)
    count = sum(map(len, files.manifests.values()))
    print(f"deploy: {count} manifests fit Kubernetes {' and '.join(RELEASES)}; names, ports, paths and times agree; a gateway runs by them")
    if not shutil.which("systemd-analyze"):
        print("deploy: there is no systemd-analyze: the unit was looked at by our own rules alone")
    planted = self_test(program, files, defaults)
    print(f"deploy: {planted} planted faults were found")


if __name__ == "__main__":
    main()
