"""Binaries made by hand for wheel.py: just what a loader reads before it runs anything."""
import struct

X86, ARM = 62, 183
LOADERS = {X86: "/lib64/ld-linux-x86-64.so.2", ARM: "/lib/ld-linux-aarch64.so.1"}
HEADER, PROGRAM_HEADER, DYNAMIC_ENTRY = 64, 56, 16
VERSION_RECORD = 16
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NULL, DT_NEEDED, DT_STRTAB, DT_VERNEED, DT_VERNEEDNUM = 0, 1, 5, 0x6FFFFFFE, 0x6FFFFFFF
# Where the file is in memory: not at its own offsets, as in real programs.
BASE = 0x10000


class Strings:
    def __init__(self):
        self.data = b"\0"

    def add(self, text):
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def binary(machine=X86, loader=None, libraries=None):
    """A program for `machine`, started by `loader` ("" = linked statically), that asks its libraries for symbol versions."""
    loader = LOADERS[machine] if loader is None else loader
    libraries = {"libc.so.6": ["GLIBC_2.17"]} if libraries is None else libraries
    parts = 3 if loader else 1
    strings, at = Strings(), HEADER + parts * PROGRAM_HEADER
    names = {library: strings.add(library) for library in libraries}
    versions = {version: strings.add(version) for asked in libraries.values() for version in asked}
    interpreter, at = at, at + len(loader) + 1
    table, at = at, at + len(strings.data)
    needs = b""
    for left, (library, asked) in zip(range(len(libraries) - 1, -1, -1), libraries.items()):
        step = VERSION_RECORD * (1 + len(asked)) if left else 0
        needs += struct.pack("<HHIII", 1, len(asked), names[library], VERSION_RECORD, step)
        for rest, version in zip(range(len(asked) - 1, -1, -1), asked):
            needs += struct.pack("<IHHII", 0, 0, 2, versions[version], VERSION_RECORD if rest else 0)
    needed, at = at, at + len(needs)
    entries = [(DT_NEEDED, name) for name in names.values()] + [(DT_STRTAB, BASE + table)]
    entries += [(DT_VERNEED, BASE + needed), (DT_VERNEEDNUM, len(libraries)), (DT_NULL, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    whole = at + len(dynamic)
    headers = [(PT_LOAD, 0, whole)]
    if loader:
        headers += [(PT_INTERP, interpreter, len(loader) + 1), (PT_DYNAMIC, at, len(dynamic))]
    start = b"\x7fELF\x02\x01\x01" + bytes(9)
    start += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, HEADER, 0, 0, HEADER, PROGRAM_HEADER, parts, 0, 0, 0)
    for kind, offset, length in headers:
        start += struct.pack("<IIQQQQQQ", kind, 4, offset, BASE + offset, BASE + offset, length, length, 1)
    return start + loader.encode() + b"\0" + strings.data + needs + dynamic
