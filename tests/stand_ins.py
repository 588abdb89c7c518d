"""What scripts against the stub drivers begin with, and modules that stand in for PyTorch, CuPy and RMM.

The stand-ins have the functions that the frameworks document (torch.cuda.memory_stats and its kin,
cupy.get_default_memory_pool, rmm.mr.get_per_device_resource), over numbers that a test sets.
"""

from __future__ import annotations

__all__ = ["BEGIN", "CUPY", "FRAMEWORKS", "RMM", "TORCH"]

# Bytes are GiB in what the helpers take and give, where a test says nothing else.
BEGIN = """\
import dataclasses, json, os, sys, tempfile, threading, time, warnings
import vramsel as vs
from vramsel.decision import explain
from vramsel.sources import CudaDriverSource, FixedSource, HostSource, NvmlSource, Reading, Sample, Source
GIB = 1 << 30
ONES = 2**64 - 1

def in_gib(nbytes):
    return nbytes if nbytes is None else nbytes / GIB

def card(device, free, total, *, active=False):
    "A device of the stub driver."
    stub.stub_memory(device, int(free * GIB), int(total * GIB))
    if active:
        stub.stub_activate(device)

def gpu(device, free, total, *, reserved=0):
    "A device of the stub NVML, with numbers that add up."
    free, total, reserved = (int(number * GIB) for number in (free, total, reserved))
    nv.nv_memory(device, total, reserved, free, total - free - reserved)

def host(free, total):
    "A host source with this MemAvailable and MemTotal."
    root = tempfile.mkdtemp(dir=os.getcwd())
    os.mkdir(os.path.join(root, "proc"))
    with open(os.path.join(root, "proc", "meminfo"), "w") as file:
        file.write(f"MemTotal: {total * GIB // 1024} kB\\nMemAvailable: {free * GIB // 1024} kB\\n")
    return HostSource(root=root)

def numbers(table):
    "Free and total by node; None where free is not known."
    rows = zip(table.nodes, table.free.tolist(), table.total.tolist(), table.known.tolist())
    return {node: [in_gib(free), in_gib(total)] if known else None for node, free, total, known in rows}

def verdict(table, placement, size=0):
    (it,) = explain(table, vs.AlternativeSet([vs.Candidate(placement, int(size * GIB))])).verdicts
    return {
        "node": it.node,
        "status": it.status.name,
        "reason": it.reason.value,
        "available": in_gib(it.available),
        "total": in_gib(it.total),
        "source": it.source,
        "detail": it.detail,
    }

def status(table, placement, size=1.0):
    return table.would_fit(placement, int(size * GIB)).name

def contexts(devices):
    "What would be wrong if it changed: contexts created, cuCtxCreate calls, references, the stack's depth."
    return [
        stub.stub_contexts_created(),
        stub.stub_calls(b"cuCtxCreate"),
        [stub.stub_references(device) for device in range(devices)],
        stub.stub_depth(),
    ]

def until(true, what="it to happen"):
    "Wait for something that is to happen; the limit is only there to end a script that hangs."
    deadline = time.monotonic() + 20
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited too long for {what}")
        time.sleep(0.002)

def afresh():
    stub.stub_reset()
    nv.nv_reset()
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
"""

TORCH = '''\
"""Stands in for PyTorch. `pools` has what each device's allocator holds, in bytes."""

import types

version = types.SimpleNamespace(cuda="12.9", hip=None)
pools = {}
calls = []  # the functions that were called, in order
before_stats = []  # functions to call, one each time before the statistics are read


def pool(device, *, reserved=0, allocated=0, split=0, fraction=1.0, segments=()):
    pools[device] = types.SimpleNamespace(
        reserved=reserved, allocated=allocated, split=split, fraction=fraction, segments=list(segments)
    )


class cuda:
    initialised = True
    lazily = 0  # how often somebody asked for what initialises CUDA

    @staticmethod
    def is_initialized():
        return cuda.initialised

    @staticmethod
    def _lazy_init():
        if not cuda.initialised:
            cuda.lazily += 1
            cuda.initialised = True

    @staticmethod
    def memory_stats(device=None):
        calls.append("memory_stats")
        if before_stats:
            before_stats.pop(0)()
        if not cuda.initialised:
            return {}
        held = pools.get(device, types.SimpleNamespace(reserved=0, allocated=0, split=0))
        return {
            "reserved_bytes.all.current": held.reserved,
            "allocated_bytes.all.current": held.allocated,
            "inactive_split_bytes.all.current": held.split,
        }

    @staticmethod
    def memory_reserved(device=None):
        return cuda.memory_stats(device).get("reserved_bytes.all.current", 0)

    @staticmethod
    def memory_allocated(device=None):
        return cuda.memory_stats(device).get("allocated_bytes.all.current", 0)

    @staticmethod
    def get_per_process_memory_fraction(device=None):
        calls.append("get_per_process_memory_fraction")
        cuda._lazy_init()
        return pools[device].fraction if device in pools else 1.0

    @staticmethod
    def memory_snapshot(mempool_id=None):
        calls.append("memory_snapshot")
        return [segment for held in pools.values() for segment in held.segments]
'''

CUPY = '''\
"""Stands in for CuPy. Its pool answers for the current device, which the driver knows."""

import ctypes

_driver = ctypes.CDLL("libcuda.so.1")
pools = {}  # by device: bytes free, used, and the limit, 0 for none


def pool(device, *, free=0, used=0, limit=0):
    pools[device] = {"free": free, "used": used, "limit": limit}


class MemoryPool:
    def _here(self):
        device = ctypes.c_int()
        if _driver.cuCtxGetDevice(ctypes.byref(device)):
            raise RuntimeError("no device is current")
        return pools.get(device.value, {"free": 0, "used": 0, "limit": 0})

    def free_bytes(self):
        return self._here()["free"]

    def used_bytes(self):
        return self._here()["used"]

    def total_bytes(self):
        return self.free_bytes() + self.used_bytes()

    def get_limit(self):
        return self._here()["limit"]


_pool = MemoryPool()


def get_default_memory_pool():
    return _pool
'''

RMM = '''\
"""Stands in for RMM: memory resources, one in front of the other."""

import dataclasses


class CudaMemoryResource:
    pass


class PoolMemoryResource:
    def __init__(self, upstream, size):
        self.upstream_mr = upstream
        self._size = size

    def pool_size(self):
        return self._size


@dataclasses.dataclass
class Statistics:
    current_bytes: int
    current_count: int = 0
    peak_bytes: int = 0


class StatisticsResourceAdaptor:
    def __init__(self, upstream, used):
        self.upstream_mr = upstream
        self.used = used

    @property
    def allocation_counts(self):
        return Statistics(self.used)


class OldStatisticsResourceAdaptor(StatisticsResourceAdaptor):
    @property
    def allocation_counts(self):
        return {"current_bytes": self.used, "current_count": 0}


class LimitingResourceAdaptor:
    def __init__(self, upstream, used, limit):
        self.upstream_mr = upstream
        self.used, self.limit = used, limit

    def get_allocated_bytes(self):
        return self.used

    def get_allocation_limit(self):
        return self.limit


class mr:
    resources = {}

    @staticmethod
    def get_per_device_resource(device):
        return mr.resources.setdefault(device, CudaMemoryResource())
'''

FRAMEWORKS = {"torch.py": TORCH, "cupy.py": CUPY, "rmm.py": RMM}
