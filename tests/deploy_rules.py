"""What is true of manifests by which the gateway runs, wherever they come from: for deploy.py, which has those of config/kubernetes, and
for helm.py, which renders them.
"""
import pathlib
import re
import subprocess
import tempfile

import kubernetes_validate

try:
    import tomllib
except ImportError:
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASES = ["1.25", "1.37"]
# Where API servers listen: by their Service, and behind it.
API_PORTS = {("TCP", 443), ("TCP", 6443)}
VERBS = ["get", "list", "watch"]
# How the engines' Services are called.
ROLES = ("-prefillers", "-decoders")
# What a shutdown takes beside server.lame_duck_ms and server.drain_ms, as ARCHITECTURE.md says: two waits for hand-offs, one for spans.
RELEASE_MS = 13_000


class Manifests:
    """Manifests that belong together, in a form in which faults can be planted."""

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
        one, = self.all("ConfigMap")
        text, = one["data"].values()
        return text

    @property
    def said(self):
        return tomllib.loads(self.toml)

    @property
    def kubernetes(self):
        return self.said.get("discovery", {}).get("kubernetes", {})


def knows_kubernetes(program):
    """Whether the program has [discovery.kubernetes] at all."""
    command = [program, "check", "--offline", "--set", 'discovery.kubernetes.prefill_selector="a=b"', "--set",
               'discovery.kubernetes.decode_selector="a=c"']
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if run.returncode and "discovery.kubernetes" not in run.stderr:
        raise SystemExit(f"deploy: {run.stderr}")
    return run.returncode == 0


def merged(program, files):
    """The whole configuration that the program makes of the ConfigMap's; what it says where it refuses it."""
    text = files.toml
    if not knows_kubernetes(program):
        text = re.sub(r"^\[discovery\.kubernetes\]\n(?:(?!\[).*\n?)*", "", text, flags=re.M)
    with tempfile.TemporaryDirectory() as folder:
        config, keys = pathlib.Path(folder, "pd-proxy.toml"), pathlib.Path(folder, "keys.toml")
        config.write_text(text)
        keys.write_text(files.keys)
        asked = ["--set", f"auth.keys_file={keys}"] if "auth" in files.said else []
        run = subprocess.run([program, "check", "--offline", "--config", config, *asked], capture_output=True, text=True, timeout=60)
    return (tomllib.loads(run.stdout), "") if run.returncode == 0 else (None, run.stderr.strip())


def fits(name, doc):
    """What Kubernetes' schemas have against a manifest."""
    for release in RELEASES:
        try:
            kubernetes_validate.validate(doc, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}, Kubernetes {release}: {error.message} at {'/'.join(map(str, error.absolute_path))}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{name}: {error.message}"


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def labels(files):
    """Whatever means the gateway's pods finds them, and what means the engines' doesn't."""
    own, spec = files.pod["metadata"]["labels"], files.deployment["spec"]
    said = [("Deployment", spec["selector"]["matchLabels"])]
    said += [("topologySpreadConstraints", one["labelSelector"]["matchLabels"]) for one in files.pod["spec"].get("topologySpreadConstraints", [])]
    said += [("Service", doc["spec"]["selector"]) for doc in files.all("Service") if not doc["metadata"]["name"].endswith(ROLES)]
    said += [("PodDisruptionBudget", doc["spec"]["selector"]["matchLabels"]) for doc in files.all("PodDisruptionBudget")]
    said += [("NetworkPolicy", doc["spec"]["podSelector"]["matchLabels"]) for doc in files.all("NetworkPolicy")]
    for what, selector in said:
        if not selects(selector, own):
            yield f"{what} selects {selector}, the pods have {own}"
    for budget in files.all("PodDisruptionBudget"):
        if spec["replicas"] <= budget["spec"]["maxUnavailable"]:
            yield "the PodDisruptionBudget lets all replicas go at once"
    asked = [files.kubernetes.get(f"{role}_selector") for role in ["prefill", "decode"]]
    if all(asked):
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
    for service in files.all("Service"):
        port, = service["spec"]["ports"]
        if not service["metadata"]["name"].endswith(ROLES) and port["targetPort"] not in told:
            yield f"the Service's port is {port}"
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"]:
        if files.container[probe]["httpGet"]["port"] != "admin":
            yield f"{probe} is not at the port for operators"
    if files.pod["metadata"].get("annotations", {}).get("prometheus.io/port", str(told["admin"])) != str(told["admin"]):
        yield "Prometheus is sent to another port"
    for policy in files.all("NetworkPolicy"):
        yield from ways(policy["spec"], files, config, told)


def ways(spec, files, config, told):
    """What the NetworkPolicy lets in and out is what there is."""
    for rule in spec["ingress"]:
        wanted = told["admin" if "from" in rule else "http"]
        if [(port["port"], port["protocol"]) for port in rule["ports"]] != [(wanted, "TCP")]:
            yield f"ingress of the NetworkPolicy has {rule}, expected {wanted}"
    out = {(port["protocol"], port["port"]) for rule in spec["egress"] for port in rule["ports"]}
    asks = files.kubernetes
    wanted = {("UDP", 53), ("TCP", 53), ("TCP", config["dialect"]["bootstrap_port"])} | (API_PORTS if asks else set())
    wanted |= {("TCP", int(name.rsplit(":", 1)[1])) for name in dns(files) + files.said.get("fleet", {}).get("prefill", [])}
    wanted |= {("TCP", int(port)) for role in ["prefill", "decode"] for port in asks.get(f"{role}_ports", [])}
    if out != wanted or len(spec["ingress"]) != 2:
        yield f"egress of the NetworkPolicy is {sorted(out)}, expected {sorted(wanted)}"


def dns(files):
    discovery = files.said.get("discovery", {})
    return discovery.get("prefill_dns", []) + discovery.get("decode_dns", [])


def rights(files):
    """The gateway may ask the API server what its configuration makes it ask, and nothing else."""
    asks = files.kubernetes
    wanted = {"pods": ""} if any("_selector" in key for key in asks) else {}
    wanted |= {"endpointslices": "discovery.k8s.io"} if any("_service" in key for key in asks) else {}
    wanted = [{"apiGroups": [group], "resources": [name], "verbs": VERBS} for name, group in wanted.items()]
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
    if bool(files.all("RoleBinding")) != bool(asks) or account and not any(doc["metadata"]["name"] == account for doc in files.all("ServiceAccount")):
        yield f"nobody is given the rights: the pods are {account}"


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
        if not mount.get("readOnly") or "subPath" in mount:
            yield f"{mount['name']} is not read-only, or a single file"
        if "configMap" in volume:
            keep = list(files.of("ConfigMap", volume["configMap"]["name"])["data"])
        else:
            keep = [item["path"] for item in volume["secret"]["items"]]
        mounted |= {f"{mount['mountPath']}/{name}": mount["name"] for name in keep}
    if volumes:
        yield f"not mounted: {list(volumes)}"
    if files.container["args"] != ["--config", next((path for path, name in mounted.items() if name == "config"), None)]:
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
    pod, own = files.pod["spec"], files.container["securityContext"]
    context = pod["securityContext"]
    if not (context["runAsNonRoot"] and context["runAsUser"] and context["seccompProfile"] == {"type": "RuntimeDefault"}):
        yield "the pod may run as root, or without seccomp"
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    if own != wanted:
        yield f"the container's securityContext is {own}"
    if pod["enableServiceLinks"]:
        yield "the pod is given what it does not need"
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.M)
    if user.groups() != (str(context["runAsUser"]), str(context["runAsGroup"])):
        yield "the image's user is another"


def agreement(files, config):
    """What is wrong between manifests, and between them and their configuration."""
    found = list(labels(files)) + list(rights(files))
    for check in [ports, paths, times, safety]:
        found += check(files, config)
    return found
