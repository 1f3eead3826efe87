#!/usr/bin/env python3
"""Runs the image's root file system as its configuration says, by runc: without root, without a capability, read-only. Called by image.sh."""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from processes import Process, ask_json, get, wait

NAME = "pd-proxy-image-test"
# The host of the engines, which only the container's /etc/hosts knows.
ENGINES = "engines.test"
# A file that is laid into the container, and what it says: another host than the image's, and another port than the default.
FILE = "/etc/pd-proxy.toml"
CONFIGURED = '[server]\nhost = "127.0.0.1"\nport = 18000\n'
# Of the image's configuration, in Docker's words. Without arguments of its own, which would win over files.
EXPECTED = {
    "User": "65532:65532",
    "Entrypoint": ["/pd-proxy"],
    "Cmd": None,
    "ExposedPorts": {"8000/tcp": {}},
    "StopSignal": "SIGTERM",
}


class Container:
    """A bundle under runc; its network is the host's."""

    def __init__(self, bundle, folder):
        self.bundle, self.folder = pathlib.Path(bundle), folder
        self.file = self.bundle / "config.json"
        self.made = json.loads(self.file.read_text())
        self.root = ["runc", "--root", f"{folder}/runc"]

    def configured(self, arguments, variables):
        """As `docker run --read-only --cap-drop ALL --security-opt no-new-privileges --network host` would have it."""
        config = json.loads(json.dumps(self.made))
        process = config["process"]
        process |= {"args": [*process["args"][:1], *arguments], "terminal": False, "noNewPrivileges": True, "capabilities": {}}
        process["env"] += [f"{name}={value}" for name, value in variables.items()]
        process.pop("rlimits", None)
        config["root"]["readonly"] = True
        config["linux"].pop("resources", None)
        config["linux"]["namespaces"] = [it for it in config["linux"]["namespaces"] if it["type"] != "network"]
        # An image from nothing wants no more; /sys is not for it.
        config["mounts"] = [it for it in config["mounts"] if it["destination"] in ("/proc", "/dev")]
        # The first as container engines mount one.
        for inside, text in {"/etc/hosts": f"127.0.0.1 {ENGINES}\n", FILE: CONFIGURED}.items():
            source = pathlib.Path(self.folder, inside.replace("/", "-"))
            source.write_text(text)
            config["mounts"].append({"destination": inside, "type": "bind", "source": str(source), "options": ["bind", "ro"]})
        self.file.write_text(json.dumps(config))

    def start(self, arguments, variables):
        self.configured(arguments, variables)
        return Process(self.folder, "container", [*self.root, "run", "--bundle", str(self.bundle), NAME])

    def run(self, arguments):
        """Status and output of a run to its end."""
        self.configured(arguments, {})
        done = subprocess.run([*self.root, "run", "--bundle", str(self.bundle), NAME], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def inside(self, *command):
        return subprocess.run([*self.root, "exec", NAME, *command], capture_output=True, text=True, timeout=60)

    def stop(self):
        subprocess.run([*self.root, "kill", NAME, "TERM"], check=True)


def expect(what, seen, expected):
    if seen != expected:
        raise SystemExit(f"image: {what}: {seen!r}, expected {expected!r}")
    print(f"image: {what}: {seen!r}")


def described(image):
    """What the image says of itself."""
    config = json.loads(pathlib.Path(image).read_text())["Docker"]["config"]
    for key, value in EXPECTED.items():
        expect(key, config.get(key) or None, value)
    expect("its health is asked by", config["Healthcheck"]["Test"], ["CMD", "/pd-proxy", "health"])
    ours = [it for it in config["Env"] if it.startswith("PD_PROXY")]
    expect("listens for others than itself, where nothing says otherwise", ours, ["PD_PROXY_DEFAULT_HOST=0.0.0.0"])


def contents(bundle):
    """The program, its licence, and the C library that it loads; folders are runc's mount points."""
    root = pathlib.Path(bundle, "rootfs")
    files = sorted(str(it.relative_to(root)) for it in root.rglob("*") if it.is_file())
    libraries = [it for it in files if re.fullmatch(r"lib(64)?/([\w-]+/)?(ld-linux-[\w-]+|libc|libm|libgcc_s)\.so\.\d", it)]
    expect("files beside its libraries", [it for it in files if it not in libraries], ["LICENSE", "etc/nsswitch.conf", "pd-proxy"])
    expect("libraries", len(libraries), 4)
    megabytes = (root / "pd-proxy").stat().st_size / 1e6
    expect(f"the program has no more than 40 MB ({megabytes:.1f})", megabytes <= 40, True)


def served(container, engine, folder):
    """A gateway in the container, before two engines outside of it."""
    engines = []
    try:
        for role in ("prefill", "decode"):
            process = Process(folder, role, [engine, "sim", "--port", "0", "--role", role])
            engines.append(process)
            (process.address,) = process.wait_for(r" on http://([0-9.]+:[0-9]+)")
        prefill, decode = (f"http://{ENGINES}:{it.address.rpartition(':')[2]}" for it in engines)
        gateway = container.start(["--prefill", prefill, "--decode", decode], {"PD_PROXY_CONFIG": FILE})
        engines.append(gateway)
        wait("the gateway to be ready", lambda: "listening" in gateway.said())
        expect("listens where the file says", "listening on http://127.0.0.1:18000" in gateway.said(), True)
        answer = ask_json("http://127.0.0.1:18000", "/v1/completions", {"model": "sim", "prompt": "hello", "max_tokens": 5})
        expect("tokens of an answer", answer["usage"]["completion_tokens"], 5)
        expect("metrics", "pd_proxy_requests_total" in get("127.0.0.1:18000", "/metrics"), True)
        expect("status of the health check", container.inside("/pd-proxy", "health").returncode, 0)
        status = pathlib.Path("/proc", pid(container), "status").read_text()
        expect("users", [line.split()[1:] for line in status.splitlines() if line.startswith("Uid")], [["65532"] * 4])
        expect("capabilities", [line.split()[1] for line in status.splitlines() if line.startswith("CapBnd")], ["0" * 16])
        expect("its root is read-only", mounted_read_only(pid(container)), True)
        container.stop()
        expect("status after SIGTERM", gateway.process.wait(60), 0)
    finally:
        for process in reversed(engines):
            process.end()


def pid(container):
    state = subprocess.run([*container.root, "state", NAME], capture_output=True, text=True, check=True)
    return str(json.loads(state.stdout)["pid"])


def mounted_read_only(process):
    mounts = pathlib.Path("/proc", process, "mounts").read_text().splitlines()
    return [mount.split()[3].split(",")[0] for mount in mounts if mount.split()[1] == "/"][-1] == "ro"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("engine", "image", "bundle"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    described(arguments.image)
    contents(arguments.bundle)
    with tempfile.TemporaryDirectory() as folder:
        container = Container(arguments.bundle, folder)
        status, said = container.run(["--version"])
        expect("status of --version", status, 0)
        print(f"image: {said.strip()}")
        status, said = container.run(["--port", "none"])
        expect("a wrong value is said, with status 1", (status, "--port" in said), (1, True))
        served(container, str(pathlib.Path(arguments.engine).resolve()), folder)
    print("image: as it should be")


if __name__ == "__main__":
    sys.exit(main())
