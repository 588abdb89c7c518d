"""Which memory limits bind this process: every level of its control groups, versions 1 and 2.

Sources: proc(5) for ``/proc/self/cgroup`` and ``/proc/self/mountinfo``, cgroup_namespaces(7) for
what they show inside a namespace, and in the kernel's documentation admin-guide/cgroup-v2.rst and
admin-guide/cgroup-v1/memory.rst for the files of a level.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..errors import one_line, shown

__all__ = ["Limit", "binding_limits", "read_text", "whole_number"]

_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "inactive_file")),
    2: ("memory.max", "memory.current", ("inactive_file",)),
}
"""By version: the limit, what is used of it, and the lines of memory.stat with the inactive page cache."""

# Not there, not for us, or gone since it was listed. Anything else is raised: that this process has
# no file descriptor left (EMFILE) must not look like a machine without limits.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENODEV})

_DIGITS = 30  # that no number of bytes needs; int() refuses thousands
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory limit of one control group, in bytes.

    Parameters
    ----------
    path : str
        The group, as ``/proc/self/cgroup`` names it.
    limit : int
    usage : int or None
        What is charged to the group and all groups below; None where it cannot be read.
    inactive : int
        How much of it is page cache that was not used lately, which the kernel takes back first.
    """

    path: str
    limit: int
    usage: int | None = None
    inactive: int = 0

    @property
    def free(self) -> int:
        """What the group can still take; of an unknown usage, at most the limit."""
        if self.usage is None:
            return self.limit
        # Three files, read one after the other: their numbers need not agree.
        return max(self.limit - max(self.usage - self.inactive, 0), 0)


class _Mount(NamedTuple):
    version: int
    top: str
    """The group that the mountpoint shows: the root of the mount within its hierarchy."""
    point: str


def binding_limits(root: str, memory: int) -> tuple[list[Limit], list[str]]:
    """Read the limits that this process is under.

    Parameters
    ----------
    root : str
        The folder under which ``/proc`` and the mountpoints are looked for: ``"/"``.
    memory : int
        Bytes of memory of the machine. A limit above it can never be reached, and version 1 writes
        "no limit" as a very large number.

    Returns
    -------
    limits : list of Limit
        One for every level that has a limit, each hierarchy from the process's own group upwards.
    faults : list of str
        A line for every number that makes no sense; a limit without usage still binds.
    """
    prefix = root.rstrip("/")
    limits: list[Limit] = []
    faults: list[str] = []
    groups = _groups(read_text(f"{prefix}/proc/self/cgroup") or "")
    mounts = _mounts(read_text(f"{prefix}/proc/self/mountinfo") or "") if groups else ()
    for version, path in groups.items():
        seen: set[str] = set()  # groups that were read through another mount
        top = None
        for name, folder in _levels(version, path, mounts, prefix):
            top = name, folder
            if name in seen:
                continue
            try:
                limit = _limit(version, folder, memory)
                if limit is None:
                    continue
                seen.add(name)
                limits.append(Limit(name, limit))
                usage = _usage(version, folder)
                limits[-1] = Limit(name, limit, usage)
                limits[-1] = Limit(name, limit, usage, _inactive(version, folder))
            except ValueError as error:  # what could be read before it counts
                seen.add(name)
                faults.append(f"cgroup {one_line(name)}: {error}")
        if version == 1 and top is not None:
            limits += _hidden_limit(*top, min([memory, *(limit.limit for limit in limits)]))
    return limits, faults


def read_text(path: str) -> str | None:
    """The whole file; None where it is not there or not for this process."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            # A file of the kernel's may come in pieces of a page, whatever is asked for.
            pieces = []
            while piece := os.read(file, 1 << 16):
                pieces.append(piece)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return os.fsdecode(b"".join(pieces))


def whole_number(text: str, what: str) -> int:
    """The number that is all of `text`.

    Raises
    ------
    ValueError
        If it is none; `int` alone would take a sign, an underscore and other alphabets' digits.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS):
        raise ValueError(f"{what} is no number: {shown(digits)}")
    return int(digits)


def _groups(cgroup: str) -> dict[int, str]:
    """The process's group in the hierarchies that may limit memory, by version (proc(5), cgroups(7))."""
    groups = {}
    for line in cgroup.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if "memory" in controllers.split(","):
            groups[1] = path
        elif number == "0" and not controllers:
            groups[2] = path
    return groups


@lru_cache(maxsize=4)
def _mounts(mountinfo: str) -> tuple[_Mount, ...]:
    """Every mount in force of a hierarchy that may limit memory.

    Machines with many containers have thousands of mounts, and the text seldom differs from the last.
    """
    last: dict[str, tuple[int, str]] = {}
    for line in mountinfo.split("\n"):
        # number, parent, device, root, mountpoint, options; a blank within a field is escaped.
        fields = line.split(" ", 5)
        if len(fields) == 6:
            last[fields[4]] = (_version(fields[5]), fields[3])  # a mount hides what was mounted there before
    return tuple(_Mount(version, _plain(top), _plain(point)) for point, (version, top) in last.items() if version)


def _version(rest: str) -> int:
    """The version of a mounted hierarchy that may limit memory, from the end of its line; 0 for any other mount."""
    _, _, filesystem = rest.partition(" - ")  # any number of optional fields may precede the dash
    if not filesystem.startswith("cgroup"):
        return 0
    kind, _, rest = filesystem.partition(" ")
    options = rest.rpartition(" ")[2]
    if kind == "cgroup2":
        return 2
    return 1 if kind == "cgroup" and "memory" in options.split(",") else 0


def _plain(field: str) -> str:
    """A field of mountinfo without its escapes: blank, tab, newline and backslash are written as octal."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field) if "\\" in field else field


def _levels(version: int, path: str, mounts: Iterable[_Mount], prefix: str) -> Iterator[tuple[str, str]]:
    """The name and folder of each group that binds the process, its own first, for every mount that shows it."""
    candidates = [(mount, _below(path, mount.top)) for mount in mounts if mount.version == version]
    shown_by = [(mount, below) for mount, below in candidates if below is not None]
    if not shown_by:
        # The process is outside of its cgroup namespace, or its group is not in what was mounted. Then
        # a mountpoint is the nearest group that can be seen; one, since others may be of strangers.
        shown_by = [(mount, []) for mount, _ in candidates[:1]]
    for mount, below in shown_by:
        for depth in range(len(below), -1, -1):
            name = "/".join([mount.top.rstrip("/"), *below[:depth]]) or "/"
            folder = "/".join([prefix + mount.point.rstrip("/"), *below[:depth]])
            if version == 1 and depth < len(below) and _apart(folder):
                break
            yield name, folder


def _below(path: str, top: str) -> list[str] | None:
    """The names that lead from a mount's root down to a group; None if it is not below."""
    start = top.rstrip("/")
    if path != top and not path.startswith(f"{start}/"):
        return None
    names = [name for name in path[len(start) :].split("/") if name]
    return None if ".." in names else names


def _apart(folder: str) -> bool:
    """Whether a group of version 1 leaves its children alone: they, and all below, are charged to nobody above."""
    switch = read_text(f"{folder}/memory.use_hierarchy")
    return switch is not None and switch.strip() == "0"


def _hidden_limit(name: str, folder: str, lowest: int) -> list[Limit]:
    """The limit of a group above the highest that can be seen, if it is the lowest: version 1 tells its height only."""
    _, found, rest = (read_text(f"{folder}/memory.stat") or "").partition("hierarchical_memory_limit ")
    try:
        limit = whole_number(rest.partition("\n")[0], "hierarchical_memory_limit")
    except ValueError:  # then it tells nothing
        return []
    return [Limit(f"above {name}", limit)] if found and limit < lowest else []


def _limit(version: int, folder: str, memory: int) -> int | None:
    """A level's limit; None where it has none: version 2 gives a root no such file, nor a group without controller.

    Raises
    ------
    ValueError
        If what is written there is no number.
    """
    limit_file, _, _ = _FILES[version]
    text = read_text(f"{folder}/{limit_file}")
    if text is None or text.strip() == "max":
        return None
    limit = whole_number(text, limit_file)
    return None if limit > memory else limit


def _usage(version: int, folder: str) -> int | None:
    """What is charged to a level; None where that cannot be read.

    Raises
    ------
    ValueError
        If what is written there is no number.
    """
    _, usage_file, _ = _FILES[version]
    text = read_text(f"{folder}/{usage_file}")
    return None if text is None else whole_number(text, usage_file)


def _inactive(version: int, folder: str) -> int:
    """How much of what is charged to a level is page cache that was not used lately.

    Raises
    ------
    ValueError
        If what is written there is no number.
    """
    _, _, inactive_lines = _FILES[version]
    stat = "\n" + (read_text(f"{folder}/memory.stat") or "")
    for line in inactive_lines:
        _, found, rest = stat.partition(f"\n{line} ")
        if found:
            return whole_number(rest.partition("\n")[0], f"{line} of memory.stat")
    return 0
