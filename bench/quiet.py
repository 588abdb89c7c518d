"""How long a decision takes at worst while another thread publishes."""

from __future__ import annotations

import sys
import threading
import time
from array import array

from measure import Case, report
from single import GIB, alternatives, tables

import vramsel as vs


def percentile(table: vs.MemoryTable, argument: vs.AlternativeSet, calls: int = 100_000) -> float:
    """The 99th percentile of a call, in nanoseconds, of so many that are timed one by one."""
    clock, select = time.perf_counter_ns, table.select
    spent = array("q", bytes(8 * calls))
    for i in range(calls):
        start = clock()
        select(argument)
        spent[i] = clock() - start
    return sorted(spent)[calls * 99 // 100]


def quiet_report(rounds: int) -> bool:
    """Compare the 99th percentiles with and without a thread that publishes 1000 times a second."""
    table, _ = tables()
    four = alternatives(4)
    stop, go = threading.Event(), threading.Event()
    published = 0

    def publish() -> None:
        nonlocal published
        due = time.perf_counter()
        while not stop.is_set():
            if not go.is_set():
                go.wait()
                due = time.perf_counter()
            table.update(f"cuda:{published % 16}", 20 * GIB, 24 * GIB)
            published += 1
            due += 0.001
            time.sleep(max(due - time.perf_counter(), 0))

    # Else a thread that sleeps gets the interpreter back only 200 times a second.
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    writer = threading.Thread(target=publish, daemon=True)
    writer.start()
    ratios, busy, took = [], [], 0.0
    for _ in range(rounds + 1):
        go.clear()
        alone = percentile(table, four)
        go.set()
        start = time.perf_counter()
        busy.append(percentile(table, four))
        took += time.perf_counter() - start
        ratios.append(busy[-1] / alone)
    stop.set()
    go.set()
    writer.join()
    sys.setswitchinterval(before)
    print(f"    {published / took:,.0f} readings a second were published meanwhile")
    case = Case("99th percentile, published to / quiet", lambda _: 0, lambda _: 0, 1, None, 1.5)
    return report(case, ratios[1:], busy[1:])
