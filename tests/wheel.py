#!/usr/bin/env python3
"""Proves config/python: the wheel of the program, as who installs it meets it.

* The same binary makes the same wheel twice. pip installs it into a new environment, where `pd-proxy` says its version and the demo
  answers a request; its manual page and completions are where they are looked for, as the program prints them, and a shell takes them;
  pip finds nothing to complain of, and no file remains when it is uninstalled.
* A wheel that was damaged on its way is refused by pip: before it writes anything where it is told the wheel's hash, else in the middle,
  and what it has written then is replaced by the next installation. One whose content was exchanged is refused by `--check`, since pip
  does not compare it with RECORD.
* The tags are read from the binary, and what can't be told is refused. For another machine, static linking and faults the binaries
  are made by hand (wheel_elf.py).
* With `--emulator`, all of this on another machine, whose own pip takes the wheel; this machine's refuses it, unless it is told to fetch
  for that one.

Started by wheel.sh, and for another machine by wheel_aarch64.sh. Exit status 0: all as it should be.
"""
import argparse
import dataclasses
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

from processes import Process, ask
from wheel_elf import ARM, LOADERS, X86, binary

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILDER = ROOT / "config/python"
sys.path.insert(0, str(BUILDER))

import build_wheel  # noqa: E402
import elf  # noqa: E402

# What may be asked of libraries, and the tags that follow.
TAGS = [
    (binary(), ["manylinux_2_17_x86_64"]),
    (binary(libraries={"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.9"]}), ["manylinux_2_34_x86_64"]),
    (binary(libraries={"libm.so.6": ["GLIBC_2.29"], "libc.so.6": ["GLIBC_2.28"]}), ["manylinux_2_29_x86_64"]),
    (binary(libraries={"libgcc_s.so.1": ["GCC_3.0", "GCC_4.2.0"], "libc.so.6": ["GLIBC_2.5"]}), ["manylinux_2_17_x86_64"]),
    (binary(libraries={"libc.so.6": ["GLIBC_2.30", "GLIBC_ABI_DT_RELR"]}), ["manylinux_2_36_x86_64"]),
    (binary(ARM, libraries={"libc.so.6": ["GLIBC_2.17", "GLIBC_2.39"]}), ["manylinux_2_39_aarch64"]),
    (binary(loader="", libraries={}), ["manylinux_2_17_x86_64", "musllinux_1_1_x86_64"]),
]
# What is refused, and a word of why.
UNKNOWN = [
    (b"#!/bin/sh\n", "no ELF"),
    (binary()[:100], "cut short"),
    (binary(8, LOADERS[X86]), "no program for"),
    (binary(X86, LOADERS[ARM]), "not by glibc's"),
    (binary(loader="/lib/ld-musl-x86_64.so.1"), "not by glibc's"),
    (binary(libraries={"libc.so.6": ["GLIBC_2.17"], "libssl.so.3": ["OPENSSL_3.0.0"]}), "libssl.so.3"),
    (binary(libraries={"libc.so.6": ["GLIBC_PRIVATE"]}), "GLIBC_PRIVATE"),
    (binary(libraries={"libc.so.6": ["GLIBC_ABI_NEW"]}), "GLIBC_ABI_NEW"),
    (binary(libraries={"libgcc_s.so.1": ["GCC_12.0.0"], "libc.so.6": ["GLIBC_2.17"]}), "GCC_12.0.0"),
    (binary(libraries={"libc.so.6": []}), "of no symbol"),
]


PIP = ["-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
# An emulated machine takes its time.
LONGEST_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where the wheel is installed and run."""

    # What stands before a command that is to run there: nothing, or who emulates it.
    under: list
    # Makes an environment with pip.
    venv: list


HERE = Machine([], [sys.executable, "-m", "venv"])


def emulated(emulator):
    """Its processes can't start others, so that pip must be there already."""
    return Machine([emulator], [emulator, "/usr/bin/python3", "-m", "venv", "--without-pip", "--system-site-packages"])


def run(*command, fails=False):
    """What a command says, which must end well, or not."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    expect(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}", (done.returncode != 0) == fails)
    return done.stdout + done.stderr


def expect(what, good):
    if not good:
        raise SystemExit(f"wheel: {what}")


def tags(folder, program):
    """Returns the wheel of a binary for aarch64 that was made by hand."""
    path = pathlib.Path(folder, "binary")
    for data, expected in TAGS:
        path.write_bytes(data)
        expect(f"tags are {elf.read(path).tags()}, expected {expected}", elf.read(path).tags() == expected)
    for data, word in UNKNOWN:
        path.write_bytes(data)
        said = run(sys.executable, BUILDER / "build_wheel.py", path, "--out", folder, fails=True)
        expect(f"{word!r} is not said of what is refused: {said}", word in said and "Traceback" not in said)
    # One of another machine can't be asked for its version, and one without sections can't be stripped: it is packed as it is, and another one is asked.
    path.write_bytes(TAGS[5][0])
    command = [sys.executable, BUILDER / "build_wheel.py", path, "--out", folder]
    expect("a binary that can't be run is asked", "--runnable" in run(*command, fails=True))
    expect("one that is no program is asked", "no-such" in run(*command, "--runnable", "/no-such", fails=True))
    built = pathlib.Path(run(*command, "--runnable", program).splitlines()[0])
    expect(f"{built} has another name", built.name.endswith("-py3-none-manylinux_2_39_aarch64.whl"))
    return built


def read_by_others(program):
    """Our reading of the real program against binutils', where they are."""
    try:
        said = subprocess.run(["objdump", "-p", program], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        print("wheel: there is no objdump to compare with")
        return
    highest = max(tuple(map(int, version)) for version in re.findall(r"\bGLIBC_(\d+)\.(\d+)", said))
    expect(f"objdump has glibc {highest}, we have {elf.read(program)}", elf.read(program).glibc == highest)


def left_in(venv):
    """All files of an environment but those that Python makes by itself."""
    return {path.relative_to(venv) for path in venv.rglob("*") if "__pycache__" not in path.parts}


def completes(program, venv):
    """The manual page and the completions are what the program prints, and good. `program`: the words that start it."""
    for what, path in build_wheel.SHARED.items():
        printed = subprocess.run([*program, "generate", what], capture_output=True, timeout=LONGEST_SECONDS, check=True).stdout
        expect(f"{path} is not what the program prints", (venv / path).read_bytes() == printed and printed)
    source = f"source {venv / build_wheel.SHARED['bash']}"
    function = re.search(r" -F (\S+) ", run("bash", "--norc", "-c", f"{source} && complete -p pd-proxy"))[1]
    asked = f"COMP_WORDS=(pd-proxy che) COMP_CWORD=1 && {function} pd-proxy che pd-proxy && echo ${{COMPREPLY[@]}}"
    said = run("bash", "--norc", "-c", f"{source} && {asked}").split()
    expect(f"bash completes `pd-proxy che` with {said}", said == ["check"])
    expect("the manual page has no title", b"\n.TH pd-proxy 1" in (venv / build_wheel.SHARED["man"]).read_bytes())


def installed(machine, wheel, folder, version):
    """Install, use, remove."""
    venv = pathlib.Path(folder, "venv")
    run(*machine.venv, venv)
    program = [*machine.under, venv / "bin/pd-proxy"]
    pip = [*machine.under, venv / "bin/python", *PIP]
    before = left_in(venv)
    bad = damaged(wheel, folder)
    wanted = pathlib.Path(folder, "requirements.txt")
    wanted.write_text(f"pd-proxy @ {bad.as_uri()} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    said = run(*pip, "install", "--no-index", "--require-hashes", "-r", wanted, fails=True)
    expect(f"pip says {said}", "HASH" in said.upper())
    expect(f"a refused wheel leaves {left_in(venv) - before}", left_in(venv) == before)
    run(*pip, "install", "--no-index", bad, fails=True)
    exchanged(wheel, bad)
    run(*pip, "install", "--no-index", "--force-reinstall", wheel)
    expect("another version", run(*program, "--version").split() == ["pd-proxy", version])
    completes(program, venv)
    configured(program, folder)
    run(*pip, "check")
    shown = run(*pip, "show", "pd-proxy")
    expect(f"pip shows {shown}", f"Version: {version}\n" in shown and "gateway" in shown)
    demo = Process(folder, "demo", [*program, "demo", "--port", "0", "--tokens-per-s", "2000"])
    try:
        address, = demo.wait_for(r"http://(127\.0\.0\.1:\d+)")
        body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        status = ask(address, body, path="/v1/chat/completions")
        expect(f"the demo answers {status}", status == 200)
    finally:
        demo.end()
    run(*pip, "uninstall", "--yes", "pd-proxy")
    # pip leaves the folders, empty.
    remains = {path for path in left_in(venv) - before if not (venv / path).is_dir()}
    expect(f"uninstalled, {remains} remains", not remains and before <= left_in(venv))


def configured(program, folder):
    """The program reads its configuration."""
    file = pathlib.Path(folder, "pd-proxy.toml")
    file.write_text('[fleet]\nprefill = ["10.0.0.1:8100"]\n')
    expect("a file is not read", '["10.0.0.1:8100"]' in run(*program, "check", "--offline", "--config", file))
    file.write_text("[fleet]\nprefil = []\n")
    expect("an unknown key is taken", "prefil" in run(*program, "check", "--offline", "--config", file, fails=True))


def elsewhere(machine, wheel, newer, folder):
    """pip takes a wheel for its own machine alone, and a glibc that it has; or for the machine that it is told of."""
    there = [*machine.under, "/usr/bin/python3", *PIP, "install", "--no-index", "--target", pathlib.Path(folder, "there")]
    here = [sys.executable, *PIP, "install", "--no-index", "--target", pathlib.Path(folder, "here")]
    for command, bad in ((here, wheel), (there, newer)):
        said = run(*command, bad, fails=True)
        expect(f"{bad.name} is refused with {said}", "not a supported wheel on this platform" in said)
    tag = wheel.stem.split("-")[-1]
    run(*here, "--platform", tag, "--only-binary=:all:", wheel)
    fetched = elf.read(pathlib.Path(folder, "here/bin/pd-proxy"))
    expect(f"for {tag} pip fetches a program for {fetched}", fetched.tags() == [tag])


def check_says(bad, what):
    said = run(sys.executable, BUILDER / "build_wheel.py", "--check", bad, fails=True)
    expect(f"--check says {said!r}, not {what!r}", what in said and "Traceback" not in said)


def damaged(wheel, folder):
    """The wheel with a bit of the program that fell over."""
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as whole:
        program = whole.infolist()[0]
    data[program.header_offset + program.compress_size // 2] ^= 1
    bad = pathlib.Path(folder, "bad", wheel.name)
    bad.parent.mkdir()
    bad.write_bytes(data)
    check_says(bad, wheel.name)
    return bad


def exchanged(wheel, bad):
    """Wheels that are whole as zip files, and not what RECORD says. A word in the program's place: compressing takes a second."""
    with zipfile.ZipFile(wheel) as whole:
        members = [(info.filename, whole.read(info), info.external_attr >> 16) for info in whole.infolist()]
    (name, _, mode), (own, _, _) = members[0], members[-1]
    members = [(name, b"program", mode)] + members[1:-1]
    whole = members + [(own, build_wheel.record(members, own), 0o100644)]
    build_wheel.pack(bad, whole)
    build_wheel.check(bad)
    for what, changed in [
        ("not what RECORD says", [(name, b"another", mode)] + whole[1:]),
        ("RECORD lists", whole + [("more.py", b"", 0o100644)]),
        ("can be executed", [(name, b"program", 0o100644)] + whole[1:]),
        ("no RECORD", whole[:-1]),
        *((f"without {path}", lacking(members, path, own)) for path in build_wheel.SHARED.values()),
    ]:
        build_wheel.pack(bad, changed)
        check_says(bad, what)
    build_wheel.pack(bad, whole)
    check_says(bad.rename(bad.with_name(bad.name.replace("manylinux_2_", "manylinux_1_"))), "WHEEL differ")


def lacking(members, path, own):
    """A wheel in which nobody misses a file but who knows what should be there."""
    left = [member for member in members if not member[0].endswith(path)]
    return left + [(own, build_wheel.record(left, own), 0o100644)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--runnable", type=pathlib.Path, help="asked here in the program's place, where that is of another machine")
    parser.add_argument("--emulator", type=pathlib.Path, help="starts a command on that machine; sees the temporary directory")
    given = parser.parse_args()
    program, other = given.program.resolve(), given.runnable
    version = build_wheel.package()["version"]
    with tempfile.TemporaryDirectory() as folder:
        newer = tags(folder, other or program)
        read_by_others(program)
        wheel = build_wheel.build(program, pathlib.Path(folder, "one"), other)
        again = build_wheel.build(program, pathlib.Path(folder, "two"), other)
        expect("the same binary makes two wheels", wheel.read_bytes() == again.read_bytes())
        run(sys.executable, BUILDER / "build_wheel.py", "--check", wheel)
        if given.emulator:
            elsewhere(emulated(given.emulator), wheel, newer, folder)
        installed(emulated(given.emulator) if given.emulator else HERE, wheel, folder, version)
        size = wheel.stat().st_size / 1e6
    print(f"wheel: {wheel.name}, {size:.1f} MB: installed, run, removed; {len(TAGS)} tags told, {len(UNKNOWN)} binaries refused")


if __name__ == "__main__":
    main()
