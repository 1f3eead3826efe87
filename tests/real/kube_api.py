"""A real etcd and a real kube-apiserver, and what a kubelet would do to pods: for kubernetes.py.

Nothing else of a cluster runs. Pods are created through the API, get their status through the subresource that kubelets write
to, and are deleted as `kubectl delete` and then a kubelet do it.
"""
import atexit
import http.client
import json
import pathlib
import ssl
import subprocess
import sys
import time

from processes import Process, wait

ADMIN = "admin-token"
START_SECONDS = 300  # a busy machine


def free_port():
    import socket
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


class Cluster:
    """etcd and the API server in one directory."""

    def __init__(self, run, apiserver, namespace):
        self.run, self.apiserver, self.namespace = pathlib.Path(run).resolve(), apiserver, namespace
        self.etcd_port, self.port, self.starts = free_port(), free_port(), 0
        key, pub = self.run / "sa.key", self.run / "sa.pub"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", pub], check=True, capture_output=True)
        (self.run / "tokens.csv").write_text(f'{ADMIN},admin,admin,"system:masters"\n')
        peer = free_port()
        self.etcd = Process(self.run, "etcd", [
            "etcd", "--data-dir", str(self.run / "etcd"), "--listen-client-urls", f"http://127.0.0.1:{self.etcd_port}",
            "--advertise-client-urls", f"http://127.0.0.1:{self.etcd_port}", "--listen-peer-urls", f"http://127.0.0.1:{peer}"])
        atexit.register(self.end)
        self.start()
        wait("namespaces", lambda: self.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})[0] in (201, 409))

    def start(self):
        """The API server, at the port that it always has."""
        self.starts += 1
        command = [
            str(self.apiserver), f"--etcd-servers=http://127.0.0.1:{self.etcd_port}", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", f"--cert-dir={self.run}/certs", "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={self.run}/sa.pub",
            f"--service-account-signing-key-file={self.run}/sa.key", "--authorization-mode=RBAC",
            f"--token-auth-file={self.run}/tokens.csv", "--disable-admission-plugins=ServiceAccount"]
        self.server = Process(self.run, f"apiserver-{self.starts}", command)

        def ready():
            if self.server.process.poll() is not None:
                sys.exit(f"kube-apiserver ended:\n{self.server.said()[-3000:]}")
            try:
                return self.call("GET", "/readyz")[0] == 200
            except (OSError, http.client.HTTPException):
                return False
        wait("kube-apiserver", ready, START_SECONDS)

    def kill(self):
        """As the kernel does when memory is short."""
        self.server.process.kill()
        self.server.process.wait()

    def end(self):
        for it in (getattr(self, "server", None), self.etcd):
            if it and it.process.poll() is None:
                it.process.kill()
                it.process.wait()

    def connect(self):
        context = ssl.create_default_context(cafile=str(self.run / "certs/apiserver.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)

    def raw(self, method, path, body=None, token=ADMIN, kind="application/json"):
        """Status and text."""
        connection = self.connect()
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"authorization": f"Bearer {token}", "content-type": kind})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def call(self, method, path, body=None, **more):
        status, text = self.raw(method, path, body, **more)
        return status, json.loads(text) if text.startswith("{") else text

    def do(self, method, path, body=None, **more):
        """What must succeed."""
        status, answer = self.call(method, path, body, **more)
        if status >= 300:
            sys.exit(f"{method} {path}: {status} {answer}")
        return answer

    def watch(self, path, seconds):
        """The lines of a watch of so many seconds."""
        connection = self.connect()
        mark = "&" if "?" in path else "?"
        connection.request("GET", f"{path}{mark}watch=true&timeoutSeconds={seconds}", headers={"authorization": f"Bearer {ADMIN}"})
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return lines

    def version(self):
        return self.do("GET", f"{self.pods()}?limit=1")["metadata"]["resourceVersion"]

    def compact(self):
        """Makes etcd forget its past, as the API server does every five minutes."""
        def post(path, body):
            connection = http.client.HTTPConnection("127.0.0.1", self.etcd_port, timeout=20)
            connection.request("POST", path, json.dumps(body))
            return json.loads(connection.getresponse().read())
        revision = post("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        post("/v3/kv/compaction", {"revision": revision, "physical": True})

    def pods(self, name=""):
        return f"/api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")

    # What a controller and a kubelet do.

    def create(self, name, labels, ports):
        """A pod that somebody scheduled; `ports` by their names."""
        listed = [{"name": it, "containerPort": port} for it, port in ports.items()]
        container = {"name": "engine", "image": "engine:1", "ports": listed}
        spec = {"nodeName": "node-1", "hostNetwork": True, "containers": [container], "terminationGracePeriodSeconds": 60}
        for port in listed:
            port["hostPort"] = port["containerPort"]
        return self.do("POST", self.pods(), {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def status(self, name, ip, ready, phase="Running"):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Initialized", "PodScheduled")]
        said = "True" if ready else "False"
        conditions += [{"type": kind, "status": said, "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")]
        status = {"phase": phase, "conditions": conditions, "startTime": now, "hostIP": ip, "podIP": ip, "podIPs": [{"ip": ip}]}
        return self.do("PATCH", self.pods(name) + "/status", {"status": status}, kind="application/merge-patch+json")

    def delete(self, name):
        """As `kubectl delete`: it is told to stop."""
        return self.do("DELETE", self.pods(name))

    def gone(self, name):
        """As the kubelet does when its containers have ended."""
        return self.do("DELETE", self.pods(name), {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})

    def service_account(self, name):
        """A token of a service account of this name."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        self.do("POST", path, {"metadata": {"name": name}})
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        return self.do("POST", f"{path}/{name}/token", request)["status"]["token"]

    def kubeconfig(self, name, token):
        """The path of a kubeconfig with this token."""
        path = self.run / f"{name}.kubeconfig"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {
                "server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.run / "certs/apiserver.crt")}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": self.namespace}}],
            "users": [{"name": "it", "user": {"token": token}}]}))
        return path
