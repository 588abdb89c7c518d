"""Host memory: what the operating system can still give to this process."""

from __future__ import annotations

from .base import Reading, Sample, Source

__all__ = ["HostSource"]


class HostSource(Source):
    """Available and total bytes of host RAM, as the node ``cpu``.

    On Linux free is the kernel's MemAvailable (proc(5)): memory that can be had without
    swapping, reclaimable page cache included. Elsewhere it is what psutil documents as
    ``virtual_memory().available``.

    Notes
    -----
    Limits of a container (cgroups) are not looked at.
    """

    name = "host"
    backends = ("cpu",)

    def sample(self) -> Sample:
        """Read the host's memory once."""
        import psutil

        memory = psutil.virtual_memory()
        # Two fields of one snapshot can still disagree by some pages.
        reading = Reading("cpu", min(memory.available, memory.total), memory.total, device_name="host RAM")
        return Sample((reading,), frozenset({"cpu"}))
