#!/usr/bin/env python3
"""Makes a Python wheel of a pd-proxy binary, so that `pip install` puts the program beside an engine that came the same way.

    python3 config/python/build_wheel.py target/dist/pd-proxy --out dist
    python3 config/python/build_wheel.py target/aarch64-unknown-linux-gnu/dist/pd-proxy --runnable target/dist/pd-proxy
    python3 config/python/build_wheel.py --check dist/pd_proxy-….whl

The wheel has no Python in it: the binary is a script of it, and pip puts it into bin/, and into share/ its manual page and completions for
shells, which the program prints itself: a binary of another machine has them from one that can be run here. For which systems it is good is read from the
binary (elf.py) and said by the wheel's tags. tests/wheel_aarch64.sh shows how one for aarch64 is compiled, linked for an old glibc, and tried.
The same binary makes the same wheel, byte for byte. Python 3.9 or newer, its own library alone.
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
# What `pd-proxy generate` prints, and where manual pages and completions are looked for below a prefix.
SHARED = {
    "man": "share/man/man1/pd-proxy.1",
    "bash": "share/bash-completion/completions/pd-proxy",
    "zsh": "share/zsh/site-functions/_pd-proxy",
    "fish": "share/fish/vendor_completions.d/pd-proxy.fish",
}


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


def runnable(binary, other):
    """Who is asked for what the program says of itself: the binary, or for one of another machine `other`."""
    if other is None and elf.read(binary).machine != platform.machine():
        raise Refused(f"{binary} can't be run here: name a binary of the same version that can, by --runnable")
    return other or binary


def said_by(program, *arguments):
    """What the program prints."""
    try:
        run = subprocess.run([program, *arguments], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Refused(f"{program} {' '.join(arguments)}: {error}") from error
    return run.stdout


def shared(program, version):
    """The files for share/, by their paths. A program of another version is not asked."""
    says = said_by(program, "--version").decode().split()
    if says != ["pd-proxy", version]:
        raise Refused(f"{program} says {' '.join(says)!r}, Cargo.toml has {version}")
    return {path: said_by(program, "generate", what) for what, path in SHARED.items()}


def stripped(binary, folder):
    """The binary without what debuggers want, as far as there is a `strip` that knows it; for other machines cross compilers have one."""
    machine = elf.read(binary).machine
    name = "strip" if machine == platform.machine() else f"{machine}-linux-gnu-strip"
    if not (tool := shutil.which(name)):
        print(f"build_wheel: there is no {name}: the wheel may be large", file=sys.stderr)
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


def build(binary, out, other=None):
    """Packs `binary` into a wheel in the folder `out`; returns its path. `other` can be run where it can't."""
    about = package()
    # A dash in a wheel's name separates its parts.
    stem = f"{about['name'].replace('-', '_')}-{about['version']}"
    tags = elf.read(binary).tags()
    files = shared(runnable(binary, other), about["version"])
    info = f"{stem}.dist-info"
    with tempfile.TemporaryDirectory() as folder:
        small = stripped(binary, folder)
        if elf.read(small) != elf.read(binary):
            raise Refused("strip has changed what the binary needs")
        members = [
            (f"{stem}.data/scripts/pd-proxy", small.read_bytes(), PROGRAM_MODE),
            *((f"{stem}.data/data/{path}", data, FILE_MODE) for path, data in files.items()),
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
    if scripts != [PROGRAM_MODE]:
        return "not one program that can be executed"
    there = {name.partition(".data/data/")[2] for name in data}
    missing = sorted(path for path in SHARED.values() if path not in there)
    return f"without {', '.join(missing)}" if missing else None


def main():
    parser = argparse.ArgumentParser(description="Makes a wheel of a pd-proxy binary.")
    parser.add_argument("binary", nargs="?", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("dist"), help="folder for the wheel [default: dist]")
    parser.add_argument("--runnable", type=pathlib.Path, metavar="BINARY", help="asked in place of a binary of another machine")
    parser.add_argument("--check", type=pathlib.Path, metavar="WHEEL", help="compare a wheel with its RECORD instead")
    given = parser.parse_args()
    if (given.binary is None) == (given.check is None):
        parser.error("a binary, or --check WHEEL")
    try:
        if given.check:
            check(given.check)
            print(f"{given.check.name}: as its RECORD says")
        else:
            print(build(given.binary, given.out, given.runnable))
    except (Refused, elf.Unknown) as error:
        raise SystemExit(f"build_wheel: {error}") from error


if __name__ == "__main__":
    main()
