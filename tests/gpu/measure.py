"""What the GPU tests measure: `main("contexts")` prints one line of JSON, in a process of its own.

Nothing is judged here; `test_gpu.py` does that. What a measurement needs and does not find is told as
``{"absent": "..."}``. `facts` describes the machine, by ``python measure.py``.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

MIB, GIB = 1 << 20, 1 << 30
OUT_OF_MEMORY = 2
INTEGRATED = 18

Numbers = dict[str, Any]


class AbsentError(Exception):
    """What is not there, in one line."""


def main(name: str) -> None:
    try:
        result = MEASUREMENTS[name]()
    except AbsentError as absent:
        result = {"absent": str(absent)}
    print(json.dumps(result))


# ---- the driver and NVML, asked directly -------------------------------------------------------


def value(answer: tuple[Any, ...]) -> Any:
    """What a driver function answers besides success."""
    if int(answer[0]) != 0:
        raise RuntimeError(f"the driver answers {answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


def load_driver() -> Any:
    """The bindings of the driver, not initialised."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise AbsentError(f"no libcuda: {error}") from None
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise AbsentError(f"no cuda-python: {error}") from None
    return driver


def start_driver() -> tuple[Any, int]:
    """The bindings of the driver, and how many devices it lists."""
    driver = load_driver()
    status = driver.cuInit(0)[0]
    if int(status) != 0:
        raise AbsentError(f"no device: cuInit answers {status!r}")
    count = value(driver.cuDeviceGetCount())
    if count == 0:
        raise AbsentError("no device: the driver lists none")
    return driver, count


def start_nvml() -> Any:
    try:
        from cuda.bindings import nvml

        nvml.init_v2()
    except Exception as error:
        raise AbsentError(f"no NVML: {' '.join(str(error).split())}") from None
    return nvml


def is_integrated(driver: Any, ordinal: int) -> bool:
    return bool(value(driver.cuDeviceGetAttribute(driver.CUdevice_attribute(INTEGRATED), ordinal)))


def start_discrete() -> Any:
    """The bindings of the driver, where device 0 has memory of its own."""
    driver, _ = start_driver()
    if is_integrated(driver, 0):
        raise AbsentError("no memory of its own on cuda:0: it is integrated")
    return driver


def handle_of(driver: Any, nvml: Any, ordinal: int) -> int:
    """NVML's handle of a device that CUDA lists: by its UUID."""
    ask = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    uuid = UUID(bytes=bytes(value(ask(ordinal)).bytes))
    try:
        return nvml.device_get_handle_by_uuid(f"GPU-{uuid}")
    except nvml.NvmlError:
        return nvml.device_get_handle_by_uuid(f"MIG-{uuid}")


def text(raw: object) -> str:
    return (raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)).split("\0")[0].strip()


def is_active(driver: Any, ordinal: int) -> bool:
    return bool(value(driver.cuDevicePrimaryCtxGetState(ordinal))[1])


@contextmanager
def primary_context(driver: Any, ordinal: int = 0) -> Iterator[None]:
    """The device's primary context, kept and current."""
    value((*driver.cuCtxPushCurrent(value(driver.cuDevicePrimaryCtxRetain(ordinal))), None))
    try:
        yield
    finally:
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(ordinal)


def margin_of(total: int) -> int:
    """How far from the border a size must be for an allocator to agree with the byte count."""
    return max(64 * MIB, total // 256)


# ---- what vramsel says -------------------------------------------------------------------------


def watch_cuda(**options: Any) -> Any:
    """A monitor of the CUDA devices alone, which does not run."""
    import vramsel as vs
    from vramsel.sources import CudaDriverSource

    return vs.watch([CudaDriverSource(**options)])


def verdict(monitor: Any, placement: str, size: int = 0, *, refresh: bool = True) -> Any:
    import vramsel as vs
    from vramsel.decision import explain

    if refresh:
        monitor.refresh()
    return explain(monitor.table, vs.AlternativeSet([vs.Candidate(placement, size)])).verdicts[0]


def room(monitor: Any, placement: str) -> int:
    """Bytes that a placement can have, by a new sample."""
    seen = verdict(monitor, placement)
    if seen.available is None:
        raise RuntimeError(f"{placement} is unknown: {seen.detail}; {dict(monitor.errors)}")
    return int(seen.available)


# ---- the measurements --------------------------------------------------------------------------


def facts() -> Numbers:
    """What this machine is, as far as it can be told."""

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "absent"

    found: Numbers = {}
    try:
        driver, count = start_driver()
        found["GPU"] = ", ".join(text(value(driver.cuDeviceGetName(128, ordinal))) for ordinal in range(count))
        number = value(driver.cuDriverGetVersion())
        found["CUDA driver version"] = f"{number // 1000}.{number % 1000 // 10}"
    except AbsentError as absent:
        found["GPU"] = str(absent)
    try:
        found["NVIDIA driver"] = text(start_nvml().system_get_driver_version())
    except AbsentError as absent:
        found["NVIDIA driver"] = str(absent)
    found["system"] = f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"
    found["Python"] = platform.python_version()
    packages = ("numpy", "cuda-bindings", "torch", "vramsel")
    found.update({package: version(package) for package in packages})
    # Their packages are named after the CUDA version that they are built for.
    for name in ("cupy", "rmm"):
        versions = {
            f"{dist.metadata['Name']} {dist.version}"
            for dist in importlib.metadata.distributions()
            if (dist.metadata["Name"] or "").lower().partition("-")[0] == name
        }
        found[name] = ", ".join(sorted(versions)) or "absent"
    return found


def machine() -> Numbers:
    """Whether there is a device at all."""
    _, count = start_driver()
    return {"devices": count}


def devices() -> Numbers:
    """Every device: as vramsel reads it without and with a context, beside what NVML says of that UUID."""
    from vramsel.sources import CudaDriverSource

    driver, count = start_driver()
    nvml = start_nvml()
    source = CudaDriverSource()
    found = []

    def read_all(way: str) -> None:
        for entry, reading in zip(found, source.sample().readings, strict=True):
            memory = nvml.device_get_memory_info_v2(entry["handle"])
            entry["uuid"], entry["name"] = reading.uuid, reading.device_name
            entry[way] = {
                "source": reading.source or source.name,
                "reason": reading.reason,
                "free": reading.free,
                "total": reading.total,
                "nvml_free": int(memory.free),
                "nvml_total": int(memory.total),
            }

    for ordinal in range(count):
        handle = handle_of(driver, nvml, ordinal)
        found.append(
            {
                "handle": handle,
                "integrated": is_integrated(driver, ordinal),
                "nvml_uuid": text(nvml.device_get_uuid(handle)),
                "nvml_name": text(nvml.device_get_name(handle)),
            }
        )
    read_all("without")
    for ordinal in range(count):
        value(driver.cuDevicePrimaryCtxRetain(ordinal))
    read_all("with")
    for ordinal in range(count):
        driver.cuDevicePrimaryCtxRelease(ordinal)
    source.close()
    return {"devices": found}


def contexts() -> Numbers:
    """What watching costs the devices: contexts, memory in use and processes, before, meanwhile and after."""
    import vramsel as vs

    driver, count = start_driver()
    nvml = start_nvml()
    handles = [handle_of(driver, nvml, ordinal) for ordinal in range(count)]

    def processes(handle: int) -> int | None:
        try:
            return len(nvml.device_get_compute_running_processes_v3(handle))
        except Exception:  # not in these bindings, not supported or not allowed: told as None
            return None

    def now(monitor: Any = None) -> Numbers:
        return {
            "active": [is_active(driver, ordinal) for ordinal in range(count)],
            "integrated": [is_integrated(driver, ordinal) for ordinal in range(count)],
            "used": [int(nvml.device_get_memory_info_v2(handle).used) for handle in handles],
            "processes": [processes(handle) for handle in handles],
            "sources": monitor and [verdict(monitor, f"cuda:{n}", refresh=False).source for n in range(count)],
        }

    steps = {"before": now()}
    with vs.watch(interval=0.05) as monitor:
        for _ in range(50):
            monitor.refresh()
        steps["watching"] = now(monitor)
    steps["watched"] = now()
    monitor = watch_cuda(create_context=True)
    monitor.refresh()
    steps["with create_context"] = now(monitor)
    monitor.close()
    steps["closed"] = now()
    return steps


def allocations() -> Numbers:
    """Allocations of known sizes on cuda:0, as its node's free shows them; the rule; and the border."""
    from vramsel.fit import would_fit

    driver = start_discrete()
    with primary_context(driver):
        monitor = watch_cuda()
        value((*driver.cuMemFree(value(driver.cuMemAlloc(2 * MIB))), None))  # what the first one costs besides
        free = room(monitor, "cuda:0")
        total = int(monitor.table.total[0])
        steps = []
        for size in (64 * MIB, GIB, free // 4 // (2 * MIB) * (2 * MIB)):
            if size > free * 0.6:
                continue
            for attempt in range(3):  # others may use the device too
                before = room(monitor, "cuda:0")
                block = value(driver.cuMemAlloc(size))
                during = room(monitor, "cuda:0")
                driver.cuMemFree(block)
                after = room(monitor, "cuda:0")
                step = {"size": size, "fell": before - during, "came_back": after - during, "attempt": attempt}
                if abs(step["fell"] - size) + abs(step["came_back"] - size) < 8 * MIB:
                    break
            steps.append(step)
        monitor.refresh()
        free, total = int(monitor.table.free[0]), int(monitor.table.total[0])
        # To leave 10 % of the total free, and 20 %: on either side of the 85 %.
        sizes = [1, free // 2, free - total // 10, free - total // 5, free - 1, free, free + 1, 2 * total]
        judged = [
            [size, monitor.table.would_fit("cuda:0", size).name, would_fit(size, free, total).name]
            for size in sizes
            if size >= 0
        ]
        margin = margin_of(total)
        border = {}
        for name, distance in (("below", -margin), ("above", margin)):
            size = room(monitor, "cuda:0") + distance
            status = monitor.table.would_fit("cuda:0", size).name
            code, block = driver.cuMemAlloc(size)
            if int(code) == 0:
                driver.cuMemFree(block)
            border[name] = {"size": size, "status": status, "code": int(code)}
        monitor.close()
    return {"free": free, "total": total, "steps": steps, "judged": judged, "margin": margin, "border": border}


# What the second process of `neighbour` does, step by step at its parent's word.
HOLD = """
import signal, sys
signal.alarm(60)
from measure import primary_context, start_driver, value
driver, _ = start_driver()
with primary_context(driver):
    value((*driver.cuMemFree(value(driver.cuMemAlloc(2 << 20))), None))
    print("context", flush=True)
    sys.stdin.readline()
    block = value(driver.cuMemAlloc(int(sys.argv[1])))
    print("allocated", flush=True)
    sys.stdin.readline()
    driver.cuMemFree(block)
    print("freed", flush=True)
    sys.stdin.readline()
"""


def neighbour() -> Numbers:
    """What another process allocates on cuda:0, as a monitor sees it that has no context there."""
    import vramsel as vs
    from vramsel.sources import CudaDriverSource

    driver = start_discrete()
    start_nvml()
    with vs.watch([CudaDriverSource()], interval=0.05) as monitor:
        free = room(monitor, "cuda:0")
        size = min(2 * GIB, free // 4)
        command = [sys.executable, "-c", HOLD, str(size)]
        seen: Numbers = {"size": size, "free": [free], "lag_s": []}
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert child.stdin is not None
        assert child.stdout is not None

        def wait_for(target: int) -> None:
            """Let the monitor follow by itself, for up to 3 seconds."""
            began = time.monotonic()
            while abs(int(monitor.table.free[0]) - target) > 8 * MIB and time.monotonic() < began + 3:
                time.sleep(0.002)
            seen["lag_s"].append(time.monotonic() - began)
            seen["free"].append(int(monitor.table.free[0]))

        try:
            for expected in ("context", "allocated", "freed"):
                line = child.stdout.readline().strip()
                if line != expected:
                    raise RuntimeError(f"the second process says {line!r}, not {expected!r}")
                if line == "context":
                    seen["free"].append(room(monitor, "cuda:0"))
                else:
                    wait_for(seen["free"][1] - (size if line == "allocated" else 0))
                child.stdin.write("\n")
        finally:
            child.stdin.close()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        wait_for(free)
        seen["source"] = verdict(monitor, "cuda:0").source
    seen["active"] = is_active(driver, 0)
    return seen


def median_us(call: Callable[[], object], *, times: int = 300, seconds: float = 3.0) -> float:
    taken = []
    end = time.monotonic() + seconds
    while len(taken) < times and (time.monotonic() < end or not taken):
        began = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


def costs() -> Numbers:
    """What a sample costs, how many a monitor takes, and what that does to a decision."""
    import vramsel as vs
    from vramsel.sources import CudaDriverSource, Sample, Source

    class Counted(Source):
        name = "counted"
        count = 0
        inner = CudaDriverSource()

        def sample(self) -> Sample:
            self.count += 1
            return self.inner.sample()

        def close(self) -> None:
            self.inner.close()

    driver = start_discrete()
    nvml = start_nvml()
    handle = handle_of(driver, nvml, 0)
    count = value(driver.cuDeviceGetCount())
    alternatives = vs.AlternativeSet([vs.Candidate("cuda:0", 64 * MIB), vs.Candidate("cpu", 64 * MIB)])
    seen: Numbers = {"devices": count, "interval_s": 0.05, "seconds": 2.0}

    def select_ns(table: vs.MemoryTable) -> float:
        """Of one select: the median of many rounds."""
        rounds = []
        for _ in range(60):
            began = time.perf_counter_ns()
            for _ in range(5000):
                table.select(alternatives)
            rounds.append((time.perf_counter_ns() - began) / 5000)
        return statistics.median(rounds[10:])

    def watched(way: str) -> None:
        source = Counted()
        monitor = vs.watch([source], interval=seen["interval_s"])
        seen[f"{way}_sample_us"] = median_us(source.inner.sample)
        before = select_ns(monitor.table)
        with monitor:
            source.count = 0
            time.sleep(seen["seconds"])
            seen[f"{way}_samples"] = source.count
            seen[f"{way}_select_ratio"] = select_ns(monitor.table) / before
            reading = source.inner.sample().readings[0]
            seen[f"{way}_source"] = reading.source or source.inner.name

    seen["nvmlDeviceGetMemoryInfo_us"] = median_us(lambda: nvml.device_get_memory_info_v2(handle))
    watched("nvml")
    with primary_context(driver):
        seen["cuMemGetInfo_us"] = median_us(driver.cuMemGetInfo)
        watched("driver")
    return seen


def in_child(act: Callable[[], Numbers]) -> Numbers:
    """What a forked child finds, and whether it ended by itself. It ends as those of multiprocessing do."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            try:
                found = act()
            except BaseException as error:
                found = {"raised": repr(error)}
            os.write(write, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], 25)
    found = json.loads(os.read(read, 65536) or "{}") if ready else {}
    os.close(read)
    deadline = time.monotonic() + 10
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return {**found, "ended": ended[0] == child and ended[1] == 0}


def make_recording(module: Any, called: list[str]) -> None:
    """Let every function of the bindings say that it was called, and do nothing else."""

    def stand_in(name: str) -> Callable[..., Any]:
        def call(*args: object) -> Any:
            called.append(name)
            raise RuntimeError(f"{name} in a forked child")

        return call

    for name in dir(module):
        if name[0].islower() and callable(getattr(module, name)) and not isinstance(getattr(module, name), type):
            setattr(module, name, stand_in(name))


def fork_after() -> Numbers:
    """A child of a process that uses CUDA: it decides, and asks nothing of the driver."""
    import vramsel as vs

    driver = start_discrete()
    from cuda.bindings import nvml

    wanted = vs.AlternativeSet([vs.Candidate("cuda:0", 1), vs.Candidate("cpu", 1)])
    with primary_context(driver), vs.watch(interval=0.02) as monitor:
        monitor.refresh()
        own = vs.MemoryTable({"cuda:0": (1 * GIB, 2 * GIB), "cpu": (1, 2)})

        def act() -> Numbers:
            called: list[str] = []
            make_recording(driver, called)
            make_recording(nvml, called)
            watched = monitor.table.would_fit("cuda:0", 1).name
            picks = [monitor.table.select(wanted), own.select(wanted)]
            monitor.refresh()
            return {"watched": watched, "picks": picks, "called": called, "errors": dict(monitor.errors)}

        here = monitor.table.would_fit("cuda:0", 1).name
        child = in_child(act)
        monitor.refresh()
        return {"here": here, "child": child, "here_after": monitor.table.would_fit("cuda:0", 1).name}


def fork_before() -> Numbers:
    """A child of a process that watches without initialising CUDA: it can do so itself."""
    import vramsel as vs

    load_driver()
    monitor = vs.watch(init_cuda=False)
    monitor.refresh()
    told = dict(monitor.errors)

    def act() -> Numbers:
        driver, count = start_driver()
        integrated = is_integrated(driver, 0)
        with primary_context(driver):
            own = vs.watch()
            return {"devices": count, "integrated": integrated, "status": own.table.would_fit("cuda:0", 1).name}

    return {"told": told, "nodes": list(monitor.table.nodes), "child": in_child(act)}


# ---- frameworks --------------------------------------------------------------------------------


class Framework:
    """A framework's allocator on device 0, and what vramsel says of it."""

    def __init__(self, name: str, allocate: Callable[[int], Any], empty: Callable[[], None], error: Any) -> None:
        self.placement = f"{name}:0"
        self.allocate = allocate
        self.empty = empty
        self.error = error
        self.monitor = watch_cuda()
        free = room(self.monitor, "cuda:0")
        self.total = int(self.monitor.table.total[0])
        self.margin = margin_of(self.total)
        # Larger than the margin, so that its being idle is seen.
        self.block = max(GIB, 4 * self.margin) // (2 * MIB) * (2 * MIB)
        if self.block * 4 > free:
            raise AbsentError(f"no room: {free} bytes are free on cuda:0, and {self.block * 4} needed")

    def rooms(self, **more: int) -> Numbers:
        """What the device has for others, and for this framework."""
        device = room(self.monitor, "cuda:0")
        return {"device": device, "own": int(verdict(self.monitor, self.placement, refresh=False).available), **more}

    def attempt(self, distance: int) -> Numbers:
        """Allocate that much more than there is room for, by what was said just before."""
        seen = verdict(self.monitor, self.placement)
        size = seen.available + distance
        table = self.monitor.table
        result = {
            "size": size,
            "available": seen.available,
            "total": seen.total,
            "own": table.would_fit(self.placement, size).name,
            "device": table.would_fit("cuda:0", size).name,
        }
        try:
            block = self.allocate(size)
        except self.error as error:
            return {**result, "allocated": False, "error": type(error).__name__}
        del block
        return {**result, "allocated": True}

    def border(self) -> Numbers:
        """On both sides of the border, with a block idle in the pool."""
        found = {}
        for name, distance in (("below", -self.margin), ("above", self.margin)):
            self.empty()
            block = self.allocate(self.block)
            del block
            found[name] = self.attempt(distance)
        self.empty()
        return found


def torch_pool() -> Numbers:
    """PyTorch's caching allocator."""
    driver = start_discrete()
    if importlib.util.find_spec("torch") is None:
        raise AbsentError("torch is not installed")
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        os.environ.pop(variable, None)
    import torch

    if not torch.version.cuda:
        raise AbsentError(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        raise AbsentError(f"torch {torch.__version__} sees no CUDA device")

    def allocate(size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8, device="cuda:0")

    def rooms() -> Numbers:
        stats = torch.cuda.memory_stats(0)
        names = {"reserved": "reserved_bytes", "allocated": "allocated_bytes", "split": "inactive_split_bytes"}
        return pool.rooms(**{name: stats[f"{key}.all.current"] for name, key in names.items()})

    del driver
    tensor = allocate(1)
    del tensor
    torch.cuda.empty_cache()
    pool = Framework("torch", allocate, torch.cuda.empty_cache, torch.cuda.OutOfMemoryError)
    seen: Numbers = {"version": torch.__version__, "block": pool.block, "margin": pool.margin, "start": rooms()}
    tensor = allocate(pool.block)
    seen["live"] = rooms()
    del tensor
    seen["idle"] = rooms()
    torch.cuda.empty_cache()
    seen["given back"] = rooms()
    tensor = allocate(4 * MIB)  # takes a segment of 20 MiB, whose rest cannot be given back meanwhile
    seen["split"] = rooms()
    del tensor
    torch.cuda.empty_cache()
    seen["border"] = pool.border()
    seen["fraction"] = None
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):
        torch.cuda.set_per_process_memory_fraction(0.2, 0)
        seen["fraction"] = pool.border()
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    seen["end"] = rooms()
    return seen


def cupy_pool() -> Numbers:
    """CuPy's default pool."""
    start_discrete()
    if importlib.util.find_spec("cupy") is None:
        raise AbsentError("cupy is not installed")
    os.environ.pop("CUPY_GPU_MEMORY_LIMIT", None)
    import cupy

    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise AbsentError(f"cupy {cupy.__version__} sees no CUDA device: {error}") from None
    memory = cupy.get_default_memory_pool()

    def allocate(size: int) -> Any:
        return cupy.empty(size, dtype=cupy.uint8)

    def rooms() -> Numbers:
        return pool.rooms(used=int(memory.used_bytes()), idle=int(memory.free_bytes()))

    array = allocate(1)
    del array
    memory.free_all_blocks()
    pool = Framework("cupy", allocate, memory.free_all_blocks, cupy.cuda.memory.OutOfMemoryError)
    seen: Numbers = {"version": cupy.__version__, "block": pool.block, "margin": pool.margin, "start": rooms()}
    array = allocate(pool.block)
    seen["live"] = rooms()
    del array
    seen["idle"] = rooms()
    memory.free_all_blocks()
    seen["given back"] = rooms()
    seen["border"] = pool.border()
    limit = pool.block * 2
    memory.set_limit(size=limit)
    seen["limit"] = limit
    seen["limited"] = {}
    for name, distance in (("below", -pool.margin), ("above", pool.margin)):
        seen["limited"][name] = pool.attempt(distance)
        memory.free_all_blocks()
    # Its limit is on all that it holds, and it gives nothing back to stay below: idle bytes stand in the way.
    seen["limited beside an idle block"] = pool.border()
    memory.set_limit(size=0)
    seen["end"] = rooms()
    return seen


def rmm_pool() -> Numbers:
    """A pool of RMM, with statistics in front."""
    driver = start_discrete()
    if importlib.util.find_spec("rmm") is None:
        raise AbsentError("rmm is not installed")
    import rmm

    def allocate(size: int) -> Any:
        return rmm.DeviceBuffer(size=size)

    with primary_context(driver):
        pool = Framework("rmm", allocate, lambda: None, MemoryError)
        held = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=pool.block)
        rmm.mr.set_current_device_resource(rmm.mr.StatisticsResourceAdaptor(held))
        seen: Numbers = {"version": rmm.__version__, "block": pool.block, "margin": pool.margin, "start": pool.rooms()}
        buffer = allocate(pool.block // 4)
        seen["live"] = pool.rooms()
        # The pool serves a request from one piece of its own or grows by it, and gives nothing back for that.
        seen["below"] = pool.attempt(-pool.margin)
        seen["above"] = pool.attempt(pool.margin)
        del buffer
    return seen


MEASUREMENTS: dict[str, Callable[[], Numbers]] = {
    function.__name__: function
    for function in (
        facts,
        machine,
        devices,
        contexts,
        allocations,
        neighbour,
        costs,
        fork_after,
        fork_before,
        torch_pool,
        cupy_pool,
        rmm_pool,
    )
}

if __name__ == "__main__":
    for fact, text_of_it in facts().items():
        print(f"{fact + ':':21}{text_of_it}")
