"""Releases of packages, as the index of pip's configuration has them: their files, read in place.

Everything goes through pip, so that its configuration counts (mirrors, keys, certificates, proxies) and no host is named here. A
wheel of half a gigabyte is not fetched: pip's reader for wheels over HTTP asks for the ranges that are wanted. Where the index or
this pip can't do that, the whole file is fetched. What was read stays below a folder, so that a second look costs nothing.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# Bytes that are asked for at once; a source file and its neighbours.
CHUNK_BYTES = 256 << 10
# The longest that pip may take for a whole file, in seconds.
DOWNLOAD_SECONDS = 1800
# Machines for which a release is looked up, if it has nothing for this one.
PYTHONS = ((3, 11), (3, 12), (3, 10))
MACHINES = ("x86_64", "aarch64")
LIBRARIES = (17, 24, 28, 31, 34, 35, 39)


class Unreadable(Exception):
    """A release that can't be read, and why."""


class NoIndex(Unreadable):
    """Nothing is known of a package at all: most likely no index can be reached."""


def version_key(version):
    """Orders versions as far as the packages here write them: numbers, then rc before final before post."""
    numbers = [int(n) for n in re.match(r"[\d.]+", version)[0].strip(".").split(".")]
    numbers += [0] * (6 - len(numbers))
    post = re.search(r"post(\d+)", version)
    pre = re.search(r"(a|b|rc|dev)(\d+)", version)
    return numbers, -1 if pre else 0, int(pre[2]) if pre else 0, int(post[1]) if post else -1


def is_final(version):
    return not re.search(r"\d(a|b|rc)\d|dev", version)


class Pip:
    """A session of pip with its configuration, and what it finds on the index."""

    def __init__(self):
        from pip._internal.commands import create_command

        self.command = create_command("download")
        self.options, _ = self.command.parse_args(["--quiet", "--no-deps", "pip"])
        self.context = self.command.main_context()

    def __enter__(self):
        self.context.__enter__()
        self.session = self.command.get_default_session(self.options)
        return self

    def __exit__(self, *ends):
        return self.context.__exit__(*ends)

    def _finders(self):
        from pip._internal.models.target_python import TargetPython

        yield self.command._build_package_finder(self.options, self.session)
        for machine in MACHINES:
            platforms = [f"manylinux_2_{library}_{machine}" for library in LIBRARIES] + [f"linux_{machine}"]
            for python in PYTHONS:
                target = TargetPython(platforms=platforms, py_version_info=python)
                yield self.command._build_package_finder(self.options, self.session, target_python=target)

    def candidates(self, package):
        """Links of a package by version, wheels before sources; those for this machine first."""
        found = {}
        for finder in self._finders():
            for candidate in finder.find_all_candidates(package):
                links = found.setdefault(str(candidate.version), [])
                if candidate.link.url not in [link.url for link in links]:
                    links.append(candidate.link)
        return {version: sorted(links, key=lambda link: not link.is_wheel) for version, links in found.items()}

    def lazy_zip(self, url):
        from pip._internal.network.lazy_wheel import LazyZipOverHTTP

        return zipfile.ZipFile(LazyZipOverHTTP(url, self.session, CHUNK_BYTES))

    def whole(self, link):
        answer = self.session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"})
        answer.raise_for_status()
        body = answer.content
        if link.hash and hashlib.new(link.hash_name, body).hexdigest() != link.hash:
            raise Unreadable(f"{link.filename} is not what the index says it is")
        return body


class Release:
    """The files of one release, by their paths in the package."""

    def __init__(self, package, version, folder):
        self.package, self.version, self.folder = package, version, folder
        self.archive = None
        listing = folder / "members.json"
        self.members = json.loads(listing.read_text()) if listing.is_file() else None

    def __str__(self):
        return f"{self.package} {self.version}"

    def open(self, archive):
        self.archive = archive
        if self.members is None:
            # A name that leads out of the folder is none of ours to write.
            self.members = sorted(name for name in archive.names() if not Path(name).is_absolute() and ".." not in Path(name).parts)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "members.json").write_text(json.dumps(self.members))

    def read(self, member):
        """The bytes of a file; None if the release has none of this name."""
        if member not in self.members:
            return None
        kept = self.folder / "files" / member
        if not kept.is_file():
            if self.archive is None:
                self.reopen()
            kept.parent.mkdir(parents=True, exist_ok=True)
            try:
                body = self.archive.read(member)
            except (OSError, zipfile.BadZipFile) as why:
                raise Unreadable(f"{self}: {member}: {why}") from why
            partial = kept.with_name(kept.name + ".part")
            partial.write_bytes(body)
            partial.rename(kept)
        return kept.read_bytes()

    def reopen(self):
        raise Unreadable(f"{self}: the index was not asked for it")


class Zip:
    def __init__(self, file):
        self.zip = file

    def names(self):
        return [name for name in self.zip.namelist() if not name.endswith("/")]

    def read(self, name):
        return self.zip.read(name)


class Tar:
    """A source distribution, without the folder that everything in it is in."""

    def __init__(self, body):
        self.tar = tarfile.open(fileobj=io.BytesIO(body))
        self.files = {entry.name.split("/", 1)[-1]: entry for entry in self.tar.getmembers() if entry.isfile()}

    def names(self):
        return list(self.files)

    def read(self, name):
        return self.tar.extractfile(self.files[name]).read()


class Index:
    """Releases of packages; keeps what it reads below a folder."""

    def __init__(self, cache):
        self.cache = Path(cache)
        self.pip, self.known, self.releases = None, {}, {}

    def __enter__(self):
        try:
            self.pip = Pip().__enter__()
        except (ImportError, AttributeError, TypeError) as why:
            print(f"this pip can't be asked for parts of files ({why}): whole files are fetched", file=sys.stderr)
        return self

    def __exit__(self, *ends):
        return self.pip.__exit__(*ends) if self.pip else None

    def candidates(self, package):
        if package not in self.known:
            try:
                self.known[package] = self.pip.candidates(package)
            except Exception as why:  # pip's own errors are many, and none is ours
                raise NoIndex(f"{package}: pip finds no releases: {why}") from why
            if not self.known[package]:
                raise NoIndex(f"{package}: the index has no release that can be read")
        return self.known[package]

    def newest(self, package):
        """The highest final version that the index has."""
        if self.pip is None:
            return self._downloaded(package, None).version
        versions = [version for version in self.candidates(package) if is_final(version)]
        if not versions:
            raise Unreadable(f"{package}: the index has no final release")
        return max(versions, key=version_key)

    def release(self, package, version):
        """A release whose files can be read."""
        if (package, version) not in self.releases:
            release = Release(package, version, self.cache / f"{package}-{version}")
            release.reopen = lambda: self._open(release)
            if release.members is None:
                self._open(release)
            self.releases[package, version] = release
        return self.releases[package, version]

    def _open(self, release):
        if self.pip is None:
            release.open(self._downloaded(release.package, release.version).archive)
            return
        links = self.candidates(release.package).get(release.version)
        if not links:
            raise Unreadable(f"{release}: the index has no such release for any machine that was tried")
        try:
            release.open(self._archive(links[0]))
        except Unreadable:
            raise
        except Exception as why:
            raise Unreadable(f"{release}: {links[0].filename}: {why}") from why

    def _archive(self, link):
        if not link.is_wheel:
            body = self.pip.whole(link)
            return Tar(body) if ".tar." in link.filename else Zip(zipfile.ZipFile(io.BytesIO(body)))
        try:
            return Zip(self.pip.lazy_zip(link.url_without_fragment))
        except Exception as why:
            print(f"{link.filename}: can't be read in parts ({why or type(why).__name__}): fetched as a whole", file=sys.stderr)
            return Zip(zipfile.ZipFile(io.BytesIO(self.pip.whole(link))))

    def _downloaded(self, package, version):
        """What `pip download` brings, by the program alone."""
        folder = self.cache / "whole"
        folder.mkdir(parents=True, exist_ok=True)
        wanted = f"{package}=={version}" if version else package
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        ended = subprocess.run(
            [*command, "--dest", str(folder), wanted], capture_output=True, text=True, timeout=DOWNLOAD_SECONDS
        )
        name = re.sub(r"[-_.]+", "_", package)
        files = sorted(folder.glob(f"{name}-{version or '*'}-*.whl"), key=lambda file: version_key(file.name.split("-")[1]))
        if ended.returncode or not files:
            raise Unreadable(f"{wanted}: pip download: {ended.stderr.strip()[-300:]}")
        release = Release(package, files[-1].name.split("-")[1], self.cache / files[-1].stem)
        release.archive = Zip(zipfile.ZipFile(files[-1]))
        return release
