"""The selector protocol and its implementations."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading

import numpy as np
import pytest

import vramsel as vs
from vramsel.reference import ReferenceTable

C, T, W, U = vs.FitStatus


class Fixed(vs.BackendRuntime):
    def __init__(self, free: int | None, total: int | None) -> None:
        self.free, self.total = free, total

    def available_bytes(self) -> int | None:
        return self.free

    def total_bytes(self) -> int | None:
        return self.total


class Stubborn(vs.BackendRuntime):
    """Numbers that fit comfortably, and a verdict of its own."""

    def __init__(self, status: object) -> None:
        self.status = status

    def available_bytes(self) -> int:
        return 10**9

    total_bytes = available_bytes

    def would_fit(self, size: int) -> object:
        return self.status


ALTERNATIVES = vs.AlternativeSet([vs.Candidate("cuda:0", 10), vs.Candidate("cuda:1", 10), vs.Candidate("cpu", 10)])


def select(*runtimes: vs.BackendRuntime | None) -> int | None:
    answers = dict(zip([(1, 0), (1, 1), (0, 0)], runtimes, strict=True))
    pick = vs.VramPressureSelector(lambda backend, device: answers[backend, device]).select(ALTERNATIVES)
    return ALTERNATIVES.alternatives.index(pick)


def test_all_selectors_keep_the_protocol() -> None:
    table = vs.MemoryTable({"cuda:0": (100, 100), "cuda:1": (100, 100), "cpu": (100, 100)})
    for selector in (vs.WinnerSelector(), vs.VramPressureSelector(lambda b, d: None), vs.CachedPressureSelector(table)):
        assert isinstance(selector, vs.RuntimeSelector)
        assert selector.select(ALTERNATIVES) is ALTERNATIVES[0]
        assert selector.select(vs.AlternativeSet([])) is None
        assert type(selector).__name__ in repr(selector)
        for wrong in (None, [], ALTERNATIVES.alternatives, ALTERNATIVES.array, "cpu"):
            with pytest.raises(TypeError, match="AlternativeSet"):
                selector.select(wrong)


def test_pressure() -> None:
    assert select(Fixed(100, 100), Fixed(100, 100), Fixed(100, 100)) == 0
    assert select(Fixed(5, 100), Fixed(100, 100), Fixed(100, 100)) == 1
    assert select(Fixed(15, 100), Fixed(5, 100), Fixed(100, 100)) == 2
    assert select(Fixed(5, 100), Fixed(15, 100), Fixed(15, 100)) == 1
    assert select(Fixed(5, 100), Fixed(5, 100), Fixed(5, 100)) == 0


def test_no_signal() -> None:
    full = Fixed(0, 100)
    assert select(full, None, full) == 1
    assert select(full, vs.BackendRuntime(), full) == 1
    assert select(full, Fixed(None, 100), full) == 1
    assert select(full, Fixed(0, 0), full) == 1
    assert select(full, full, Fixed(100, None)) == 2
    assert select(full, full, Fixed(9, None)) == 0


def test_an_overridden_would_fit_is_honoured() -> None:
    assert select(Stubborn(W), Stubborn(T), Stubborn(C)) == 2
    assert select(Stubborn(W), Stubborn(T), Stubborn(W)) == 1
    assert select(Stubborn(W), Stubborn(U), Stubborn(C)) == 1
    assert select(Stubborn(2), Stubborn(1), Stubborn(2)) == 1


@pytest.mark.parametrize("status", [None, "tight", 7, 1.5, 1.0, True, False, np.True_, np.float32(1), 1 + 0j])
def test_a_would_fit_without_a_status(status: object) -> None:
    with pytest.raises(TypeError, match="FitStatus"):
        select(Stubborn(status), Stubborn(C), Stubborn(C))


def test_a_lookup_that_finds_no_runtime() -> None:
    with pytest.raises(TypeError, match="BackendRuntime"):
        vs.VramPressureSelector(lambda b, d: 5).select(ALTERNATIVES)


def test_the_runtime_has_a_policy() -> None:
    class Strict(Fixed):
        policy = vs.FitPolicy(tight_fraction=0.1)

    assert select(Strict(80, 100), Fixed(5, 100), Fixed(90, 100)) == 2


def test_callbacks_are_asked_about_each_candidate_of_each_select() -> None:
    asked: list[tuple] = []

    class Watched(Fixed):
        def available_bytes(self) -> int | None:
            asked.append("available")
            return self.free

    def lookup(backend: int, device: int) -> vs.BackendRuntime:
        asked.append((backend, device))
        return Watched(100, 100)

    def estimate(candidate: vs.Candidate) -> int:
        asked.append(candidate)
        return 1

    selector = vs.VramPressureSelector(lookup, estimate)
    for _ in range(2):
        selector.select(ALTERNATIVES)
    want = [event for c in ALTERNATIVES for event in (c, (c.backend, c.device), "available")]
    assert asked == want * 2


class OwnError(Exception):
    pass


@pytest.mark.parametrize("where", ["lookup", "estimate", "available_bytes", "would_fit"])
@pytest.mark.parametrize("kind", [OwnError, KeyError, StopIteration, ValueError, KeyboardInterrupt])
def test_an_exception_in_a_callback_is_the_callers(where: str, kind: type[BaseException]) -> None:
    error = kind("mine")

    def boom(*_: object) -> None:
        raise error

    runtime = vs.BackendRuntime()
    if where in ("available_bytes", "would_fit"):
        setattr(runtime, where, boom)
    selector = vs.VramPressureSelector(
        boom if where == "lookup" else lambda b, d: runtime, boom if where == "estimate" else lambda c: 1
    )
    with pytest.raises(kind) as caught:
        selector.select(ALTERNATIVES)
    assert caught.value is error
    assert error.__cause__ is None


def test_estimates() -> None:
    candidate = vs.Candidate("cuda:0", 123, payload=7)
    assert vs.default_estimate_output_bytes(candidate) == 123
    table = vs.MemoryTable({"cuda:0": (50, 1000), "cuda:1": (50, 1000), "cpu": (1000, 1000)})
    lookup = {(1, 0): Fixed(50, 1000), (1, 1): Fixed(50, 1000), (0, 0): Fixed(1000, 1000)}
    alternatives = vs.AlternativeSet([vs.Candidate("cuda:0", 5, 60), vs.Candidate("cpu", 5, 5)])
    for make in (
        lambda estimate: vs.VramPressureSelector(lambda b, d: lookup[b, d], estimate),
        lambda estimate: vs.CachedPressureSelector(table, estimate),
    ):
        assert make(lambda c: c.payload).select(alternatives) is alternatives[1]
        assert make(lambda c: 2000).select(alternatives) is alternatives[0]
        assert make(lambda c: 1).select(vs.AlternativeSet([])) is None
        for bad, error in ((-1, ValueError), (1.5, TypeError), (None, TypeError), (2**64, ValueError)):
            with pytest.raises(error, match="estimate for cuda:0"):
                make(lambda c, bad=bad: bad).select(alternatives)
    default = vs.VramPressureSelector.with_default_estimator(lambda b, d: lookup[b, d])
    assert isinstance(default, vs.VramPressureSelector)
    assert default.select(vs.AlternativeSet([vs.Candidate("cuda:0", 51), vs.Candidate("cpu", 51)])).placement == (0, 0)


def test_the_cached_selector_sees_what_is_published() -> None:
    table = vs.MemoryTable({"cuda:0": (100, 100), "cuda:1": (100, 100), "cpu": (100, 100)})
    selector = vs.CachedPressureSelector(table)
    assert selector.select(ALTERNATIVES) is ALTERNATIVES[0]
    table.update("cuda:0", 0, 100)
    assert selector.select(ALTERNATIVES) is ALTERNATIVES[1]
    table.mark_lost("cuda:1")
    assert copy.copy(selector).select(ALTERNATIVES) is ALTERNATIVES[2]


def test_the_cached_selector_asks_the_table_that_it_was_given() -> None:
    """Whoever overrides `select` is asked, as a method of that name promises."""

    class Last(vs.MemoryTable):
        __slots__ = ()

        def select(self, candidates: object, /) -> int:
            return len(candidates) - 1

    table = Last({"cuda:0": (100, 100), "cuda:1": (100, 100), "cpu": (100, 100)})
    assert vs.CachedPressureSelector(table).select(ALTERNATIVES) is ALTERNATIVES[-1]
    assert vs.CachedPressureSelector(table, lambda c: 1).select(ALTERNATIVES) is ALTERNATIVES[-1]
    oracle = ReferenceTable({"cuda:0": (0, 100), "cuda:1": (100, 100), "cpu": (100, 100)})
    assert vs.CachedPressureSelector(oracle).select(ALTERNATIVES) is ALTERNATIVES[1]
    assert vs.CachedPressureSelector(table=oracle, estimate_output_bytes=None).table is oracle


@pytest.mark.parametrize(("answer", "want"), [(0, 0), (-1, -1), (None, None), (True, 1)])
def test_an_overridden_select_answers_like_an_index(answer: object, want: int | None) -> None:
    table = type("Own", (vs.MemoryTable,), {"select": lambda self, candidates, /: answer})()
    picked = vs.CachedPressureSelector(table).select(ALTERNATIVES)
    assert picked is (None if want is None else ALTERNATIVES[want])


@pytest.mark.parametrize(
    ("answer", "error"), [(3, IndexError), (-4, IndexError), (10**30, IndexError), ("x", TypeError)]
)
def test_an_overridden_select_that_answers_nonsense(answer: object, error: type[Exception]) -> None:
    table = type("Own", (vs.MemoryTable,), {"select": lambda self, candidates, /: answer})()
    with pytest.raises(error):
        vs.CachedPressureSelector(table).select(ALTERNATIVES)


def test_a_select_that_comes_later_is_asked_too() -> None:
    class Later(vs.MemoryTable):
        pass

    table = Later({"cuda:0": (100, 100), "cuda:1": (100, 100), "cpu": (100, 100)})
    selector = vs.CachedPressureSelector(table)
    assert selector.select(ALTERNATIVES) is ALTERNATIVES[0]
    table.select = lambda candidates: 2
    assert selector.select(ALTERNATIVES) is ALTERNATIVES[2]


class Named(vs.CachedPressureSelector):
    """With arguments of its own."""

    def __init__(self, name: str, *, nodes: dict) -> None:
        super().__init__(vs.MemoryTable(nodes), estimate_output_bytes=len_of_payload)
        self.name = name


def len_of_payload(candidate: vs.Candidate) -> int:
    return 1


def test_subclasses_of_the_cached_selector() -> None:
    selector = Named("mine", nodes={"cuda:0": (0, 100), "cuda:1": (100, 100)})
    for one in (selector, copy.copy(selector), pickle.loads(pickle.dumps(selector))):
        assert type(one) is Named
        assert one.name == "mine"
        assert one.select(ALTERNATIVES) is ALTERNATIVES[1]
    with pytest.raises(RuntimeError, match="initialised already"):
        selector.__init__("again", nodes={})
    with pytest.raises(RuntimeError, match="not initialised"):
        Named.__new__(Named).select(ALTERNATIVES)
    assert list(inspect.signature(vs.CachedPressureSelector).parameters) == ["table", "estimate_output_bytes"]


def test_constructor_errors() -> None:
    for call in (
        lambda: vs.VramPressureSelector(None),
        lambda: vs.VramPressureSelector(len, 3),
        lambda: vs.CachedPressureSelector({"cpu": (1, 1)}),
        lambda: vs.CachedPressureSelector(vs.MemoryTable(), 3),
    ):
        with pytest.raises(TypeError):
            call()


def test_copies_and_pickles() -> None:
    table = vs.MemoryTable({"cpu": (100, 100)})
    for selector in (vs.WinnerSelector(), vs.VramPressureSelector({}.get), vs.CachedPressureSelector(table)):
        twin = copy.copy(selector)
        assert type(twin) is type(selector)
    assert type(pickle.loads(pickle.dumps(vs.WinnerSelector()))) is vs.WinnerSelector
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        twin = pickle.loads(pickle.dumps(vs.CachedPressureSelector(table), protocol))
        assert twin.select(ALTERNATIVES) is ALTERNATIVES[0]
        twin = pickle.loads(pickle.dumps(vs.VramPressureSelector(no_runtime), protocol))
        assert twin.select(ALTERNATIVES) is ALTERNATIVES[0]


def no_runtime(backend: int, device: int) -> None:
    return None


def test_repr_names_the_parts() -> None:
    selector = vs.VramPressureSelector(test_estimates)
    assert repr(selector) == (
        "VramPressureSelector(lookup=test_estimates, estimate_output_bytes=default_estimate_output_bytes)"
    )
    assert "cpu 100 B free" in repr(vs.CachedPressureSelector(vs.MemoryTable({"cpu": (100, 100)})))


def test_shared_between_threads() -> None:
    table = vs.MemoryTable({"cuda:0": (100, 100), "cuda:1": (100, 100), "cpu": (100, 100)})
    selectors = [vs.CachedPressureSelector(table), vs.VramPressureSelector(lambda b, d: Fixed(100, 100))]
    barrier = threading.Barrier(4)
    picks: list[vs.Candidate | None] = []

    def work() -> None:
        barrier.wait()
        for _ in range(200):
            picks.extend(selector.select(ALTERNATIVES) for selector in selectors)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(picks) == 4 * 200 * 2
    assert all(pick is ALTERNATIVES[0] for pick in picks)
