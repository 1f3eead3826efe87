#!/usr/bin/env python3
"""The parts of a release that read files: release.sh calls it.

* `check`: prints the version if the tree may be released, else each reason why not, with exit status 1.
* `notes`: prints the version's section of the changelog.
* `sbom WHEEL FILE TARGET`: takes maturin's list of crates out of a wheel. It must keep the schema of CycloneDX 1.5, and have every
  crate of which `cargo tree` says that it is part of the program.
* `chart FOLDER`: packages the Helm chart, and renders the package by its own values.
"""
import functools
import json
import pathlib
import re
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHART = ROOT / "config/helm/pd-proxy"
# Files that say the version beside Cargo.toml: what is said, and where.
PLACES = [
    ("config/helm/pd-proxy/Chart.yaml", "version", r"^version: (\S+)$"),
    ("config/helm/pd-proxy/Chart.yaml", "appVersion", r'^appVersion: "([^"]+)"$'),
    ("config/kubernetes/deployment.yaml", "image", r"^ *image: pd-proxy:(\S+)$"),
    ("README.md", "Status", r"^Version (\d+\.\d+\.\d+[^ ]*)\. "),
]


def output(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"release: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def packages():
    return json.loads(output("cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"))["packages"]


def section(version):
    """The lines of a version in the changelog, its heading first; nothing where there is none."""
    lines, found = (ROOT / "CHANGELOG.md").read_text().splitlines(), []
    for line in lines:
        if line.startswith("## "):
            if found:
                break
            found = [line] if line.startswith(f"## [{version}]") else []
        elif found:
            found.append(line)
    return found


def changelog(version):
    """What is wrong with the changelog."""
    def entries(lines):
        return [line for line in lines[1:] if line.strip() and not line.startswith("#")]

    open_entries = entries(section("Unreleased"))
    if open_entries:
        yield f"CHANGELOG.md: {len(open_entries)} lines are below Unreleased: move them below [{version}]"
    found = section(version)
    if not entries(found):
        yield f"CHANGELOG.md: there is no section [{version}], or nothing in it"
    elif not re.search(r"\] - \d{4}-\d\d-\d\d$", found[0]):
        yield f"CHANGELOG.md: '{found[0]}' has no date: write '## [{version}] - YYYY-MM-DD'"


def versions(version):
    """Places that say another version than the package."""
    for package in packages():
        if package["version"] != version:
            yield f"{package['name']} is {package['version']}, pd-proxy is {version}: Cargo.toml"
        for used in package["dependencies"]:
            if used.get("path") and used["kind"] != "dev" and used["req"] not in (f"^{version}", f"={version}"):
                yield f"{package['name']} wants {used['name']} {used['req']}, pd-proxy is {version}: Cargo.toml"
    for file, what, pattern in PLACES:
        said = re.findall(pattern, (ROOT / file).read_text(), re.M)
        if said != [version]:
            yield f"{file}: {what} is {', '.join(said) or 'missing'}, Cargo.toml has {version}"
    project = (ROOT / "pyproject.toml").read_text()
    said = re.search(r'^version = "([^"]+)"$', project, re.M)
    if said and said[1] != version:
        yield f"pyproject.toml: version is {said[1]}, Cargo.toml has {version}"
    if not said and not re.search(r'^dynamic = \[.*"version".*\]$', project, re.M):
        yield "pyproject.toml: version is missing: it must be dynamic, or that of Cargo.toml"


def state(version):
    """What git has against a release: changes, or a tag of this version at another commit."""
    changed = output("git", "status", "--porcelain").splitlines()
    if changed:
        yield f"the working tree has {len(changed)} changes, the first is '{changed[0].strip()}': commit them or take them back"
    if output("git", "tag", "--list", f"v{version}").strip():
        if output("git", "rev-parse", f"v{version}^{{commit}}") != output("git", "rev-parse", "HEAD"):
            yield f"v{version} is the tag of another commit: raise the version"


def current():
    return next(package["version"] for package in packages() if package["name"] == "pd-proxy")


def check():
    version = current()
    found = [*state(version), *versions(version), *changelog(version)]
    for problem in found:
        print(f"release: {problem}", file=sys.stderr)
    if found:
        raise SystemExit(1)
    print(version)


def notes():
    print("\n".join(section(current())[1:]).strip())


def linked(target):
    """The crates of the program, with their versions; those of macros are built for the machine that builds, and not in it."""
    tree = output("cargo", "tree", "--locked", "--package", "pd-proxy", "--all-features", "--edges", "normal,no-proc-macro",
                  "--prefix", "none", "--target", target, "--format", "{p}")
    return {tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()}


def sbom(wheel, file, target):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    with zipfile.ZipFile(wheel) as members:
        names = [name for name in members.namelist() if re.search(r"\.dist-info/sboms/pd-proxy\.cyclonedx\.json$", name)]
        if len(names) != 1:
            raise SystemExit(f"release: {wheel} has {len(names)} lists of crates, not 1")
        text = members.read(names[0]).decode()
    problem = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
    if problem:
        raise SystemExit(f"release: {names[0]} is no CycloneDX 1.5: {problem.data!r}")
    made = json.loads(text)
    listed = {(it["name"], f"v{it['version']}") for it in [made["metadata"]["component"], *made["components"]]}
    missing = sorted(linked(target) - listed)
    if missing:
        raise SystemExit(f"release: {names[0]} lacks {len(missing)} crates, such as {' '.join(missing[0])}")
    pathlib.Path(file).write_text(text)
    print(f"release: {len(listed)} crates are listed")


def chart(folder):
    import helm_python

    made = helm_python.package(CHART, destination=folder)
    with helm_python.Chart.load(made) as packed:
        files = packed.render({}, name="pd-proxy", namespace="default")
        if packed.version != current() or not any(f"pd-proxy:{current()}" in text for text in files.values()):
            raise SystemExit(f"release: {made} is of version {packed.version}, or names another image")


if __name__ == "__main__":
    {"check": check, "notes": notes, "sbom": sbom, "chart": chart}[sys.argv[1]](*sys.argv[2:])
