"""A case and its floor, timed in turn, and the table of their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Bench = Callable[[int], float]  # loops -> seconds


@dataclass(frozen=True)
class Case:
    """What is measured, against what.

    Attributes
    ----------
    name : str
    bench, floor : callable
        ``bench(loops)`` gives seconds.
    loops : int
        Of each in every round.
    aim, limit : float or None
        The ratio that is hoped for, and the one that is not acceptable beyond.
    at_least : bool
        The ratio is floor / bench, so it should be large; else bench / floor.
    """

    name: str
    bench: Bench
    floor: Bench
    loops: int = 1
    aim: float | None = None
    limit: float | None = None
    at_least: bool = False


def timed(call: Callable[[], object]) -> Bench:
    """A bench of a call that takes long enough not to mind another call around it."""

    def bench(loops: int) -> float:
        start = time.perf_counter()
        for _ in range(loops):
            call()
        return time.perf_counter() - start

    return bench


def compare(cases: Iterable[Case], rounds: int) -> bool:
    """Measure and print; False if a limit was missed.

    Each round measures every case right after its floor, and the ratio is taken within the round,
    so that a machine whose speed drifts still gives a usable number.
    """
    cases = list(cases)
    ratios: dict[str, list[float]] = {case.name: [] for case in cases}
    spent: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(rounds + 1):
        for case in cases:
            floor, own = case.floor(case.loops), case.bench(case.loops)
            ratios[case.name].append(floor / own if case.at_least else own / floor)
            spent[case.name].append(own / case.loops * 1e9)
    verdicts = [report(case, ratios[case.name][1:], spent[case.name][1:]) for case in cases]
    return all(verdicts)


def report(case: Case, ratios: list[float], nanoseconds: list[float]) -> bool:
    """Print a line; the first round, which warms caches and the interpreter, is left out by the caller."""
    median = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    ok = case.limit is None or (median >= case.limit if case.at_least else median <= case.limit)
    verdict = ""
    if case.limit is not None:
        reached = case.aim is None or (median >= case.aim if case.at_least else median <= case.aim)
        side = "at least" if case.at_least else "at most"
        verdict = f"{side} {case.limit:g}: {'ok' if ok else 'MISSED'}"
        verdict += f" (aim {case.aim:g}{'' if reached else ', not reached'})" if case.aim is not None else ""
    took = statistics.median(nanoseconds)
    print(f"  {case.name:44} {median:8.2f} x  ({low:.2f}-{high:.2f}) {took:14,.0f} ns  {verdict}", flush=True)
    return ok
