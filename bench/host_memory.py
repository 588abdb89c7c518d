"""How soon a table shows what another process has taken of the host's memory, and what a sample costs.

    python bench/host_memory.py [--size 2GiB] [--cgroup FOLDER]

With `--cgroup`, the folder of a memory cgroup (version 1 or 2) in which this may make a group, the
same is shown of a process in a group with a limit. Nothing here is a ratio: compare on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import vramsel as vs
from vramsel.sources import HostSource
from vramsel.units import format_bytes, parse_bytes

INTERVAL = 0.1  # of the monitor, in seconds
LOOK = 0.005
PATIENCE = 1.0
MIB = 1 << 20

STEPS = 32

# Touches so many bytes once it is told to, says when it had each step, and keeps them until its
# input ends. Not a bytearray: that would be zeroed, and so touched, before the clock starts.
CHILD = """
import mmap, sys, time
size, steps = map(int, sys.argv[1:])
block, page, times = mmap.mmap(-1, size), bytes(size // steps), []
print("ready", flush=True)
sys.stdin.readline()
for start in range(0, len(page) * steps, len(page)):
    times.append(time.monotonic())
    block[start : start + len(page)] = page
print(*times, time.monotonic(), flush=True)
sys.stdin.readline()
"""


def watch_a_child(size: int) -> bool:
    """Print how free falls while a child takes so many bytes; False if the table never showed it."""
    command = [sys.executable, "-c", CHILD, str(size), str(STEPS)]
    with (
        vs.watch([HostSource()], interval=INTERVAL) as monitor,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
    ):
        child.stdout.readline()
        time.sleep(3 * INTERVAL)
        before = int(monitor.table.free[0])
        child.stdin.write("\n")
        child.stdin.flush()
        seen = []
        end = None  # a while after the child is done
        while end is None or time.monotonic() < end:
            time.sleep(LOOK)
            seen.append((time.monotonic(), int(monitor.table.free[0])))
            if end is None and select.select([child.stdout], [], [], 0)[0]:
                touched = [float(word) for word in child.stdout.readline().split()]
                end = touched[-1] + PATIENCE
        child.stdin.close()
    fell = before - seen[-1][1]
    print(f"  a child touched {format_bytes(size)} in {touched[-1] - touched[0]:.2f} s, ", end="")
    print(f"free fell by {format_bytes(max(fell, 0))} ({fell / size:.1%})")
    lags = []
    for step in range(1, STEPS):
        shown = next((when for when, free in seen if before - free >= size * step // STEPS), None)
        if shown is not None:
            lags.append((shown - touched[step]) * 1e3)
    if len(lags) < STEPS // 2:  # the rest of the machine is not quiet: it may have freed a few steps' worth
        print(f"  NOT SHOWN: only {len(lags)} of {STEPS - 1} steps within {PATIENCE:g} s")
        return False
    print(f"  the table showed a step {statistics.median(lags):.0f} ms after it was touched ", end="")
    print(f"(median of {len(lags)}; {min(lags):.0f} to {max(lags):.0f} ms), looked at every {LOOK * 1e3:g} ms")
    return True


def cost(samples: int = 2000) -> None:
    """Print what one sample costs."""
    source = HostSource()
    spent = []
    for _ in range(samples):
        start = time.perf_counter_ns()
        source.sample()
        spent.append((time.perf_counter_ns() - start) / 1e3)
    (reading,) = source.sample().readings
    low, middle, high = statistics.quantiles(spent, n=4)
    print(f"  one sample of {reading.source}: {middle:,.0f} us (median; {low:,.0f}-{high:,.0f})")


@contextlib.contextmanager
def group_in(folder: Path, limit: int) -> Iterator[Path]:
    """A new group with a limit, removed at the end."""
    group = folder / f"vramsel-bench-{os.getpid()}"
    group.mkdir()
    try:
        files = [group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()]
        if not files:
            raise OSError(f"groups below {folder} have neither memory.max nor memory.limit_in_bytes")
        files[0].write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def in_a_group(folder: Path | None, size: int) -> bool:
    """The same in a group whose limit is twice what the child takes, in a process of its own."""
    if folder is None:
        print("  not done: --cgroup names no memory cgroup in which to make one")
        return True
    try:
        with group_in(folder, 2 * size) as group:
            # It joins before the interpreter starts, so that all its memory is charged to the group.
            join = f'echo $$ > {json.dumps(str(group / "cgroup.procs"))} && exec "$@"'
            own = [sys.executable, __file__, "--size", str(size), "--inside"]
            return subprocess.run(["sh", "-c", join, "sh", *own], check=False).returncode == 0
    except OSError as error:
        print(f"  not done: {error}")
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=parse_bytes, default=2048 * MIB, help="what the child takes")
    parser.add_argument("--cgroup", type=Path, metavar="FOLDER", help="a memory cgroup in which to make a group")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    (reading,) = HostSource().sample().readings
    if options.inside:
        print(f"  {reading.reason}")
    else:
        print(f"{reading.free:,} bytes free of {reading.total:,} ({reading.source}); interval {INTERVAL * 1e3:g} ms")
    if reading.free < options.size + options.size // 4:
        print(f"  not done: a child cannot take {format_bytes(options.size)}")
        return 1
    good = watch_a_child(options.size)
    cost()
    if not options.inside:
        print("In a cgroup with a limit")
        sys.stdout.flush()
        good &= in_a_group(options.cgroup, options.size)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
