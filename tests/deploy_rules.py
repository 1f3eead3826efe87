"""What is true of manifests by which the gateway runs, wherever they come from: for deploy.py, which has those of config/kubernetes, and
for helm.py, which renders them.
"""
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.parse

import kubernetes_validate

try:
    import tomllib
except ImportError:
    import tomli as tomllib

from pod_security import restricted

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASES = ["1.25", "1.37"]
# Where API servers listen: by their Service, and behind it.
API_PORTS = {("TCP", 443), ("TCP", 6443)}
VERBS = ["get", "list", "watch"]
# Where certificates are mounted.
TLS = "/etc/pd-proxy-tls"
# How the engines' Services are called.
ROLES = ("-prefillers", "-decoders")
# How a store of the gateways is called, and its Service and NetworkPolicy.
STORE = "-valkey"
# What a shutdown takes beside server.lame_duck_ms and server.drain_ms, as docs/cancellation.md says: two waits for hand-offs, one for spans.
RELEASE_MS = 13_000


class Manifests:
    """Manifests that belong together, in a form in which faults can be planted. `more_out`: what else the NetworkPolicy lets out.
    `rights_elsewhere`: that somebody else gives the rights, `account_elsewhere`: that somebody else makes the account."""

    more_out = frozenset()
    rights_elsewhere = account_elsewhere = False

    def __init__(self, docs, keys):
        self.docs, self.keys = docs, keys

    def all(self, kind):
        return [doc for doc in self.docs if doc["kind"] == kind]

    def of(self, kind, name="pd-proxy"):
        one, = (doc for doc in self.all(kind) if doc["metadata"]["name"] == name)
        return one

    @property
    def deployment(self):
        one, = self.all("Deployment")
        return one

    @property
    def pod(self):
        return self.deployment["spec"]["template"]

    @property
    def container(self):
        one, = self.pod["spec"]["containers"]
        return one

    @property
    def toml(self):
        text, = (text for doc in self.all("ConfigMap") for name, text in doc["data"].items() if name.endswith(".toml"))
        return text

    @property
    def said(self):
        return tomllib.loads(self.toml)

    @property
    def kubernetes(self):
        asked = [self.said, *self.said.get("fleets", {}).values()]
        return {key: value for fleet in asked for key, value in fleet.get("discovery", {}).get("kubernetes", {}).items()}


@functools.lru_cache
def merged(program, files):
    """The whole configuration that the program makes of the ConfigMap's; what it says where it refuses it."""
    code, out, said = checked(program, files.toml, files.keys, tuple(environment(files).items()), tuple(files.said.keys() & {"auth", "tls"}))
    return (tomllib.loads(out), "") if code == 0 else (None, said.strip())


@functools.lru_cache(maxsize=None)
def checked(program, text, keys, variables, sections):
    """How `pd-proxy check` ends, and what it says: of the same only once."""
    with tempfile.TemporaryDirectory() as folder:
        config, keys_file = pathlib.Path(folder, "pd-proxy.toml"), pathlib.Path(folder, "keys.toml")
        config.write_text(text.replace(TLS, folder))
        keys_file.write_text(keys)
        if "tls" in sections:
            certificate(folder)
        command = [program, "check", "--offline", "--show", "--config", config]
        command += ["--set", f"auth.keys_file={keys_file}"] if "auth" in sections else []
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | dict(variables))
    return run.returncode, run.stdout, run.stderr


@functools.lru_cache
def of_the_image():
    """The variables that the image has, as the last stage of its Dockerfile sets them."""
    stage = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    found = dict(re.findall(r"^ENV (\w+)=(\S+)$", stage, re.M))
    assert len(found) == len(re.findall(r"^ENV ", stage, re.M)), "the Dockerfile sets variables in a way that is not read here"
    return found


def environment(files):
    """The variables that a container has by its image and by its manifest, with a pod's address in them."""
    given = of_the_image() | {one["name"]: one["value"] for one in files.container.get("env", []) if "value" in one}
    address = "fd00::7" if files.said["server"]["host"] == "::" else "10.1.2.3"
    return {name: value.replace("$(POD_IP)", address) for name, value in given.items()}


def certificate(folder):
    """What a Secret for TLS has, as files."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=pd-proxy",
               "-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt"]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    pathlib.Path(folder, "ca.crt").write_bytes(pathlib.Path(folder, "tls.crt").read_bytes())


def fits(name, doc):
    """What Kubernetes' schemas have against a manifest."""
    return [f"{name}{problem}" for problem in refused(json.dumps(doc))]


@functools.lru_cache(maxsize=None)
def refused(text):
    """The same of a manifest as JSON: a schema is read anew each time."""
    found = []
    for release in RELEASES:
        try:
            kubernetes_validate.validate(json.loads(text), release, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f", Kubernetes {release}: {error.message} at {'/'.join(map(str, error.absolute_path))}")
        except kubernetes_validate.SchemaNotFoundError as error:
            found.append(f": {error.message}")
    return found


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def labels(files):
    """Whatever means the gateway's pods finds them, and what means the engines' doesn't."""
    own, spec = files.pod["metadata"]["labels"], files.deployment["spec"]
    said = [("Deployment", spec["selector"]["matchLabels"])]
    said += [("topologySpreadConstraints", one["labelSelector"]["matchLabels"]) for one in files.pod["spec"].get("topologySpreadConstraints", [])]
    said += [("Service", doc["spec"]["selector"]) for doc in files.all("Service") if not doc["metadata"]["name"].endswith((*ROLES, STORE))]
    said += [("PodDisruptionBudget", doc["spec"]["selector"]["matchLabels"]) for doc in files.all("PodDisruptionBudget")]
    said += [("NetworkPolicy", doc["spec"]["podSelector"]["matchLabels"]) for doc in files.all("NetworkPolicy") if not doc["metadata"]["name"].endswith(STORE)]
    for what, selector in said:
        if not selects(selector, own):
            yield f"{what} selects {selector}, the pods have {own}"
    for budget in files.all("PodDisruptionBudget"):
        if spec["replicas"] <= budget["spec"]["maxUnavailable"]:
            yield "the PodDisruptionBudget lets all replicas go at once"
    asked = [files.kubernetes.get(f"{role}_selector") for role in ["prefill", "decode"]]
    if all(asked) and "(" not in "".join(asked):
        yield from apart("[discovery.kubernetes]", [dict(part.split("=") for part in text.split(",")) for text in asked], own)


def apart(where, roles, own):
    if roles[0] == roles[1] or any(selects(role, own) for role in roles):
        yield f"{where}: {roles} don't tell prefillers, decoders and the gateway apart"


def ports(files, config):
    server, told = config["server"], {port["name"]: port["containerPort"] for port in files.container["ports"]}
    if told != {"http": server["port"], "admin": server["admin_port"]}:
        yield f"the container's ports are {told}, the configuration has {server['port']} and {server['admin_port']}"
    for host in ["host", "admin_host"]:
        if server[host] not in ("0.0.0.0", "::"):
            yield f"server.{host} is {server[host]}: nobody outside the pod could connect"
        if server[host] != files.said["server"][host]:
            yield f"server.{host} is {files.said['server'][host]} in the ConfigMap, and a variable of the image or the container makes {server[host]} of it"
    own = [doc for doc in files.all("Service") if not doc["metadata"]["name"].endswith((*ROLES, STORE))]
    for port in [port for service in own for port in service["spec"]["ports"]]:
        if port["targetPort"] not in told:
            yield f"the Service's port is {port}"
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
        asks = files.container[probe]
        if (asks.get("httpGet") or asks["tcpSocket"])["port"] != "admin":
            yield f"{probe} is not at the port for operators"
    if files.pod["metadata"].get("annotations", {}).get("prometheus.io/port", str(told["admin"])) != str(told["admin"]):
        yield "Prometheus is sent to another port"
    for policy in [doc for doc in files.all("NetworkPolicy") if not doc["metadata"]["name"].endswith(STORE)]:
        yield from ways(policy["spec"], files, config, told)


def ways(spec, files, config, told):
    """What the NetworkPolicy lets in and out is what there is."""
    opened = [[(port["port"], port["protocol"]) for port in rule["ports"]] for rule in spec["ingress"]]
    inwards, outwards = event_ports(config)
    expected = [[(told["http"], "TCP")], [(told["admin"], "TCP")]] + ([[(port, "TCP") for port in inwards]] if inwards else [])
    if opened != expected or not all(rule.get("from") for rule in spec["ingress"][1:]):
        yield f"ingress of the NetworkPolicy is {spec['ingress']}, expected {expected}, all but the first for some"
    out = {(port["protocol"], port["port"]) for rule in spec["egress"] for port in rule["ports"]}
    asks = files.kubernetes
    wanted = {("UDP", 53), ("TCP", 53), ("TCP", config["dialect"]["bootstrap_port"])} | (API_PORTS if asks else set())
    listed = [name.rsplit(":", 1)[1] for names in files.said.get("fleet", {}).values() for name in names]
    listed += [name.rsplit(":", 1)[1] for name in dns(files)]
    listed += [port for role in ["prefill", "decode"] for port in asks.get(f"{role}_ports", [])]
    wanted |= {("TCP", int(port) if port.isdigit() else port) for port in listed} | files.more_out
    wanted |= {("TCP", port) for port in outwards + called_ports(config)}
    if out != wanted:
        yield f"egress of the NetworkPolicy is {sorted(out, key=str)}, expected {sorted(wanted, key=str)}"


def event_ports(config):
    """Ports at which engines publish to the gateway, and those at which it listens to engines."""
    events = config["events"]
    if not events["listen"]:
        return [], []
    usual = [port + rank for port in (events["port"], events["replay_port"]) if port for rank in range(events["ranks"])]
    named = [(host, int(port)) for text in events["endpoints"] for host, port in re.findall(r"tcp://(\S+):(\d+)", text)]
    return [port for host, port in named if host == "*"], usual + [port for host, port in named if host != "*"]


def called_ports(config):
    """Ports of the pool, of bootstrap servers elsewhere, and of the collector of spans."""
    names = config["pool"]["addresses"] + config["pool"]["admins"] + config["dialect"]["bootstraps"]
    if endpoint := config["trace"]["endpoint"]:
        url = urllib.parse.urlsplit(endpoint)
        names = names + [f":{url.port or {'http': 80, 'https': 443}[url.scheme]}"]
    return [int(name.rsplit(":", 1)[1]) for name in names]


def dns(files):
    discovery = files.said.get("discovery", {})
    return discovery.get("prefill_dns", []) + discovery.get("decode_dns", [])


def rights(files):
    """The gateway may ask the API server what its configuration makes it ask, and nothing else."""
    asks = files.kubernetes
    wanted = {"pods": ""} if any("_selector" in key for key in asks) else {}
    wanted |= {"endpointslices": "discovery.k8s.io"} if any("_service" in key for key in asks) else {}
    wanted = [{"apiGroups": [group], "resources": [name], "verbs": VERBS} for name, group in wanted.items() if not files.rights_elsewhere]
    given = [rule for kind in ["Role", "ClusterRole"] for role in files.all(kind) for rule in role["rules"]]
    if given != wanted:
        yield f"rights are {given}, the configuration needs {wanted}"
    account = files.pod["spec"].get("serviceAccountName")
    if files.pod["spec"]["automountServiceAccountToken"] != bool(asks):
        yield "the pods have a token of their account, and need none, or the other way round"
    for binding in files.all("RoleBinding"):
        role = files.of(binding["roleRef"]["kind"], binding["roleRef"]["name"])
        accounts = [(one["kind"], one["name"]) for one in binding["subjects"]]
        if accounts != [("ServiceAccount", account)]:
            yield f"the RoleBinding is for {accounts}, the pods are {account}"
        if any(doc["metadata"].get("namespace", "") != asks.get("namespace", "") for doc in [role, binding]):
            yield "the rights are for another namespace than that of the engines"
    accounts = [] if files.account_elsewhere else [account] if asks else []
    bindings, made = len(files.all("RoleBinding")), [doc["metadata"]["name"] for doc in files.all("ServiceAccount")]
    if bindings != len(wanted) or made != accounts or asks and not account:
        yield f"nobody is given the rights, or somebody too many: the pods are {account}, accounts are {made}, bindings {bindings}"


def headless(where, docs, names):
    found = []
    for doc in docs:
        spec, (port,) = doc["spec"], doc["spec"]["ports"]
        found.append(f"{doc['metadata']['name']}:{port['targetPort']}")
        if (spec.get("clusterIP"), spec.get("ipFamilyPolicy"), port["port"]) != ("None", "SingleStack", port["targetPort"]):
            yield f"{where}: {doc['metadata']['name']} is not headless, or of two families, or its ports differ"
        if spec.get("publishNotReadyAddresses"):
            yield f"{where}: engines would be found before they are ready"
    if found != names:
        yield f"{where} has {found}, the configuration asks for {names}"


def paths(files, config):
    """What is mounted is what is read."""
    mounted = {}
    volumes = {volume["name"]: volume for volume in files.pod["spec"]["volumes"]}
    for mount in files.container["volumeMounts"]:
        volume = volumes.pop(mount["name"])
        if not volume.keys() & {"configMap", "secret"}:
            continue
        if not mount.get("readOnly") or "subPath" in mount:
            yield f"{mount['name']} is not read-only, or a single file"
        if "configMap" in volume:
            keep = list(files.of("ConfigMap", volume["configMap"]["name"])["data"])
        else:
            keep = [item["path"] for item in volume["secret"]["items"]]
        mounted |= {f"{mount['mountPath']}/{name}": mount["name"] for name in keep}
    if volumes:
        yield f"not mounted: {list(volumes)}"
    if files.container["args"][:2] != ["--config", next((path for path, name in mounted.items() if name == "config"), None)]:
        yield f"the arguments are {files.container['args']}, mounted is {mounted}"
    files_said = [("auth.keys_file", files.said.get("auth", {}).get("keys_file"))]
    files_said += [(f"tls.{key}", path) for key, path in files.said.get("tls", {}).items()]
    for key, path in files_said:
        if path and path not in mounted:
            yield f"{key} is {path}, mounted is {mounted}"
    if (keys_file := files_said[0][1]) and config["auth"]["keys_file"] == keys_file:
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
    pod = files.pod["spec"]
    context = pod.get("securityContext", {})
    yield from restricted(pod)
    if not files.container.get("securityContext", {}).get("readOnlyRootFilesystem"):
        yield "the container may write to its file system"
    if pod["enableServiceLinks"]:
        yield "the pod is given what it does not need"
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    if user.groups() != (str(context.get("runAsUser", user[1])), str(context.get("runAsGroup", user[2]))):
        yield "the image's user is another"


def agreement(files, config):
    """What is wrong between manifests, and between them and their configuration."""
    found = list(labels(files)) + list(rights(files))
    for check in [ports, paths, times, safety]:
        found += check(files, config)
    return found
