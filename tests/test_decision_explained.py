"""explain(): the numbers behind a decision agree with the decision."""

from __future__ import annotations

import pytest

import vramsel as vs
from vramsel.decision import explain
from vramsel.fit import FitStatus, Reason


@pytest.fixture
def table() -> vs.MemoryTable:
    table = vs.MemoryTable(
        {"cuda:0": (10, 100), "cuda:1": (50, 100), "cuda:2": None, "cuda:3": (1, 1), "cpu": (10, None)}
    )
    table.add_node("cuda:4", 100, 100, policy=vs.FitPolicy(headroom=20))
    table.add_node("gpu", 10, 100, placements=("torch:0",))
    table.set_idle("torch:0", 15)
    table.mark_lost("cuda:3")
    table.close_backend("cuda")
    return table


CASES = [
    ("cuda:0", 11, FitStatus.WONT_FIT, Reason.EXCEEDS_FREE, 10, 100, 1),
    ("cuda:0", 101, FitStatus.WONT_FIT, Reason.EXCEEDS_TOTAL, 10, 100, 91),
    ("cuda:0", 100, FitStatus.WONT_FIT, Reason.EXCEEDS_FREE, 10, 100, 90),
    ("cuda:0", 5, FitStatus.TIGHT, Reason.OVER_FRACTION, 10, 100, 0),
    ("cuda:1", 5, FitStatus.COMFORTABLE, Reason.FITS, 50, 100, 0),
    ("cuda:2", 5, FitStatus.UNKNOWN, Reason.NO_SIGNAL, None, None, 0),
    ("cuda:3", 0, FitStatus.WONT_FIT, Reason.LOST, None, 1, 0),
    ("cuda:4", 80, FitStatus.TIGHT, Reason.OVER_FRACTION, 80, 100, 0),
    ("cuda:4", 81, FitStatus.WONT_FIT, Reason.EXCEEDS_TOTAL, 80, 100, 1),
    ("cuda:9", 0, FitStatus.WONT_FIT, Reason.NOT_PRESENT, None, None, 0),
    ("metal:0", 5, FitStatus.UNKNOWN, Reason.NO_SIGNAL, None, None, 0),
    ("cpu", 11, FitStatus.WONT_FIT, Reason.EXCEEDS_FREE, 10, None, 1),
    ("cpu", 10, FitStatus.UNKNOWN, Reason.NO_SIGNAL, 10, None, 0),
    ("torch:0", 26, FitStatus.WONT_FIT, Reason.EXCEEDS_FREE, 25, 100, 1),
    ("torch:0", 10, FitStatus.COMFORTABLE, Reason.FITS, 25, 100, 0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_verdicts(table: vs.MemoryTable, case: tuple) -> None:
    placement, size, status, reason, available, total, short = case
    (verdict,) = explain(table, vs.AlternativeSet([vs.Candidate(placement, size)])).verdicts
    assert (verdict.status, verdict.reason) == (status, reason)
    assert (verdict.bytes, verdict.available, verdict.total, verdict.short_by) == (size, available, total, short)


def test_it_agrees_with_select(table: vs.MemoryTable) -> None:
    for first in CASES:
        for second in CASES:
            alternatives = vs.AlternativeSet([vs.Candidate(p, size) for p, size, *_ in (first, second)])
            decision = explain(table, alternatives)
            assert decision.index == table.select(alternatives)
            assert decision.fallback == (table.select_fit(alternatives) is None)
            assert decision.placement == alternatives[decision.index].placement
            assert [v.status for v in decision.verdicts] == table.classify(alternatives).tolist()


def test_an_empty_set(table: vs.MemoryTable) -> None:
    decision = explain(table, vs.AlternativeSet([]))
    assert (decision.index, decision.placement, decision.fallback, decision.verdicts) == (None, None, False, ())


def test_who_said_it_and_when(table: vs.MemoryTable) -> None:
    (verdict,) = explain(table, vs.AlternativeSet([vs.Candidate("cuda:0", 1)])).verdicts
    assert verdict.source == "caller"
    assert 0 <= verdict.age_s < 60
    table._book.nodes[0].sampled_at -= 100
    (verdict,) = explain(table, vs.AlternativeSet([vs.Candidate("cuda:0", 1)])).verdicts
    assert 100 <= verdict.age_s < 160


def test_a_missing_total_is_said(table: vs.MemoryTable) -> None:
    (verdict,) = explain(table, vs.AlternativeSet([vs.Candidate("cpu", 1)])).verdicts
    assert verdict.detail == "its total is not known"
