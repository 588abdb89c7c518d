"""Sources under faults, on stub drivers: is a wrong number ever published, is a decision ever held up?

    python bench/faults.py [--refreshes 10000] [--stalls 5] [--rounds 9] [--json]

Builds the stub CUDA driver and NVML of ``tests/stubs`` and runs the real cuda-python against them.
Three devices, two with a context (read through the driver) and one without (through NVML), go
through random faults, while threads decide and look at every number. Then decisions are timed while
the driver stalls and while it does not. The exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import vramsel as vs

STUBS = Path(__file__).resolve().parent.parent / "tests" / "stubs"
LIBRARIES = {"libcuda.so.1": "libcuda_stub.c", "libnvidia-ml.so.1": "libnvml_stub.c"}
INSIDE = "VRAMSEL_STUBS"  # set in the process that finds the stubs
GIB = 1 << 30
TOTAL = 16 * GIB
ONES = 2**64 - 1
DRIVER, NVML = (0, 1), (2,)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refreshes", type=int, default=10_000)
    parser.add_argument("--stalls", type=int, default=5, help="how many of a second")
    parser.add_argument("--rounds", type=int, default=9, help="how often decisions are timed during a stall; 0: not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        return run_inside()
    figures = fault_run(options.refreshes, options.stalls, random.Random(options.seed))
    if options.rounds:
        figures |= stall_run(options.rounds)
    if options.json:
        print(json.dumps(figures))
    else:
        width = max(map(len, figures))
        for what, figure in figures.items():
            print(f"{what:<{width}}  {figure}")
    return int(any(figures[what] for what in figures if what.startswith("wrong:")))


def run_inside() -> int:
    """Run this script once more, where the loader finds the stubs: it reads its path when a process starts."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("faults.py needs a C compiler named cc")
    with tempfile.TemporaryDirectory() as folder:
        for name, source in LIBRARIES.items():
            flags = ["-std=c11", "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{name}"]
            subprocess.run([compiler, *flags, "-o", f"{folder}/{name}", str(STUBS / source)], check=True)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
        environment = {**os.environ, "LD_LIBRARY_PATH": path, INSIDE: folder}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


def load_stubs() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The controls of both, with argument types: ctypes would cut sizes down to an int."""
    cuda, nvml = (ctypes.CDLL(name) for name in LIBRARIES)
    cuda.stub_memory.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
    cuda.stub_total_mem.argtypes = [ctypes.c_int, ctypes.c_size_t]
    nvml.nv_memory.argtypes = [ctypes.c_int, *4 * [ctypes.c_uint64]]
    return cuda, nvml


class Machine:
    """The stub devices, each with a state that a table must show, or must not."""

    KINDS = ("well", "lost", "refused", "unknown code", "no permission", "not supported", "absurd")

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cuda, self.nvml = load_stubs()
        self.cuda.stub_devices(3)
        self.nvml.nv_devices(3)
        for device in DRIVER:
            self.cuda.stub_activate(device)
        for device in range(3):
            self.cuda.stub_total_mem(device, TOTAL)
        self.given: list[set[int]] = [{TOTAL} for _ in range(3)]  # every free that a device has ever had
        self.free = 3 * [TOTAL]
        self.kind = 3 * ["well"]
        self.times = dict.fromkeys(self.KINDS, 0)

    def change(self, device: int) -> None:
        """Give a device another state."""
        kind = self.rng.choices(self.KINDS, [12, 1, 1, 1, 1, 1, 2])[0]
        # The last bits say whose it is: a number of another device would show.
        free = self.rng.randrange(TOTAL >> 12) << 12 | device + 1
        self.kind[device], self.free[device] = kind, free
        self.given[device].add(free)
        self.times[kind] += 1
        (self._change_driver if device in DRIVER else self._change_nvml)(device, kind, free)

    def _change_driver(self, device: int, kind: str, free: int) -> None:
        codes = {"lost": 719, "refused": 999, "unknown code": 4711, "no permission": 800, "not supported": 801}
        self.cuda.stub_fault(b"cuMemGetInfo", device, codes.get(kind, 0))
        absurd = self.rng.choice(
            [(ONES, TOTAL), (ONES, ONES), (0, 0), (TOTAL * 2, TOTAL), (free, TOTAL // 3), (free, 0)]
        )
        self.cuda.stub_memory(device, *(absurd if kind == "absurd" else (free, TOTAL)))

    def _change_nvml(self, device: int, kind: str, free: int) -> None:
        codes = {"lost": 15, "refused": 999, "unknown code": 4711, "no permission": 4, "not supported": 3}
        self.nvml.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", device, codes.get(kind, 0))
        absurd = self.rng.choice(
            [
                (ONES, ONES, ONES, ONES),
                (TOTAL, 0, free, ONES - 5),
                (TOTAL, ONES, free, 0),
                (0, 0, 0, 0),
                (TOTAL, 0, 3 * TOTAL, 0),
                (4 * TOTAL, 0, free, 0),
            ]
        )
        self.nvml.nv_memory(device, *(absurd if kind == "absurd" else (TOTAL, 0, free, TOTAL - free)))

    def stall(self, device: int, seconds: float) -> None:
        """Let a device's next question take its time."""
        microseconds = int(seconds * 1e6)
        if device in DRIVER:
            self.cuda.stub_delay_once(b"cuMemGetInfo", device, microseconds, 1)
        else:
            self.nvml.nv_delay_once(b"nvmlDeviceGetMemoryInfo_v2", device, microseconds, 1)


class Watchers:
    """Threads that decide, and that look at every number, for as long as it goes on."""

    def __init__(self, monitor: vs.Monitor, machine: Machine) -> None:
        self.table = monitor.table
        self.machine = machine
        self.index = [monitor.table.nodes.index(f"cuda:{device}") for device in range(3)]
        self.ends = threading.Event()
        self.picks = self.looks = 0
        self.longest = 0.0
        self.foreign: list[str] = []
        self.threads = [threading.Thread(target=work) for work in (self._decide, self._look)]

    def __enter__(self) -> Watchers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.ends.set()
        for thread in self.threads:
            thread.join()

    def _decide(self) -> None:
        wanted = vs.AlternativeSet([vs.Candidate(f"cuda:{device}", GIB) for device in range(3)])
        select = self.table.select
        while not self.ends.is_set():
            began = time.perf_counter()
            for _ in range(50):
                select(wanted)
            self.longest = max(self.longest, time.perf_counter() - began)
            self.picks += 50
            time.sleep(0.0001)  # let the others have the GIL, or a refresh takes six times 5 ms

    def _look(self) -> None:
        while not self.ends.wait(0.0005):
            with self.table._book.lock:
                free, total, known = self.table.free, self.table.total, self.table.known
            for device, index in enumerate(self.index):
                self.looks += 1
                if known[index] and (int(free[index]) not in self.machine.given[device] or total[index] != TOTAL):
                    self.foreign.append(f"cuda:{device} {free[index]} of {total[index]}")


def fault_run(refreshes: int, stalls: int, rng: random.Random) -> dict[str, object]:
    machine = Machine(rng)
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    wrong: list[str] = []
    seconds_at = {refreshes * (i + 1) // (stalls + 1) for i in range(stalls)}
    short = picks_in_stalls = 0
    began = time.perf_counter()
    monitor = vs.watch(interval=60.0, max_age=120.0)
    calls = machine.cuda.stub_calls(b"cuMemGetInfo"), machine.nvml.nv_calls(b"nvmlDeviceGetMemoryInfo_v2")
    descriptors_within = []
    with monitor, Watchers(monitor, machine) as watchers:
        for number in range(refreshes):
            for device in range(3):
                if rng.random() < 0.5:
                    machine.change(device)
                if rng.random() < 0.01:
                    machine.stall(device, 0.005)
                    short += 1
            if number in seconds_at:
                machine.stall(rng.randrange(3), 1.0)
                picks_in_stalls -= watchers.picks
            monitor.refresh()
            if number in seconds_at:
                picks_in_stalls += watchers.picks
            wrong += compare(monitor, machine, watchers.index)
            if number in (refreshes // 10, refreshes - 1):
                descriptors_within.append(len(os.listdir("/proc/self/fd")))
    took = time.perf_counter() - began
    cuda, nvml = machine.cuda, machine.nvml
    asked = cuda.stub_calls(b"cuMemGetInfo") - calls[0], nvml.nv_calls(b"nvmlDeviceGetMemoryInfo_v2") - calls[1]
    return {
        "refreshes": refreshes,
        "seconds": round(took, 1),
        "states": ", ".join(f"{kind} {times}" for kind, times in machine.times.items()),
        "stalls of 5 ms and of 1 s": f"{short}, {stalls}",
        "numbers looked at while they changed": watchers.looks,
        "decisions meanwhile": watchers.picks,
        "decisions during the stalls of 1 s": picks_in_stalls,
        "longest 50 decisions and one clock, ms": round(watchers.longest * 1e3, 1),
        "questions to the driver, to NVML": f"{asked[0]}, {asked[1]}",
        "contexts made, NVML initialisations": f"{cuda.stub_contexts_created()}, {nvml.nv_inits()}",
        "wrong: numbers that are no device's own": len(watchers.foreign),
        "wrong: nodes that differ after a refresh": len(wrong),
        "wrong: no decision during a stall": int(bool(stalls) and picks_in_stalls <= 0),
        "wrong: threads left": threading.active_count() - threads,
        "wrong: descriptors more than before": max(descriptors_within[-1] - descriptors_within[0], 0)
        + int(len(os.listdir("/proc/self/fd")) > descriptors + 4),  # the two libraries, and what they open once
        "wrong: references to contexts, to NVML left": sum(cuda.stub_references(d) for d in range(3))
        - len(DRIVER)
        + nvml.nv_references(),
        "first that is wrong": "; ".join([*watchers.foreign[:2], *wrong[:2]]) or None,
    }


def compare(monitor: vs.Monitor, machine: Machine, indices: list[int]) -> list[str]:
    """What the table says of each device, against the state that it has had since before the refresh."""
    table = monitor.table
    free, _, _, known, lost = table._columns()
    wrong = []
    for device, index in enumerate(indices):
        kind = machine.kind[device]
        seen = "lost" if lost[index] else "number" if known[index] else "unknown"
        # What was lost stays so until there is a number.
        allowed = {"well": ("number",), "lost": ("lost",)}.get(kind, ("unknown", "lost"))
        if seen not in allowed or (seen == "number" and free[index] != machine.free[device]):
            wrong.append(f"cuda:{device} is {kind} with {machine.free[device]} free: {seen} {free[index]}")
    return wrong


def stall_run(rounds: int) -> dict[str, object]:
    """The cost of a decision while the driver does not answer, and while it does."""
    cuda, nvml = load_stubs()
    cuda.stub_reset()
    nvml.nv_reset()
    cuda.stub_devices(2)
    nvml.nv_devices(2)
    cuda.stub_activate(0)
    cuda.stub_activate(1)
    wanted = vs.AlternativeSet([vs.Candidate("cuda:0", GIB), vs.Candidate("cuda:1", GIB), vs.Candidate("cpu", GIB)])
    ratios, within = [], 0
    with vs.watch(interval=0.1, max_age=2.0) as monitor:
        select = monitor.table.select

        def cost() -> float:
            began = time.perf_counter()
            for _ in range(20_000):
                select(wanted)
            return (time.perf_counter() - began) / 20_000

        cost()
        for _ in range(rounds):
            before = [cost() for _ in range(15)]
            calls = cuda.stub_calls(b"cuMemGetInfo")
            cuda.stub_delay_once(b"cuMemGetInfo", 0, 1_000_000, 1)
            feed = next(feed for feed in monitor._feeds if "cuda:0" in feed.label)
            while cuda.stub_calls(b"cuMemGetInfo") < calls + 2:
                time.sleep(0.001)
            while feed.began is None or time.monotonic() - feed.began < 0.02:  # it is in it by now
                time.sleep(0.001)
            during = [cost() for _ in range(15)]
            within += feed.began is not None
            ratios.append(median(during) / median(before))
            while feed.began is not None:
                time.sleep(0.001)
    return {
        "a decision during a stall of 1 s / without": round(median(ratios), 3),
        "stalls that lasted as long as they were measured": f"{within} of {rounds}",
    }


if __name__ == "__main__":
    sys.exit(main())
