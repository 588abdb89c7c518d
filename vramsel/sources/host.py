"""Host memory: what the operating system can still give to this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from ..errors import one_line
from ..units import format_bytes
from .base import Reading, Sample, Source
from .cgroups import Limit, binding_limits, read_text, whole_number

__all__ = ["HostSource"]

_CPU = frozenset({"cpu"})
_FIELDS = frozenset({"MemTotal", "MemAvailable", "MemFree", "Buffers", "Cached", "SReclaimable", "Shmem"})


class HostSource(Source):
    """Free and total bytes of host RAM, as the node ``cpu``.

    On Linux free is the kernel's MemAvailable (proc(5)): memory that can be had without swapping,
    reclaimable page cache included. Every control group (cgroup) that the process is in can lower
    it: free is at most what each level has left, total at most the lowest limit. Elsewhere both
    are what psutil documents as ``virtual_memory()``.

    Parameters
    ----------
    root : path-like, optional
        The folder under which ``/proc`` and the mountpoints of control groups are looked for.
        Another one than ``"/"`` is for a machine whose root is mounted there, and for tests.

    Notes
    -----
    All files are read anew at every sample. `Reading.source` says which numbers counted:
    ``"meminfo"``, ``"meminfo+cgroup"`` or ``"psutil"``.

    What a group has left is its limit less its usage, where page cache that was not used lately
    does not count as used, as in Kubernetes' working set; *active* page cache does. Swap is not
    counted, and ``memory.high``, above which the kernel slows a group down, is not looked at.
    Groups above those that are mounted, as in most containers, cannot be seen.
    """

    name = "host"
    backends = ("cpu",)

    def __init__(self, *, root: str | os.PathLike[str] = "/") -> None:
        self._root = os.path.abspath(os.fsdecode(root))

    def __repr__(self) -> str:
        return f"HostSource({'' if self._root == '/' else f'root={self._root!r}'})"

    def sample(self) -> Sample:
        """Read the host's memory once.

        Returns
        -------
        Sample
            The one reading; its reason names the control group that binds, and `Sample.note` what
            could not be understood.

        Raises
        ------
        OSError
            If this process has not even a file descriptor left.
        """
        if sys.platform != "linux":
            return _from_psutil(None)
        path = os.path.join(self._root, "proc", "meminfo")
        text = read_text(path)
        memory = None if text is None else _from_meminfo(text)
        if memory is None:
            fault = "cannot be read" if text is None else "has no MemTotal, or nothing that is free"
            return _from_psutil(f"{one_line(path)} {fault}: limits of control groups were not looked at")
        free, total = memory
        limits, faults = binding_limits(self._root, total)
        return _sample(_bound(free, total, limits), "; ".join(faults) or None)


def _from_meminfo(text: str) -> tuple[int, int] | None:
    """Free and total bytes of the machine; None where either is missing."""
    fields = {}
    for line in text.split("\n"):
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            with suppress(ValueError):  # no number is the same as no line
                fields[name] = whole_number(rest.removesuffix("kB"), name) * 1024
            if "MemTotal" in fields and "MemAvailable" in fields:
                break  # the rest, some fifty lines, is of no use then
    total, free = fields.get("MemTotal", 0), fields.get("MemAvailable")
    if free is None and "MemFree" in fields:
        # Kernels before 3.14. Cached holds shared memory as well, which only swap could free.
        cache = fields.get("Cached", 0) + fields.get("SReclaimable", 0) - fields.get("Shmem", 0)
        free = fields["MemFree"] + fields.get("Buffers", 0) + max(cache, 0)
    return None if free is None or not total else (min(free, total), total)


def _from_psutil(note: str | None) -> Sample:
    import psutil

    memory = psutil.virtual_memory()
    # Two fields of one snapshot can still disagree by some pages.
    free, total = min(memory.available, memory.total), memory.total
    return _sample(Reading("cpu", free, total, device_name="host RAM", source="psutil"), note)


def _bound(free: int, total: int, limits: list[Limit]) -> Reading:
    """The machine's numbers, lowered to what every level leaves."""
    reasons = []
    lowest = min(limits, key=lambda level: level.limit, default=None)
    if lowest is not None and lowest.limit < total:
        total = lowest.limit
        reasons.append(f"limited to {format_bytes(total)} by cgroup {one_line(lowest.path)}")
    fullest = min(limits, key=lambda level: (level.free, level.limit), default=None)
    if fullest is not None and fullest.free < free:
        free = fullest.free
        if fullest is not lowest or not reasons:  # else it has been named
            left = f"has left of {format_bytes(fullest.limit)}"
            reasons.append(f"free is what cgroup {one_line(fullest.path)} {left}")
    total = max(total, 1)  # of 0, free 0 would be no signal; it is a full memory
    source = "meminfo+cgroup" if reasons else "meminfo"
    reason = "; ".join(reasons) or None
    return Reading("cpu", min(free, total), total, device_name="host RAM", source=source, reason=reason)


def _sample(reading: Reading, note: str | None) -> Sample:
    return Sample((reading,), _CPU, note)
