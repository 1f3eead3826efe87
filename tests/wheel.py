#!/usr/bin/env python3
"""Proves a Python wheel: pip takes it, and the program in it runs.

* Its tag names a glibc that has all that the program asks for, as binutils read it.
* pip installs it into a new environment, or for another machine into a folder, by its tag. There `pd-proxy` says its version, reads its
  configuration, and the demo answers a request.
* Manual page and completions are where they are looked for, as the program prints them, and bash completes by them.

Started by wheel.sh, and for another machine by wheel_aarch64.sh. Exit status 0: all as it should be.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

from processes import Process, ask

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The arguments of `pd-proxy generate`, and where their output is installed.
SHARED = {
    "man": "share/man/man1/pd-proxy.1",
    "bash": "share/bash-completion/completions/pd-proxy",
    "zsh": "share/zsh/site-functions/_pd-proxy",
    "fish": "share/fish/vendor_completions.d/pd-proxy.fish",
}
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "install", "--no-index"]
# An emulated machine takes its time.
LONGEST_SECONDS = 300


def run(*command, fails=False):
    """What a command says, which must end well, or not."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
    expect(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}", (done.returncode != 0) == fails)
    return done.stdout + done.stderr


def expect(what, good):
    if not good:
        raise SystemExit(f"wheel: {what}")


def glibc_suffices(wheel, tag, folder):
    """The tag promises a glibc that has each symbol version that the program uses."""
    promised = tuple(map(int, re.match(r"manylinux_(\d+)_(\d+)_", tag).groups()))
    with zipfile.ZipFile(wheel) as members:
        script = next(name for name in members.namelist() if name.endswith(".data/scripts/pd-proxy"))
        program = members.extract(script, folder)
    used = {tuple(map(int, version)) for version in re.findall(r"\bGLIBC_(\d+)\.(\d+)", run("readelf", "--version-info", program))}
    expect(f"{tag} is promised, glibc {max(used)} is used", max(used) <= promised)


def installed(wheel, tag, folder, foreign):
    """Installs the wheel; returns the prefix below which its files are."""
    prefix = pathlib.Path(folder, "installed")
    if foreign:
        run(sys.executable, *PIP, "--target", prefix, "--platform", tag, "--only-binary=:all:", wheel)
    else:
        run(sys.executable, "-m", "venv", prefix)
        run(prefix / "bin/python", *PIP, wheel)
    return prefix


def completes(program, prefix):
    """The manual page and the completions are what the program prints, and good. `program`: the words that start it."""
    for what, path in SHARED.items():
        printed = subprocess.run([*program, "generate", what], capture_output=True, timeout=LONGEST_SECONDS, check=True).stdout
        expect(f"{path} is not what the program prints", (prefix / path).read_bytes() == printed and printed)
    source = f"source {prefix / SHARED['bash']}"
    function = re.search(r" -F (\S+) ", run("bash", "--norc", "-c", f"{source} && complete -p pd-proxy"))[1]
    asked = f"COMP_WORDS=(pd-proxy che) COMP_CWORD=1 && {function} pd-proxy che pd-proxy && echo ${{COMPREPLY[@]}}"
    said = run("bash", "--norc", "-c", f"{source} && {asked}").split()
    expect(f"bash completes `pd-proxy che` with {said}", said == ["check"])
    expect("the manual page has no title", b"\n.TH pd-proxy 1" in (prefix / SHARED["man"]).read_bytes())


def configured(program, folder):
    """The program reads its configuration."""
    file = pathlib.Path(folder, "pd-proxy.toml")
    file.write_text('[fleet]\nprefill = ["10.0.0.1:8100"]\n')
    expect("a file is not read", '["10.0.0.1:8100"]' in run(*program, "check", "--offline", "--show", "--config", file))
    file.write_text("[fleet]\nprefil = []\n")
    expect("an unknown key is taken", "prefil" in run(*program, "check", "--offline", "--show", "--config", file, fails=True))


def answers(program, folder):
    """The demo answers a request."""
    demo = Process(folder, "demo", [*program, "demo", "--port", "0", "--tokens-per-s", "2000"])
    try:
        address, = demo.wait_for(r"http://(127\.0\.0\.1:\d+)")
        body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        status = ask(address, body, path="/v1/chat/completions")
        expect(f"the demo answers {status}", status == 200)
    finally:
        demo.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--under", nargs=argparse.REMAINDER, default=[], metavar="WORD", help="starts a program of the wheel's machine, where that is another one")
    given = parser.parse_args()
    tag = given.wheel.stem.split("-")[-1]
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    with tempfile.TemporaryDirectory() as folder:
        glibc_suffices(given.wheel, tag, folder)
        prefix = installed(given.wheel, tag, folder, foreign=bool(given.under))
        program = [*given.under, prefix / "bin/pd-proxy"]
        expect("another version", run(*program, "--version").split() == ["pd-proxy", version])
        completes(program, prefix)
        configured(program, folder)
        answers(program, folder)
    print(f"wheel: {given.wheel.name}, {given.wheel.stat().st_size / 1e6:.1f} MB: installed and run")


if __name__ == "__main__":
    main()
