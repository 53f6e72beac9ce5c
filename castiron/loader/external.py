"""External data: the bytes of big weights in files beside the model, mapped and never copied.

A location is a path below the model's folder. It is opened component by component without
following a link, must be a regular file with one name, and offset and length must lie inside
it; so a model cannot reach a file outside its folder.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import stat


class ExternalError(ValueError):
    """The location, offset or length of external data is refused; the text says why."""


class ExternalFolder:
    """The files below one folder, each mapped at most once."""

    def __init__(self, folder: pathlib.Path | None) -> None:
        self._folder = folder
        self._maps: dict[str, memoryview] = {}

    def read(self, location: str, offset: int, length: int) -> memoryview:
        """``length`` bytes of the file from ``offset`` on, as a read-only view of the mapping."""
        if location not in self._maps:
            self._maps[location] = self._map(location)
        view = self._maps[location]
        if offset < 0 or length < 0 or offset + length > len(view):
            raise ExternalError(
                f"external data {location!r} has {len(view)} bytes, "
                f"the model asks for {length} from offset {offset}"
            )
        return view[offset : offset + length]

    def _map(self, location: str) -> memoryview:
        if self._folder is None:
            raise ExternalError(
                f"external data {location!r} cannot be found for a model given as bytes; "
                "load the model by its path"
            )
        fd = _open_below(self._folder, location)
        try:
            status = os.fstat(fd)
            _check_plain(status, location)
            if not status.st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(fd)


def _parts(location: str) -> list[str]:
    pure = pathlib.PurePosixPath(location)
    parts = [part for part in pure.parts if part != "."]
    if pure.is_absolute() or not parts or ".." in parts or "\0" in location or "\\" in location:
        raise ExternalError(
            f"external data location {location!r} must be a plain path below the model's folder"
        )
    return parts


def _open_below(folder: pathlib.Path, location: str) -> int:
    """A descriptor of the file, no component of which is a link."""
    parts = _parts(location)
    with contextlib.ExitStack() as stack:
        try:
            here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, here)
            for part in parts[:-1]:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                here = os.open(part, flags, dir_fd=here)
                stack.callback(os.close, here)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            return os.open(parts[-1], flags, dir_fd=here)
        except OSError as error:
            raise ExternalError(
                f"external data {location!r} cannot be opened in {str(folder)!r} "
                f"({error.strerror}); links are not followed"
            ) from error


def _check_plain(status: os.stat_result, location: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ExternalError(f"external data {location!r} is not a regular file")
    if status.st_nlink != 1:
        raise ExternalError(
            f"external data {location!r} has {status.st_nlink} names (hard links); "
            "copy it, so that it belongs to the model alone"
        )
