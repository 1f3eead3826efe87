#!/usr/bin/env python3
"""Simulated engines as pods of a real API server, and a gateway that finds them there.

kubernetes.sh runs it. There is no kubelet: pods get their status as one would give it. Pods are hostNetwork, so their address
is this machine's, and each engine's port is its container's.
"""
import contextlib
import json
import pathlib
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from kube_api import Cluster, free_port  # noqa: E402
from processes import Process, ask, get, wait  # noqa: E402

NAMESPACE = "llm"
RULES = pathlib.Path(__file__).resolve().parents[2] / "config/kubernetes/rbac.yaml"
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 8}
LABELS = {role: {"app": "engine", "role": role} for role in ("prefill", "decode")}
SECONDS = 20  # until a gateway has seen what happened, on a busy machine


def check(what, right):
    if not right:
        raise SystemExit(f"WRONG: {what}")
    print(f"ok: {what}", flush=True)


class Engines:
    """Simulated engines by the names of their pods."""

    def __init__(self, cluster, program):
        self.cluster, self.program, self.all = cluster, program, {}

    def start(self, name, role):
        """An engine, and its pod, which is pending."""
        port = free_port()
        command = [self.program, "sim", "--port", str(port), "--role", role, "--tpot-ms", "20"]
        process = Process(self.cluster.run, f"engine-{name}", command)
        wait(name, lambda: reached(f"127.0.0.1:{port}", "/health"))
        self.cluster.create(name, LABELS[role], {"http": port})
        self.all[name] = (process, f"127.0.0.1:{port}")
        return f"127.0.0.1:{port}"

    def ready(self, *names, ready=True):
        for name in names:
            self.cluster.status(name, "127.0.0.1", ready)

    def end(self):
        for process, _ in self.all.values():
            process.end()


def reached(address, path):
    with contextlib.suppress(OSError):
        return get(address, path) is not None
    return False


class Gateway:
    def __init__(self, cluster, program, name, token, *sets):
        port = free_port()
        self.at = f"127.0.0.1:{port}"
        self.sets = [f"discovery.kubernetes.{role}_{key}" for role in LABELS for key in (f"selector=role={role}", "ports=http")]
        self.sets += list(sets)
        self.env = {"KUBECONFIG": str(cluster.kubeconfig(name, token)), "PATH": "/usr/bin:/bin"}
        self.program, self.run = program, cluster.run
        self.flags = [flag for entry in self.sets for flag in ("--set", entry)]
        command = [program, "--host", "127.0.0.1", "--port", str(port), *self.flags]
        self.process = Process(self.run, name, command, self.env)
        self.process.wait_for("(listening on)")

    def checked(self):
        """What `pd-proxy check` says."""
        process = Process(self.run, "check", [self.program, "check", *self.flags], self.env)
        process.process.wait(60)
        return process.said()

    def members(self, role):
        listed = json.loads(get(self.at, "/instances"))["instances"]
        return {it["instance"] for it in listed if it["type"] == role and not it["draining"]}

    def comes_to(self, what, role, *engines):
        start = time.monotonic()
        wait(f"{what}: {role} = {engines}, not {self.members(role)}", lambda: self.members(role) == set(engines), SECONDS)
        print(f"ok: {what} ({time.monotonic() - start:.1f} s)", flush=True)

    def counted(self, outcome):
        pattern = rf'^pd_proxy_discovery_total{{(?=[^}}]*source="kubernetes")(?=[^}}]*outcome="{outcome}")[^}}]*}} (\d+)$'
        return int(re.search(pattern, get(self.at, "/metrics"), re.M).group(1))

    def serves(self):
        return ask(self.at, CHAT, path="/v1/chat/completions") == 200


def grant(cluster, account):
    """The rights of config/kubernetes/rbac.yaml for a service account, or the same while that file is not there."""
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
             {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}]
    if RULES.exists():
        try:
            import yaml
            found = [it for it in yaml.safe_load_all(RULES.read_text()) if it and it["kind"] == "Role"]
            rules = found[0]["rules"]
            print(f"rights: {RULES.name}", flush=True)
        except ImportError:
            print("rights: our own, as there is no PyYAML to read config/kubernetes/rbac.yaml", flush=True)
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    cluster.do("POST", f"{path}/roles", {"metadata": {"name": "pd-proxy"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pd-proxy"}
    cluster.do("POST", f"{path}/rolebindings", {"metadata": {"name": "pd-proxy"}, "subjects": [subject], "roleRef": role})


def rights(cluster, engines, program):
    """A service account without rights is told what it lacks, and serves when it has them."""
    token = cluster.service_account("pd-proxy")
    gateway = Gateway(cluster, program, "gateway", token)
    why = f"no right to list pods in namespace {NAMESPACE} (403)"
    gateway.process.wait_for(f"({re.escape(why)})")
    check("the 403 names the file", "config/kubernetes/rbac.yaml" in gateway.process.said())
    check("check says the same", why in gateway.checked())
    time.sleep(5)
    check("it is said once for each role", gateway.process.said().count("no right to") == 2)
    prefill, decode = engines.start("p-0", "prefill"), engines.start("d-0", "decode")
    engines.ready("p-0", "d-0")
    grant(cluster, "pd-proxy")
    gateway.comes_to("rights that are granted count", "prefill", prefill)
    gateway.comes_to("for both roles", "decode", decode)
    check("requests are served", gateway.serves())
    said = gateway.checked()
    check("check counts them", "1 prefillers ready, of 1 pods" in said and "1 decoders ready, of 1 pods" in said)
    return gateway, prefill, decode


def life(cluster, engines, gateway, prefill, decode):
    """A pod comes, is ready, drains with its answers, and goes."""
    second = engines.start("d-1", "decode")
    engines.ready("d-1", ready=False)
    time.sleep(1)
    check("a pod that is not ready is none", gateway.members("decode") == {decode})
    engines.ready("d-1")
    gateway.comes_to("a pod that is ready serves", "decode", decode, second)
    engines.ready("d-0", ready=False)
    gateway.comes_to("one that is not ready any more does not", "decode", second)

    long = CHAT | {"max_tokens": 200, "stream": True}
    answers = []
    told = threading.Event()
    client = threading.Thread(target=lambda: answers.append(
        ask(gateway.at, long, path="/v1/chat/completions", after_events=(3, told.set))))
    client.start()
    told.wait(20)
    cluster.delete("d-1")
    gateway.comes_to("a pod that is told to stop is drained at once", "decode")
    check("its answer still goes on", client.is_alive())
    check("nobody is left, and /readyz says so", "503" in status_line(gateway))
    client.join(60)
    check("the answer ended well", answers == [200])
    cluster.gone("d-1")
    engines.ready("d-0")
    gateway.comes_to("it comes back", "decode", decode)

    before = gateway.counted("changed")
    many = [engines.start(f"p-{n}", "prefill") for n in range(1, 7)]
    engines.ready(*(f"p-{n}" for n in range(1, 7)))
    gateway.comes_to("several come", "prefill", prefill, *many)
    check("in fewer changes than pods, or as many", gateway.counted("changed") - before <= 6)
    return many


def status_line(gateway):
    import http.client
    connection = http.client.HTTPConnection(gateway.at, timeout=20)
    connection.request("GET", "/readyz")
    return str(connection.getresponse().status)


def outage(cluster, engines, gateway, prefill, many):
    """The API server is killed, and comes back to another world."""
    cluster.kill()
    gateway.process.wait_for("(the fleet stays as it was: the API server at)")
    check("the fleet stays", gateway.members("prefill") == {prefill, *many} and gateway.serves())
    cluster.start()
    cluster.delete("p-1")
    cluster.gone("p-1")
    gateway.comes_to("what happened then is seen", "prefill", prefill, *many[1:])
    # Versions from before are forgotten: it lists anew.
    cluster.kill()
    cluster.start()
    cluster.compact()
    cluster.delete("p-2")
    cluster.gone("p-2")
    gateway.comes_to("after a compaction, too", "prefill", prefill, *many[2:])
    said = [line for line in gateway.process.said().splitlines() if "can't be asked" in line]
    # Two outages, of which a role in which nothing happens between may see one.
    check("an outage is said once for each role", 2 <= len(said) <= 4)


def main():
    apiserver, run, program = sys.argv[1:]
    pathlib.Path(run).mkdir(parents=True)
    cluster = Cluster(run, apiserver, NAMESPACE)
    print(json.dumps(cluster.do("GET", "/version")["gitVersion"]), flush=True)
    engines = Engines(cluster, program)
    gateway = None
    try:
        gateway, prefill, decode = rights(cluster, engines, program)
        many = life(cluster, engines, gateway, prefill, decode)
        outage(cluster, engines, gateway, prefill, many)
    except SystemExit:
        if gateway:
            print(gateway.process.said()[-4000:])
        raise
    finally:
        engines.end()
        if gateway:
            gateway.process.end()
    print("all as it should be")


if __name__ == "__main__":
    main()
