"""Where the control groups of this process lie: cgroup v1 and v2, nested, as mounted here.

Read as the kernel documents them: `/proc/self/cgroup` names the groups, `/proc/self/mountinfo`
where their trees are. What the files of a group mean is in `cpus.py` and `memory.py`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

V1, V2 = "cgroup v1", "cgroup v2"


def folders(controller: str, root: str = "/") -> Iterator[tuple[str, str]]:
    """Yield (V1 or V2, folder) of each group that bounds this process by a controller.

    From the own group to the root of its tree, since the limit of every one of them counts.
    `root` is where `proc` and the mounts are looked for. What cannot be read yields nothing.
    """
    groups = _groups(lines(join(root, "/proc/self/cgroup")))
    for line in lines(join(root, "/proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        kind, _, options = after.partition(" ")
        if kind == "cgroup2":
            version, name = V2, ""
        elif kind == "cgroup" and controller in options.split(" ")[-1].split(","):
            version, name = V1, controller
        else:
            continue
        if len(fields) < 5 or name not in groups:
            continue
        top = join(root, _unescaped(fields[4]))
        for folder in _upwards(top, _below(groups[name], _unescaped(fields[3]))):
            yield version, folder


def lines(path: str) -> list[str]:
    """The lines of a file; none when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except (OSError, ValueError):
        return []


def join(root: str, path: str) -> str:
    """An absolute path as seen below another root."""
    return root.rstrip("/") + path.rstrip("/")


def _upwards(top: str, below: str) -> Iterator[str]:
    names = [name for name in below.split("/") if name]
    for depth in range(len(names), -1, -1):
        yield "/".join([top, *names[:depth]])


def _groups(found: list[str]) -> dict[str, str]:
    """Return the path of this process in each tree, by controller; "" is cgroup v2's tree."""
    groups = {}
    for line in found:
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    return groups


def _below(path: str, mounted: str) -> str:
    """Return `path` as seen under a mount that shows only the sub-tree `mounted`.

    Inside a container the two may have nothing in common; then the mount is its own group.
    """
    if mounted == "/":
        return path
    return path.removeprefix(mounted) if f"{path}/".startswith(f"{mounted}/") else ""


def _unescaped(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
