#!/usr/bin/env python3
"""Proves config/release.sh in a copy of the tree: refusals, the dry run, and a release of a ready program. Called by release.sh."""
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "config"))
# The program that is given is of the machine's C library.
TARGET = "x86_64-unknown-linux-gnu"
# What is wrong, in which file, the text that is replaced and what takes its place, and words of the refusal.
FAULTS = [
    ("another version", "Cargo.toml", 'version = "0.1.0"\nedition', 'version = "0.1.1"\nedition', "Cargo.toml has 0.1.1"),
    ("a member's version", "crates/sim/Cargo.toml", "version.workspace = true", 'version = "0.0.9"', "pd-proxy-sim is 0.0.9"),
    ("the chart", "config/helm/pd-proxy/Chart.yaml", "\nversion: 0.1.0", "\nversion: 0.2.0", "Chart.yaml: version is 0.2.0"),
    ("the chart's program", "config/helm/pd-proxy/Chart.yaml", '"0.1.0"', '"0.2.0"', "appVersion is 0.2.0"),
    ("the manifest", "config/kubernetes/deployment.yaml", "image: pd-proxy:0.1.0", "image: pd-proxy:0.2.0", "image is 0.2.0"),
    ("the README", "README.md", "Version 0.1.0. ", "Version 0.0.1. ", "README.md: Status is 0.0.1"),
    ("the wheel", "pyproject.toml", 'dynamic = ["version", ', 'version = "0.3.0"\ndynamic = [', "pyproject.toml: version is 0.3.0"),
    ("no version of the wheel", "pyproject.toml", 'dynamic = ["version", ', "dynamic = [", "pyproject.toml: version is missing"),
    ("no section", "CHANGELOG.md", "## [0.1.0] - ", "## [0.0.1] - ", "there is no section [0.1.0]"),
    ("no date", "CHANGELOG.md", "## [0.1.0] - 2026-01-01", "## [0.1.0]", "has no date"),
    ("an open entry", "CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- One more.\n", "1 lines are below Unreleased"),
]


def expect(what, good):
    if not good:
        raise SystemExit(f"release: {what}")


class Tree:
    """A copy of the sources in a repository of its own, ready for a release."""

    def __init__(self, folder, program):
        self.folder, self.program = pathlib.Path(folder), program
        self.out = self.folder / "dist/0.1.0"
        changelog = (self.folder / "CHANGELOG.md").read_text()
        changelog = re.sub(r"^## \[0\.1\.0\].*$", "", changelog, flags=re.M)
        self.write("CHANGELOG.md", changelog.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n", 1))
        self.write(".gitignore", (self.folder / ".gitignore").read_text() + "/ready\n")
        self.run("git", "init", "--quiet")
        self.run("git", "add", "--all")
        self.commit("Release")

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def run(self, *command, **variables):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300,
                              env={**os.environ, "TARGET": TARGET, **variables})
        return done.returncode, done.stdout + done.stderr

    def commit(self, words):
        status, said = self.run("git", "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "--all", "--message", words)
        expect(f"git commit: {said}", status == 0)

    def release(self, *arguments, **variables):
        return self.run("config/release.sh", *arguments, **variables)

    def refuses(self, what, word, *arguments, **variables):
        status, said = self.release(*arguments, **variables)
        expect(f"planted: {what}; status {status}: {said}", status == 1 and word in said)
        return said


def refusals(tree):
    for what, file, old, new, word in FAULTS:
        text = (tree.folder / file).read_text()
        expect(f"planted: {what}: {file} has no {old!r}", old in text)
        tree.write(file, text.replace(old, new, 1))
        # Cargo follows a version by itself; a release does not get that far.
        tree.run("cargo", "update", "--workspace", "--offline")
        said = tree.refuses(what, word, "--dry-run")
        expect(f"planted: {what}, which is a change: {said}", "the working tree has" in said)
        tree.run("git", "checkout", "--quiet", ".")
    tree.run("git", "tag", "v0.1.0")
    tree.run("git", "-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "--quiet", "--allow-empty", "--message", "Later")
    tree.refuses("a tag elsewhere", "v0.1.0 is the tag of another commit", "--dry-run")
    tree.run("git", "tag", "--delete", "v0.1.0")
    return len(FAULTS) + 1


def wheel(folder, crates, **changes):
    """A stand-in for maturin's wheel: its list of crates is all that is looked into."""
    components = [{"type": "library", "name": name, "version": version[1:]} for name, version in sorted(crates)]
    listed = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components,
              "metadata": {"component": {"type": "application", "name": "pd-proxy", "version": "0.1.0"}}}
    folder.mkdir(exist_ok=True)
    file = folder / "pd_proxy-0.1.0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("pd_proxy-0.1.0.dist-info/sboms/pd-proxy.cyclonedx.json", json.dumps({**listed, **changes}))
    return file


def made(tree):
    """What a release of a ready program leaves, looked at by other means than it was made."""
    name = f"pd-proxy-0.1.0-{TARGET}"
    sums = (tree.out / "SHA256SUMS").read_text().split()
    expected = {name + ".tar.gz", name + ".cdx.json", name + "-image.tar", "pd-proxy-0.1.0.tgz", "NOTES.md",
                "pd_proxy-0.1.0-py3-none-linux_x86_64.whl"}
    expect(f"checksums of {sums[1::2]}", set(sums[1::2]) == expected)
    for digest, file in zip(sums[::2], sums[1::2]):
        expect(f"the checksum of {file}", hashlib.sha256((tree.out / file).read_bytes()).hexdigest() == digest)
    program = pathlib.Path(tree.program).read_bytes()
    with tarfile.open(tree.out / f"{name}.tar.gz") as archive:
        expect("another program is in the archive", archive.extractfile(f"{name}/pd-proxy").read() == program)
        expect("the archive's files belong to somebody", {it.uid for it in archive} == {0})
        expect("the archive has no manual page", b".TH pd-proxy" in archive.extractfile(f"{name}/pd-proxy.1").read())
    with tarfile.open(tree.out / f"{name}-image.tar") as image:
        manifest = json.load(image.extractfile("manifest.json"))[0]
        config = json.load(image.extractfile(manifest["Config"]))["config"]
        layers = [tarfile.open(fileobj=image.extractfile(layer)) for layer in manifest["Layers"]]
        found = [layer.extractfile("pd-proxy").read() for layer in layers if "pd-proxy" in layer.getnames()]
    expect("another program is in the image", found == [program])
    expect(f"the image starts {config}", (config["Entrypoint"], config["User"]) == (["/pd-proxy"], "65532:65532"))
    expect("the image has no health check", "Healthcheck" in config)
    with tarfile.open(tree.out / "pd-proxy-0.1.0.tgz") as chart:
        expect("the chart lacks its alerts", b"PdProxy" in chart.extractfile("pd-proxy/files/alerts.yml").read())
    notes = (tree.out / "NOTES.md").read_text()
    expect("the notes have other sections", notes.startswith("### Added") and "## [" not in notes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--tree", required=True)
    arguments = parser.parse_args()
    tree = Tree(arguments.tree, arguments.program)
    found = refusals(tree)
    status, said = tree.release("--dry-run")
    expect(f"the dry run: {status}: {said}", status == 0 and "nothing was made" in said and not tree.out.exists())

    import release
    release.ROOT = tree.folder
    crates = release.linked(TARGET)
    ready = tree.folder / "ready"
    other = ready / "other"
    whole = wheel(ready, crates)
    other.write_text("#!/bin/sh\necho pd-proxy 9.9.9\n")
    other.chmod(0o755)
    tree.refuses("another program", "this is 0.1.0", "--program", other, "--wheel", whole)
    tree.refuses("a program that is not static", "is not static", "--program", tree.program, "--wheel", whole, TARGET="x86_64-unknown-linux-musl")
    for what, changed, word in [
        ("a crate that is not listed", wheel(ready / "fewer", sorted(crates)[:-1]), "lacks 1 crates"),
        ("a list of no known form", wheel(ready / "form", crates, components=7), "is no CycloneDX 1.5"),
    ]:
        tree.refuses(what, word, "--program", tree.program, "--wheel", changed)
        subprocess.run(["rm", "-r", tree.out], check=True)
    status, said = tree.release("--program", tree.program, "--wheel", whole)
    expect(f"the release: {status}: {said}", status == 0 and "twine upload dist/0.1.0/" in said)
    made(tree)
    tree.refuses("a release that is there", "is there already", "--program", tree.program, "--wheel", whole)
    print(f"release: {found + 5} planted faults were found; of a ready program all is made, and is what it says")


if __name__ == "__main__":
    main()
