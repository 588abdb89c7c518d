"""What PyTorch, CuPy and RMM hold of a device: read if the process has imported them, never imported here."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from operator import index
from types import ModuleType
from typing import Any

from .base import PoolReading

__all__ = ["Framework", "imported"]


class Framework(ABC):
    """One framework. `read` is called with the device's primary context current, and only if it has one.

    So nothing here may make a device current: the CUDA runtime, told to do so, makes a context.
    """

    name: str

    def __init__(self, module: ModuleType, *, blocks: bool = False) -> None:
        self.module = module
        self.blocks = blocks  # whether to look for the largest idle block, which takes its time

    def devices(self, count: int) -> int | None:
        """How many of the process's `count` CUDA devices are its devices; None where that is not known."""
        return count

    @abstractmethod
    def read(self, device: int, total: int | None) -> PoolReading:
        """Read its pool on a device that has `total` bytes."""

    def placement(self, device: int) -> str:
        """The placement that allocates through it."""
        return f"{self.name}:{device}"


class Torch(Framework):
    """PyTorch's caching allocator.

    A request is served from one idle block, or else from free memory after all segments that are
    wholly idle have been given back. So of what is reserved and not allocated, idle blocks that share
    their segment with live ones ("inactive split", pytorch.org/docs, torch.cuda.memory_stats) cannot
    be counted on, where PyTorch says how large they are; the largest of them can, if `blocks` is set.
    To find it takes a snapshot of the whole allocator under the GIL, milliseconds for a large one.
    """

    name = "torch"

    def devices(self, count: int) -> int | None:
        """None with a build for AMD devices, whose numbers are not CUDA's; 0 with one for the CPU."""
        version = getattr(self.module, "version", None)
        if getattr(version, "hip", None):
            return None
        return count if getattr(version, "cuda", "unknown") else 0

    def read(self, device: int, total: int | None) -> PoolReading:
        """Read its statistics and its share of the device."""
        cuda = self.module.cuda
        if _maybe(cuda, "is_initialized") is False:  # then it holds nothing, and some questions would wake it
            return PoolReading(self.placement(device))
        stats = _maybe(cuda, "memory_stats", device) or {}
        reserved, allocated = stats.get("reserved_bytes.all.current"), stats.get("allocated_bytes.all.current")
        if reserved is None or allocated is None:
            reserved, allocated = cuda.memory_reserved(device), cuda.memory_allocated(device)
        idle = max(reserved - allocated - stats.get("inactive_split_bytes.all.current", 0), 0)
        fraction = _maybe(cuda, "get_per_process_memory_fraction", device)
        limit = None if fraction is None or fraction >= 1 or total is None else int(total * fraction)
        largest = _largest_idle_block(cuda.memory_snapshot(), device) if self.blocks else 0
        # The limit is on what is reserved; idle bytes are within it already.
        return PoolReading(self.placement(device), idle, limit, max(reserved - idle, 0), largest)


class CuPy(Framework):
    """CuPy's default pool, which answers for the current device.

    A request is served from one idle chunk, or else from free memory, if need be after all idle chunks
    have been given back. With a limit it is refused before that, where the limit leaves no room for it
    beside what the pool holds, used or idle.
    """

    name = "cupy"

    def read(self, device: int, total: int | None) -> PoolReading:
        """Read the default pool and its limit."""
        pool = self.module.get_default_memory_pool()
        limit = pool.get_limit() or None  # 0 is none
        idle, used = pool.free_bytes(), pool.used_bytes()
        if limit is not None:
            used = _taken(limit, used + idle, idle)
        return PoolReading(self.placement(device), idle, limit, used)


class Rmm(Framework):
    """RMM's resource for the device: a pool, if one that counts what is taken from it stands in front.

    RMM's pool serves a request from one piece that it holds, or takes all of it from the device, and
    gives nothing back: idle and free bytes do not add up.
    """

    name = "rmm"

    def read(self, device: int, total: int | None) -> PoolReading:
        """Read the statistics of the current resource and those behind it."""
        used = None  # by those in front of the pool
        pool = None  # bytes of it
        limits = []  # limit, bytes of it that are taken, and whether the pool's idle bytes are among them
        for resource in _chain(self.module.mr.get_per_device_resource(device)):
            counts = getattr(resource, "allocation_counts", None)
            taken = None
            if counts is not None:
                taken = index(counts["current_bytes"] if isinstance(counts, dict) else counts.current_bytes)
            elif hasattr(resource, "get_allocated_bytes"):
                taken = index(resource.get_allocated_bytes())
            if pool is None and used is None:
                used = taken
            if hasattr(resource, "get_allocation_limit") and taken is not None:
                limits.append((index(resource.get_allocation_limit()), taken, pool is not None))
            if pool is None and hasattr(resource, "pool_size"):
                pool = index(resource.pool_size())
        # How much of it is taken is known only if whoever counts is in front of it.
        idle = 0 if pool is None or used is None else max(pool - used, 0)
        if not limits:
            return PoolReading(self.placement(device), largest=idle)
        within = [(limit, _taken(limit, taken, idle) if holds_idle else taken) for limit, taken, holds_idle in limits]
        limit, taken = min(within, key=lambda pair: pair[0] - pair[1])  # the one that leaves the least
        return PoolReading(self.placement(device), 0, limit, taken, idle)


_KNOWN: tuple[type[Framework], ...] = (Torch, CuPy, Rmm)


def imported(*, blocks: bool = False) -> list[Framework]:
    """Those that this process has imported by now."""
    modules = [(kind, sys.modules.get(kind.name)) for kind in _KNOWN]
    return [kind(module, blocks=blocks) for kind, module in modules if module is not None and _is_loaded(module)]


def _is_loaded(module: ModuleType) -> bool:
    """Whether a module has been imported, and neither is being so by another thread nor waits to be.

    One of `importlib.util.LazyLoader` is imported by the first look at an attribute: so not by ours.
    """
    if type(module).__name__ == "_LazyModule":
        return False
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:  # whatever it is, it has nothing to import
        return True
    return not getattr(spec, "_initializing", False)


def _largest_idle_block(segments: Iterable[Any], device: int) -> int:
    return max(
        (
            int(block["size"])
            for segment in segments
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ),
        default=0,
    )


def _taken(limit: int, held: int, idle: int) -> int:
    """What of a limit on all that is held leaves no less than the idle bytes, which need nothing new."""
    return min(held, max(limit - idle, 0))


def _maybe(owner: Any, name: str, *args: Any) -> Any:
    """Call a function that not every version has; None where it is missing."""
    function = getattr(owner, name, None)
    return None if function is None else function(*args)


def _chain(resource: Any) -> Iterable[Any]:
    """A memory resource and what it takes its memory from, outermost first."""
    for _ in range(16):  # nobody stacks more
        yield resource
        behind = getattr(resource, "upstream_mr", None)
        if behind is None:
            behind = _maybe(resource, "get_upstream")
        if behind is None:
            return
        resource = behind
