"""The core against the plain rule, on random and on adversarial numbers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis (the test extra) is not installed")
from hypothesis import given, settings
from hypothesis import strategies as st
from implementations import as_type, core, reference

import vramsel as vs
from vramsel import fit
from vramsel.book import Pool
from vramsel.fit import FitPolicy
from vramsel.reference import classify
from vramsel.units import MAX_BYTES

# Where unsigned arithmetic and doubles go wrong.
EDGES = sorted(
    {0, 1, 2, 3, 100, 10**9, MAX_BYTES, MAX_BYTES - 1}
    | {max(0, 2**power + step) for power in (31, 32, 52, 53, 54, 62, 63) for step in (-1, 0, 1)}
    | {MAX_BYTES - 2**10, MAX_BYTES - 2**11, MAX_BYTES - 2**11 + 1}
)
POLICIES = [
    FitPolicy(),
    FitPolicy(tight_fraction=0.0),
    FitPolicy(tight_fraction=1.0),
    FitPolicy(tight_fraction=1 / 3, tight_margin=0),
    FitPolicy(tight_fraction=0.5, tight_margin=2**40, headroom=2**31),
    FitPolicy(headroom=MAX_BYTES),
    FitPolicy(tight_fraction=0.9999999999999999, headroom=1, tight_margin=MAX_BYTES),
]


def random_u64(rng: np.random.Generator, count: int) -> np.ndarray:
    """Every magnitude is as likely as any other."""
    return rng.integers(0, MAX_BYTES, count, dtype=np.uint64, endpoint=True) >> rng.integers(
        0, 64, count, dtype=np.uint64
    )


def adversarial_sizes(rng: np.random.Generator, free: int, total: int, policy: FitPolicy) -> list[int]:
    """Sizes on both sides of every boundary of one memory."""
    room = fit.available(free, 0, 0, policy)
    low, high = 0, room  # the largest size that is not tight, if there is one, by the rule itself
    while low < high:
        middle = (low + high + 1) // 2
        if fit.would_fit(middle, free, total, policy=policy) is fit.FitStatus.COMFORTABLE:
            low = middle
        else:
            high = middle - 1
    around = [0, low, room, free, total, MAX_BYTES]
    sizes = [value + step for value in around for step in (-1, 0, 1)]
    return [min(max(size, 0), MAX_BYTES) for size in sizes]


@pytest.mark.parametrize("seed", range(4))
def test_a_million_triples(seed: int) -> None:
    """(size, free, total), a quarter of a million per seed, over tables of several sizes."""
    rng = np.random.default_rng(seed)
    checked = 0
    for nodes in (1, 2, 7, 64, 1024, 4096):
        free = random_u64(rng, nodes)
        total = random_u64(rng, nodes)
        # A third of the readings make sense, a third lie in one magnitude, the rest is anything.
        sensible = rng.random(nodes) < 1 / 3
        free[sensible] = np.minimum(free[sensible], total[sensible])
        edges = rng.random(nodes) < 1 / 6
        free[edges] = rng.choice(np.array(EDGES, dtype=np.uint64), edges.sum())
        edges = rng.random(nodes) < 1 / 6
        total[edges] = rng.choice(np.array(EDGES, dtype=np.uint64), edges.sum())
        table = vs.MemoryTable()
        policies = [POLICIES[int(p)] for p in rng.integers(0, len(POLICIES), nodes)]
        for i, policy in enumerate(policies):
            table.add_node(f"cuda:{i}", policy=policy)
        table.update_all(free, total)

        columns: list[tuple[int, int]] = []
        for i in range(nodes):
            columns += [(i, size) for size in adversarial_sizes(rng, int(free[i]), int(total[i]), policies[i])]
        want_rows = max(len(columns), 40_000)
        device = rng.integers(0, nodes, want_rows - len(columns))
        size = random_u64(rng, len(device))
        columns += list(zip(device.tolist(), size.tolist(), strict=True))
        checked += check_against_rule(table, free.tolist(), total.tolist(), policies, columns)
    assert checked >= 250_000


def check_against_rule(
    table: vs.MemoryTable, free: list[int], total: list[int], policies: list[FitPolicy], columns: list[tuple[int, int]]
) -> int:
    rows = np.zeros(len(columns), dtype=vs.CANDIDATE_DTYPE)
    rows["backend"] = vs.backend_code("cuda")
    rows["device"] = [device for device, _ in columns]
    rows["bytes_moved"] = np.array([size for _, size in columns], dtype=np.uint64)
    got = table.classify(rows).tolist()
    rule = fit.would_fit
    want = [rule(size, free[device], total[device], policy=policies[device]) for device, size in columns]
    wrong = [i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b]
    if wrong:
        device, size = columns[wrong[0]]
        pytest.fail(
            f"{got[wrong[0]]} is not {want[wrong[0]]!r}: {size=} {free[device]=} {total[device]=} {policies[device]}"
        )
    return len(columns)


def test_edges_with_idle_and_headroom() -> None:
    """Every combination of extreme values; the oracle's `reserved` as well."""
    values = [0, 1, 2**53 + 1, 2**63, MAX_BYTES - 1, MAX_BYTES]
    grid = np.array(np.meshgrid(*[np.array(values, dtype=np.uint64)] * 6)).reshape(6, -1)
    size, free, total, idle, reserved, headroom = grid
    known = (free != 0) | (total != 0)  # a reading of 0/0 is none
    got = classify(size, free, total, known=known, idle=idle, reserved=reserved, headroom=headroom).tolist()
    policies = {value: FitPolicy(headroom=value) for value in values}
    want = [fit.would_fit(s, f, t, idle=i, reserved=r, policy=policies[h]) for s, f, t, i, r, h in grid.T.tolist()]
    assert got == want

    table = vs.MemoryTable()
    flat = []
    for f, t, i, h in {tuple(column) for column in grid[[1, 2, 3, 5]].T.tolist()}:
        name = f"cuda:{len(table)}"
        table.add_node(name, f, t, policy=policies[h])
        table.set_idle(name, i)
        flat += [(name, s, fit.would_fit(s, f, t, idle=i, policy=policies[h])) for s in values]
    rows = vs.candidates([(name, s) for name, s, _ in flat])
    assert table.classify(rows).tolist() == [status for _, _, status in flat]


u64 = st.one_of(st.sampled_from(EDGES), st.integers(0, MAX_BYTES))
readings = st.one_of(st.none(), st.tuples(st.none() | u64, st.none() | u64))
policies = st.builds(FitPolicy, tight_fraction=st.floats(0, 1), tight_margin=st.none() | u64, headroom=st.just(0) | u64)
pools = st.builds(Pool, idle=u64, cap=st.just(MAX_BYTES) | u64, limit=st.just(MAX_BYTES) | st.integers(1, MAX_BYTES))
placements = st.sampled_from(["cpu", "cuda:0", "cuda:1", "cuda:17", "vulkan:0", "torch:0"])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    nodes=st.dictionaries(
        placements, st.tuples(readings, policies, pools, st.sampled_from(["", "lost", "unknown"])), max_size=6
    ),
    alternatives=st.lists(st.tuples(placements, u64), max_size=6),
    closed=st.sets(st.sampled_from(["cpu", "cuda", "vulkan"])),
)
def test_core_and_oracle_agree_on_whole_tables(nodes: dict, alternatives: list, closed: set[str]) -> None:
    table = vs.MemoryTable()
    rule = {}
    for name, (reading, policy, pool, state) in nodes.items():
        free, total = reading or (None, None)
        table.add_node(name, free, total, policy=policy)
        table._put_pool(vs.Placement(name), pool)
        known = free is not None and not (free == total == 0) and not state
        seen = pool.seen(free, total or 0) if known else (None, None)
        rule[name] = lambda size, seen=seen, policy=policy: fit.would_fit(size, seen[0], seen[1] or None, policy=policy)
        if state:
            getattr(table, f"mark_{state}")(name)
    for backend in closed:
        table.close_backend(backend)
    chosen = vs.AlternativeSet([vs.Candidate(placement, size) for placement, size in alternatives])
    statuses, pick = core(table, chosen)
    assert (statuses, pick) == reference(table, chosen)
    for (placement, size), status in zip(alternatives, statuses, strict=True):
        if placement in nodes and nodes[placement][3] != "lost":
            assert status == rule[placement](size).name
    assert table.select_fit(chosen) == as_type(table, vs.reference.ReferenceTable).select_fit(chosen)


def test_updates_in_any_order_leave_what_a_new_table_would_have() -> None:
    """`keep` is found again only when it must be: no order of changes may leave an old one."""
    rng = np.random.default_rng(11)
    table = vs.MemoryTable({f"cuda:{i}": (50, 100) for i in range(4)})
    sizes = [0, 1, 14, 15, 16, 40, 50, 51, 99, 100]
    rows = vs.candidates([(f"cuda:{i}", size) for i in range(4) for size in sizes])
    for _ in range(400):
        node = f"cuda:{rng.integers(4)}"
        match int(rng.integers(7)):
            case 0:
                table.update(node, int(rng.integers(101)), int(rng.choice([0, 50, 100])))
            case 1:
                table.set_policy(node, POLICIES[int(rng.integers(3))])
            case 2:
                table.mark_unknown(node)
            case 3:
                table.mark_lost(node)
            case 4:
                table.set_idle(node, int(rng.integers(60)))
            case 5:
                table.map(node, f"cuda:{rng.integers(4)}")
            case 6:
                pool = Pool(int(rng.integers(60)), int(rng.integers(101)), int(rng.integers(1, 101)))
                table._put_pool(vs.Placement(node), pool)
        fresh = as_type(table, vs.MemoryTable)
        assert table.classify(rows).tolist() == fresh.classify(rows).tolist()
        assert table.classify(rows).tolist() == as_type(table, vs.reference.ReferenceTable).classify(rows).tolist()
