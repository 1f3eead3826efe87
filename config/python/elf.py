"""What a binary needs of the system that runs it, read from the binary itself: as the system's loader does, by its program headers.

Formats: ELF (System V gABI, chapters 4 and 5) and its symbol versions (LSB Core 5.0, chapter 10.7). The tags are those of PEP 600
and PEP 656.
"""
import dataclasses
import re
import struct

# e_machine, and what the loader of glibc is called there.
MACHINES = {62: ("x86_64", "ld-linux-x86-64.so.2"), 183: ("aarch64", "ld-linux-aarch64.so.1")}
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB, DT_VERNEED, DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF
# What every glibc system has, and nothing else: of the libraries that PEP 600's policies allow those that a Rust program may need.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libgcc_s.so.1"}
# The oldest of which there are wheels today; a statically linked program asks for none.
OLDEST = (2, 17)
# Names of glibc's versions that are no numbers, and the glibc that has them first.
NAMED = {"GLIBC_ABI_DT_RELR": (2, 36)}
# libgcc_s has what has this version or an older one since GCC 4.8, which came with glibc 2.17's systems.
GCC = (4, 8, 0)
# The longest name that is read, bytes.
LONGEST = 4_096


class Unknown(Exception):
    """It can't be said for which systems a binary is good."""


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a binary asks for."""

    machine: str
    # The highest version of glibc of which it uses something, as (2, 34); None for a statically linked one.
    glibc: tuple

    def tags(self):
        """The platform tags of a wheel with it."""
        major, minor = max(self.glibc or OLDEST, OLDEST)
        tags = [f"manylinux_{major}_{minor}_{self.machine}"]
        return tags if self.glibc else tags + [f"musllinux_1_1_{self.machine}"]


def read(path):
    """What the binary at `path` needs. Raises `Unknown`."""
    try:
        return needs(path.read_bytes())
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Unknown(f"{path}: cut short or broken: {error}") from error
    except Unknown as error:
        raise Unknown(f"{path}: {error}") from error


def needs(data):
    """What the binary with these bytes needs. Raises `Unknown`; also `struct.error` or `IndexError` where it is cut short."""
    # 64 bits, little-endian, version 1.
    if data[:7] != b"\x7fELF\x02\x01\x01":
        raise Unknown("no ELF file of 64 bits, little-endian")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind not in (2, 3) or machine not in MACHINES:
        raise Unknown(f"no program for {' or '.join(name for name, _ in MACHINES.values())}")
    name, loader = MACHINES[machine]
    image = Image(data)
    interpreters = [image.text(offset) for kind, offset in image.parts if kind == PT_INTERP]
    dynamic = image.dynamic()
    needed = {image.string(value) for tag, value in dynamic if tag == DT_NEEDED}
    if not interpreters and not needed:
        return Needs(name, None)
    if len(interpreters) != 1 or interpreters[0].rsplit("/", 1)[-1] != loader:
        raise Unknown(f"started by {interpreters}, not by glibc's {loader}")
    if foreign := needed - SYSTEM - {loader}:
        raise Unknown(f"needs {', '.join(sorted(foreign))}, which not every system has")
    versions = [version for version in map(asked, image.versions(dict(dynamic))) if version]
    if not versions:
        raise Unknown("says of no symbol which glibc has it")
    return Needs(name, max(versions))


def asked(version):
    """The glibc of a symbol version, as (2, 34); None where it says nothing of glibc. Raises `Unknown`."""
    if version in NAMED:
        return NAMED[version]
    if found := re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)*", version):
        return int(found[1]), int(found[2])
    found = re.fullmatch(r"GCC_(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found and tuple(int(part or 0) for part in found.groups()) <= GCC:
        return None
    raise Unknown(f"uses the symbol version {version}, of which it is not known who has it")


class Image:
    """A program's bytes as the loader sees them."""

    def __init__(self, data):
        self.data = data
        start, = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        headers = [struct.unpack_from("<IIQQQQ", data, start + size * at) for at in range(count)]
        self.parts = [(kind, offset) for kind, _, offset, _, _, _ in headers]
        # Where in the file, where in memory, how much of it.
        self.loads = [(offset, address, length) for kind, _, offset, address, _, length in headers if kind == PT_LOAD]
        self.strings = None

    def offset(self, address):
        """Where in the file is what is at `address` in memory."""
        for offset, start, length in self.loads:
            if start <= address < start + length:
                return offset + address - start
        raise Unknown(f"nothing is loaded at {address:#x}")

    def text(self, offset):
        name, end, _ = self.data[offset:offset + LONGEST].partition(b"\0")
        if not end:
            raise Unknown("a name without an end")
        return name.decode()

    def dynamic(self):
        """Tags and values of the dynamic section; none for a program without."""
        found = []
        for at in (offset for kind, offset in self.parts if kind == PT_DYNAMIC):
            while (entry := struct.unpack_from("<QQ", self.data, at))[0] != 0:
                found.append(entry)
                at += 16
        table = dict(found).get(DT_STRTAB)
        self.strings = None if table is None else self.offset(table)
        return found

    def string(self, index):
        if self.strings is None:
            raise Unknown("names without a table of names")
        return self.text(self.strings + index)

    def versions(self, dynamic):
        """The symbol versions that the program asks of its libraries. Each library's record names the next one's place."""
        if DT_VERNEED not in dynamic:
            return []
        at, found = self.offset(dynamic[DT_VERNEED]), []
        for _ in range(dynamic.get(DT_VERNEEDNUM, 0)):
            _, count, _, first, following = struct.unpack_from("<HHIII", self.data, at)
            entry = at + first
            for _ in range(count):
                _, _, _, name, step = struct.unpack_from("<IHHII", self.data, entry)
                found.append(self.string(name))
                entry += step
            at += following
        return found
