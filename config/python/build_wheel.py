#!/usr/bin/env python3
"""Makes a Python wheel of a pd-proxy binary, so that `pip install` puts the program beside an engine that came the same way.

    python3 config/python/build_wheel.py target/release/pd-proxy --out dist
    python3 config/python/build_wheel.py --check dist/pd_proxy-….whl

The wheel has no Python in it: the binary is a script of it, and pip puts it into bin/. For which systems it is good is read from the
binary (elf.py) and said by the wheel's tags. The same binary makes the same wheel, byte for byte. Python 3.9 or newer, its own
library alone.
"""
import argparse
import base64
import csv
import email.parser
import hashlib
import io
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib

import elf

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The earliest time that a zip file can say.
EPOCH = (1980, 1, 1, 0, 0, 0)
PROGRAM_MODE, FILE_MODE = 0o100755, 0o100644


class Refused(Exception):
    """Why no wheel is made, or why one is bad."""


def package():
    """What Cargo.toml says of the package."""
    text = (ROOT / "Cargo.toml").read_text().split("\n[", 2)[0]
    found = dict(re.findall(r'^([\w-]+) = "(.*)"$', text, re.M))
    missing = {"name", "version", "license", "description"} - found.keys()
    if missing:
        raise Refused(f"Cargo.toml has no {', '.join(sorted(missing))}")
    return found


def check_version(binary, version):
    """A binary of another version is not packed; one of another machine can't be asked."""
    if elf.read(binary).machine != platform.machine():
        return
    run = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60, check=False)
    if run.stdout.split() != ["pd-proxy", version]:
        raise Refused(f"{binary} says {run.stdout.strip()!r}, Cargo.toml has {version}")


def stripped(binary, folder):
    """The binary without what debuggers want, as far as there is a `strip` that knows it."""
    if not (tool := shutil.which("strip")):
        print("build_wheel: there is no strip: the wheel will be large", file=sys.stderr)
        return binary
    small = pathlib.Path(folder, "pd-proxy")
    run = subprocess.run([tool, "-o", small, binary], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(f"build_wheel: not stripped: {run.stderr.strip()}", file=sys.stderr)
        return binary
    return small


def metadata(about):
    paragraph = (ROOT / "README.md").read_text().split("\n\n")[1]
    return f"""\
Metadata-Version: 2.4
Name: {about["name"]}
Version: {about["version"]}
Summary: {about["description"]}
License-Expression: {about["license"]}
License-File: LICENSE
Keywords: llm,vllm,gateway,openai,proxy
Requires-Python: >=3.7
Description-Content-Type: text/markdown

{paragraph}

This package is the program alone, `pd-proxy`, without a Python module. `pd-proxy demo` shows it without engines.
"""


def wheel_file(tags):
    lines = ["Wheel-Version: 1.0", "Generator: pd-proxy build_wheel", "Root-Is-Purelib: false"]
    return "\n".join(lines + [f"Tag: py3-none-{tag}" for tag in tags]) + "\n"


def digest(data):
    """As RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def record(members, own):
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerows([name, digest(data), len(data)] for name, data, _ in members)
    rows.writerow([own, "", ""])
    return out.getvalue().encode()


def pack(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data, mode in members:
            info = zipfile.ZipInfo(name, EPOCH)
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, mode << 16, 3
            wheel.writestr(info, data)


def build(binary, out):
    """Packs `binary` into a wheel in the folder `out`; returns its path."""
    about = package()
    # A dash in a wheel's name separates its parts.
    stem = f"{about['name'].replace('-', '_')}-{about['version']}"
    tags = elf.read(binary).tags()
    check_version(binary, about["version"])
    info = f"{stem}.dist-info"
    with tempfile.TemporaryDirectory() as folder:
        small = stripped(binary, folder)
        if elf.read(small) != elf.read(binary):
            raise Refused("strip has changed what the binary needs")
        members = [
            (f"{stem}.data/scripts/pd-proxy", small.read_bytes(), PROGRAM_MODE),
            (f"{info}/METADATA", metadata(about).encode(), FILE_MODE),
            (f"{info}/WHEEL", wheel_file(tags).encode(), FILE_MODE),
            (f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), FILE_MODE),
        ]
    members.append((f"{info}/RECORD", record(members, f"{info}/RECORD"), FILE_MODE))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{stem}-py3-none-{'.'.join(tags)}.whl"
    pack(path, members)
    check(path)
    return path


def check(path):
    """Whether a wheel is what it says: pip compares nothing with RECORD when it installs.

    Raises `Refused`."""
    try:
        with zipfile.ZipFile(path) as wheel:
            modes = [(info.filename, info.external_attr >> 16) for info in wheel.infolist()]
            data = {name: wheel.read(name) for name, _ in modes}
        wrong = differs(path.stem, modes, data)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError, KeyError) as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise Refused(f"{path.name}: {wrong}")


def differs(stem, modes, data):
    """What of a wheel's members is not as its name, RECORD and WHEEL say; None for nothing."""
    own = next((name for name in data if name.endswith(".dist-info/RECORD")), None)
    if own is None or len(modes) != len(data):
        return "no RECORD, or a name that stands twice"
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(data[own].decode()))}
    if rows.pop(own, None) != ["", ""] or rows.keys() != data.keys() - {own}:
        return f"RECORD lists {sorted(rows)}, there is {sorted(data)}"
    for name, row in rows.items():
        if row != [digest(data[name]), str(len(data[name]))]:
            return f"{name} is not what RECORD says"
    said = email.parser.Parser().parsestr(data[own.replace("RECORD", "WHEEL")].decode())
    _, _, python, abi, tags = stem.split("-")
    if said.get_all("Tag") != [f"{python}-{abi}-{tag}" for tag in tags.split(".")]:
        return "its name and its WHEEL differ"
    scripts = [mode for name, mode in modes if ".data/scripts/" in name]
    return None if scripts == [PROGRAM_MODE] else "not one program that can be executed"


def main():
    parser = argparse.ArgumentParser(description="Makes a wheel of a pd-proxy binary.")
    parser.add_argument("binary", nargs="?", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("dist"), help="folder for the wheel [default: dist]")
    parser.add_argument("--check", type=pathlib.Path, metavar="WHEEL", help="compare a wheel with its RECORD instead")
    given = parser.parse_args()
    if (given.binary is None) == (given.check is None):
        parser.error("a binary, or --check WHEEL")
    try:
        if given.check:
            check(given.check)
            print(f"{given.check.name}: as its RECORD says")
        else:
            print(build(given.binary, given.out))
    except (Refused, elf.Unknown) as error:
        raise SystemExit(f"build_wheel: {error}") from error


if __name__ == "__main__":
    main()
