"""PyTorch, CuPy and RMM beside a device's memory: with stand-ins for them, on the stub driver.

No GPU has confirmed that the real ones are read so; the stand-ins do what their documentation says.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from cuda_stub import CudaStub
from stand_ins import BEGIN, FRAMEWORKS

GIB = 1 << 30

Run = Callable[..., Any]

# Two devices of 24 GiB with a context each, of which 4 and 3 GiB are free.
DEVICES = """
def devices(count=2, *, active=True):
    stub.stub_devices(count)
    for device in range(count):
        card(device, 4 - device, 24, active=active)

def listed(table):
    return sorted(str(placement) for placement in table._book.placements)

def available(table, *placements):
    return [verdict(table, placement)["available"] for placement in placements]
"""


@pytest.fixture
def run(cuda_stub: CudaStub) -> Run:
    """Run a script beside which lie modules named torch, cupy and rmm."""

    def run(script: str, **options: Any) -> Any:
        return cuda_stub.run(BEGIN + DEVICES + dedent(script), **{"files": FRAMEWORKS, **options})

    return run


# ---- which there are --------------------------------------------------------------------------


def test_they_are_read_once_the_process_has_imported_them(run: Run) -> None:
    seen = run("""
        rows = []
        devices()
        with vs.watch([CudaDriverSource()], interval=0.01) as monitor:
            table = monitor.table
            def note():
                rows.append([listed(table), table.nodes, dict(monitor.errors)])
            def settle():
                before = stub.stub_calls(b"cuDeviceGetCount")
                until(lambda: stub.stub_calls(b"cuDeviceGetCount") >= before + 3)
                monitor.refresh()
            settle()
            note()
            rows.append([name for name in ("torch", "cupy", "rmm") if name in sys.modules])
            rows.append([status(table, "torch:0"), status(table, "torch:9")])
            import torch
            settle()
            note()
            import cupy, rmm
            settle()
            note()
            rows.append([verdict(table, place)["node"] for place in ("torch:1", "cupy:0", "rmm:1")])
            rows.append([status(table, "torch:1"), status(table, "torch:2"), status(table, "cupy:2")])
        rows.append(contexts(2))
        print(json.dumps(rows))
    """)
    cuda = ["cuda:0", "cuda:1"]
    assert seen[0] == [cuda, cuda, {}]
    assert seen[1] == [], "importing them is the application's affair"
    assert seen[2] == ["UNKNOWN", "UNKNOWN"]
    assert seen[3] == [[*cuda, "torch:0", "torch:1"], cuda, {}]
    assert seen[4] == [sorted([*cuda, *(f"{name}:{i}" for name in ("torch", "cupy", "rmm") for i in (0, 1))]), cuda, {}]
    assert seen[5] == ["cuda:1", "cuda:0", "cuda:1"]
    assert seen[6] == ["TIGHT", "WONT_FIT", "WONT_FIT"], "a third device there is not"
    assert seen[7] == [0, 0, [1, 1], 0]


def test_builds_of_pytorch_without_cuda(run: Run) -> None:
    seen = run("""
        import torch
        rows = []
        for cuda, hip in (("12.9", None), (None, "6.4"), ("12.9", "6.4"), (None, None)):
            for count in (2, 0):
                afresh()
                devices(count)
                torch.version.cuda, torch.version.hip = cuda, hip
                torch.calls.clear()
                torch.pool(0, reserved=3 * GIB)
                with vs.watch([CudaDriverSource()]) as monitor:
                    there = verdict(monitor.table, "torch:0", 1)
                    asked = len(torch.calls) > 0
                    rows.append([there["status"], there["reason"], status(monitor.table, "cuda:0"), asked])
        print(json.dumps(rows))
    """)
    absent, unknown = ["WONT_FIT", "not present"], ["UNKNOWN", "no signal"]
    assert seen == [
        *[["COMFORTABLE", "fits", "TIGHT", True], [*absent, "WONT_FIT", False]],
        *[[*unknown, "TIGHT", False], [*unknown, "WONT_FIT", False]],
        *[[*unknown, "TIGHT", False], [*unknown, "WONT_FIT", False]],
        *[[*absent, "TIGHT", False], [*absent, "WONT_FIT", False]],
    ]


def test_without_a_driver_they_have_no_devices(run: Run) -> None:
    library = 'ctypes.CDLL("libcuda.so.1")'
    without_library = {name: text.replace(library, "None") for name, text in FRAMEWORKS.items()}
    seen = run(
        """
        import torch, cupy, rmm
        with vs.watch() as monitor:
            print(json.dumps([status(monitor.table, place) for place in ("torch:0", "cupy:0", "rmm:0", "cuda:0")]))
        """,
        cuda=False,
        nvml=False,
        files=without_library,
    )
    assert seen == ["WONT_FIT"] * 4


def test_what_only_looks_like_one(run: Run) -> None:
    """Import blocked, half imported, and modules of the same name: no device loses its number for it."""
    seen = run("""
        import types
        class Lazy(types.ModuleType):
            def __getattr__(self, name):
                raise ImportError(f"{name} cannot be had yet")
        rows = []
        for name in ("torch", "cupy", "rmm"):
            for what, module in {"None": None, "empty": types.ModuleType(name), "lazy": Lazy(name), "3": 3}.items():
                afresh()
                devices()
                sys.modules[name] = module
                monitor = vs.watch([CudaDriverSource()])
                monitor.refresh()
                rows.append([name, what, numbers(monitor.table), dict(monitor.errors),
                             f"{name}:0" in listed(monitor.table)])
                monitor.close()
                del sys.modules[name]
        print(json.dumps(rows))
    """)
    for name, module, nodes, errors, there in seen:
        assert nodes == {"cuda:0": [4, 24], "cuda:1": [3, 24]}, (name, module)
        assert not any("\n" in error for error in errors.values())
        if module == "None":
            assert (errors, there) == ({}, False), f"{name} is not imported"


def test_they_can_be_left_out(run: Run) -> None:
    seen = run("""
        import torch
        devices()
        torch.pool(0, reserved=3 * GIB)
        with vs.watch([CudaDriverSource(frameworks=False)]) as monitor:
            print(json.dumps([listed(monitor.table), status(monitor.table, "torch:0"), torch.calls]))
    """)
    assert seen == [["cuda:0", "cuda:1"], "UNKNOWN", []]


# ---- what they hold ---------------------------------------------------------------------------


def test_idle_bytes_are_those_of_the_placement_alone(run: Run) -> None:
    """By hand: 4 and 3 GiB are free. PyTorch holds 6 and 0 idle, CuPy 2 and 5; RMM's 1 is less than what is free."""
    seen = run("""
        import torch, cupy, rmm
        from implementations import as_type
        from vramsel import fit
        from vramsel.reference import ReferenceTable

        devices()
        torch.pool(0, reserved=10 * GIB, allocated=3 * GIB, split=GIB)
        cupy.pool(0, free=2 * GIB, used=GIB)
        cupy.pool(1, free=5 * GIB)
        rmm.mr.resources[1] = rmm.StatisticsResourceAdaptor(
            rmm.PoolMemoryResource(rmm.CudaMemoryResource(), 3 * GIB), 2 * GIB)
        idle = {"torch:0": 6, "torch:1": 0, "cupy:0": 2, "cupy:1": 5, "rmm:0": 0, "rmm:1": 0, "cuda:0": 0, "cuda:1": 0}
        with vs.watch([CudaDriverSource()], interval=60, max_age=600) as monitor:
            table = monitor.table
            twin = as_type(table, ReferenceTable)
            rows = [dict(zip(idle, available(table, *idle))), numbers(table)]
            wrong = []
            for place, held in idle.items():
                free = 4 - int(place[-1])
                for size in range(0, 27):
                    for nbytes in (size * GIB - 1, size * GIB, size * GIB + 1):
                        nbytes = max(nbytes, 0)
                        rule = fit.would_fit(nbytes, free * GIB, 24 * GIB, idle=held * GIB)
                        one = vs.candidates([(place, nbytes)])
                        got = [table.would_fit(place, nbytes), *table.classify(one), twin.would_fit(place, nbytes)]
                        if any(status != rule for status in got):
                            wrong.append([place, nbytes, [int(status) for status in got], rule])
            five = [(place, 5 * GIB) for place in ("cuda:0", "rmm:0", "cuda:1", "cupy:1", "torch:0")]
            rows += [wrong, table.select(vs.AlternativeSet([vs.Candidate(*c) for c in five])), table.select(
                vs.candidates(five)), twin.select(vs.candidates(five)), dict(monitor.errors)]
        print(json.dumps(rows))
    """)
    held, nodes, wrong, *picks, errors = seen
    assert held == {
        "torch:0": 10,
        "torch:1": 3,
        "cupy:0": 6,
        "cupy:1": 8,
        "rmm:0": 4,
        "rmm:1": 3,
        "cuda:0": 4,
        "cuda:1": 3,
    }
    assert nodes == {"cuda:0": [4, 24], "cuda:1": [3, 24]}
    assert wrong == []
    assert (picks, errors) == ([4, 4, 4], {}), "of cupy:1 it would leave too little"


def test_limits(run: Run) -> None:
    """What a framework may still hand out is never above its limit less what is in use."""
    seen = run("""
        import torch, cupy, rmm
        from implementations import as_type
        from vramsel.reference import ReferenceTable
        rows = {}

        def look(case, place):
            with vs.watch([CudaDriverSource()]) as monitor:
                there = verdict(monitor.table, place)
                twin = as_type(monitor.table, ReferenceTable)
                sizes = [0, 1, *(s * GIB + d for s in range(1, 14) for d in (-1, 0, 1))]
                asked = vs.candidates([(place, size) for size in sizes])
                same = monitor.table.classify(asked).tolist() == twin.classify(asked).tolist()
                rows[case] = [there["available"], there["total"], same, available(monitor.table, "cuda:0")]

        devices()
        held = dict(reserved=10 * GIB, allocated=3 * GIB, split=GIB)
        for fraction in (1.0, 0.75, 0.5, 0.25, 0.125):
            torch.pool(0, fraction=fraction, **held)
            look(f"torch {fraction}", "torch:0")
        for limit in (0, 12, 5, 3, 1):
            cupy.pool(0, free=2 * GIB, used=3 * GIB, limit=limit * GIB)
            look(f"cupy {limit}", "cupy:0")
        for limit in (9, 3):
            rmm.mr.resources[0] = rmm.LimitingResourceAdaptor(rmm.CudaMemoryResource(), 2 * GIB, limit * GIB)
            look(f"rmm {limit}", "rmm:0")
        print(json.dumps(rows))
    """)
    # Free are 4. PyTorch: 6 idle, 4 that it cannot give back. CuPy: 2 idle, which a limit does not take from it,
    # and 3 used. RMM: 2 used.
    expected = {
        "torch 1.0": (10, 24),
        "torch 0.75": (10, 18),
        "torch 0.5": (8, 12),
        "torch 0.25": (2, 6),
        "torch 0.125": (0, 3),
        "cupy 0": (6, 24),
        "cupy 12": (6, 12),
        "cupy 5": (2, 5),
        "cupy 3": (2, 3),
        "cupy 1": (1, 1),
        "rmm 9": (4, 9),
        "rmm 3": (1, 3),
    }
    assert seen == {case: [available, total, True, [4]] for case, (available, total) in expected.items()}


def test_resources_of_rmm_in_front_of_each_other(run: Run) -> None:
    seen = run("""
        import rmm
        cuda = rmm.CudaMemoryResource()
        pool = rmm.PoolMemoryResource(cuda, 5 * GIB)
        limited = rmm.PoolMemoryResource(rmm.LimitingResourceAdaptor(cuda, 5 * GIB, 6 * GIB), 5 * GIB)
        class Behind:  # older versions have a method
            def __init__(self, behind):
                self.behind = behind
            def get_upstream(self):
                return self.behind
        statistics = rmm.StatisticsResourceAdaptor
        loop = Behind(None)
        loop.behind = loop
        rows = {}
        devices()
        for case, resource in {
            "plain": cuda,
            "pool, nobody counts": pool,
            "counted": statistics(pool, 2 * GIB),
            "counted, more idle than free": statistics(rmm.PoolMemoryResource(cuda, 9 * GIB), 2 * GIB),
            "counted, old": rmm.OldStatisticsResourceAdaptor(pool, 2 * GIB),
            "counted, farther back": statistics(Behind(pool), 2 * GIB),
            "counted behind the pool": rmm.PoolMemoryResource(statistics(cuda, 5 * GIB), 5 * GIB),
            "limit in front": rmm.LimitingResourceAdaptor(pool, 2 * GIB, 6 * GIB),
            "limit between": statistics(rmm.LimitingResourceAdaptor(pool, 2 * GIB, 6 * GIB), 2 * GIB),
            "limit behind the pool": statistics(limited, 2 * GIB),
            "no pool": statistics(cuda, 2 * GIB),
            "in a circle": loop,
        }.items():
            rmm.mr.resources[0] = resource
            with vs.watch([CudaDriverSource()]) as monitor:
                rows[case] = [*available(monitor.table, "rmm:0", "cuda:0"), dict(monitor.errors)]
        print(json.dumps(rows))
    """)
    # Free are 4; of the pool's 5, 2 are used. It gives nothing back: a request is served from the 3 that are idle,
    # or from the 4. With a limit of 6, it can grow by 1 at most.
    expected = {
        "plain": 4,
        "pool, nobody counts": 4,
        "counted": 4,
        "counted, more idle than free": 7,
        "counted, old": 4,
        "counted, farther back": 4,
        "counted behind the pool": 4,
        "limit in front": 4,
        "limit between": 4,
        "limit behind the pool": 3,
        "no pool": 4,
        "in a circle": 4,
    }
    assert {case: row[0] for case, row in seen.items()} == expected
    assert all(row[1:] == [4, {}] for row in seen.values())


def test_the_largest_idle_block(run: Run) -> None:
    """Of idle bytes in pieces one request can have the largest, if that is looked for."""
    seen = run("""
        import torch
        devices()
        def segment(device, *blocks):
            return {"device": device, "blocks": [{"size": int(s * GIB), "state": state} for s, state in blocks]}
        segments = [segment(0, (1, "active_allocated"), (7, "inactive"), (2, "inactive")), segment(1, (9, "inactive"))]
        torch.pool(0, reserved=10 * GIB, allocated=GIB, split=9 * GIB, segments=segments)
        rows = []
        for blocks in (False, True):
            torch.calls.clear()
            with vs.watch([CudaDriverSource(largest_blocks=blocks)]) as monitor:
                rows.append([available(monitor.table, "torch:0"), "memory_snapshot" in torch.calls])
        print(json.dumps(rows))
    """)
    assert seen == [[[4], False], [[7], True]]


def test_bytes_that_a_pool_gives_back_count_once(run: Run) -> None:
    """Idle is read before and after free; whichever way bytes go meanwhile, the smaller counts."""
    seen = run("""
        import torch
        rows = {}

        def move(gib, step):
            "Let the pool give back so much just before the statistics are read for the n-th time."
            def now():
                torch.pools[0].reserved -= gib * GIB
                stub.stub_memory(0, int((4 + gib) * GIB), 24 * GIB)
            torch.before_stats[:] = [lambda: None] * step + [now]

        for case, gib, step in [
            ("nothing", 0, 0), ("given back before", 6, 0), ("given back between", 6, 1), ("taken between", -3, 1),
        ]:
            afresh()
            devices(1)
            torch.pool(0, reserved=10 * GIB, allocated=4 * GIB)
            source = CudaDriverSource()
            monitor = vs.watch([source])
            per_sample = torch.calls.count("memory_stats")
            assert available(monitor.table, "torch:0") == [10]
            move(gib, step)
            torch.calls.clear()
            monitor.refresh()
            rows[case] = [available(monitor.table, "torch:0", "cuda:0"), torch.calls.count("memory_stats")]
            torch.before_stats.clear()
            monitor.refresh()
            rows[case].append(available(monitor.table, "torch:0", "cuda:0"))
            monitor.close()
        print(json.dumps(rows))
    """)
    assert seen["nothing"] == [[10, 4], 2, [10, 4]]
    assert seen["given back before"] == [[10, 10], 2, [10, 10]]
    between, reads, after = seen["given back between"]
    assert reads == 2, "once before and once after"
    assert between[0] <= 10, "never what it gave back and still counts as idle"
    assert after == [10, 10]
    taken, _, after = seen["taken between"]
    assert taken[0] <= 10
    assert after == [10, 1]


def test_free_read_between_the_two_readings_of_idle(run: Run) -> None:
    seen = run("""
        import torch
        from cuda.bindings import driver
        query = driver.cuMemGetInfo
        rows = []
        for before in (True, False):  # whether bytes go just before free is read, or just after
            for gib in (6, -3):
                afresh()
                devices(1)
                torch.pool(0, reserved=10 * GIB, allocated=4 * GIB)
                def go():
                    torch.pools[0].reserved -= gib * GIB
                    stub.stub_memory(0, (4 + gib) * GIB, 24 * GIB)
                def meanwhile():
                    if before:
                        go()
                    answer = query()
                    if not before:
                        go()
                    return answer
                driver.cuMemGetInfo = meanwhile
                with vs.watch([CudaDriverSource()]) as monitor:
                    rows.append(available(monitor.table, "torch:0", "cuda:0"))
                driver.cuMemGetInfo = query
        print(json.dumps(rows))
    """)
    # 6 idle and 4 free; 6 given back, or 3 more taken.
    assert seen == [[10, 10], [7, 1], [4, 4], [10, 4]]


# ---- what goes wrong --------------------------------------------------------------------------


def test_one_that_raises_costs_the_device_nothing(run: Run) -> None:
    seen = run("""
        import torch, cupy, rmm

        class OddError(Exception):
            def __str__(self):
                raise ValueError("no text")

        def fails(error):
            def function(*args, **more):
                raise error
            return function

        rows = []
        saved = torch.cuda.memory_stats, cupy.get_default_memory_pool, rmm.mr.get_per_device_resource
        for error in (RuntimeError("CUDA error:\\nan illegal access"), OddError(), AttributeError("x"), KeyError(3)):
            afresh()
            devices()
            torch.pool(0, reserved=3 * GIB)
            with vs.watch([CudaDriverSource()], interval=60, max_age=600) as monitor:
                good = available(monitor.table, "torch:0", "cupy:0", "rmm:0")
                torch.cuda.memory_stats = cupy.get_default_memory_pool = rmm.mr.get_per_device_resource = fails(error)
                monitor.refresh()
                rows.append([good, numbers(monitor.table), available(monitor.table, "torch:0", "cupy:0", "rmm:0"),
                             dict(monitor.errors)])
                torch.cuda.memory_stats, cupy.get_default_memory_pool, rmm.mr.get_per_device_resource = saved
                monitor.refresh()
                rows[-1] += [available(monitor.table, "torch:0"), dict(monitor.errors)]
        print(json.dumps([rows, contexts(2)]))
    """)
    rows, contexts = seen
    texts = ["RuntimeError: CUDA error: an illegal access", "OddError", "AttributeError: x", "KeyError: 3"]
    for text, (good, nodes, available, errors, after, errors_after) in zip(texts, rows, strict=True):
        assert good == [7, 4, 4]
        assert nodes == {"cuda:0": [4, 24], "cuda:1": [3, 24]}, text
        assert available == [4, 4, 4], text
        told = "; ".join(errors.values())
        for name in ("torch", "cupy", "rmm"):
            assert f"{name}:0: {text}" in told
        assert "\n" not in told
        assert (after, errors_after) == ([7], {}), text
    assert contexts == [0, 0, [1, 1], 0]


def test_one_that_talks_nonsense_costs_the_device_nothing(run: Run) -> None:
    seen = run("""
        import torch, cupy, rmm
        rows = []
        for nonsense in (None, -1, 0.5, float("nan"), "much", 2**64, 2**70, [], b"1"):
            for name in ("torch", "cupy", "cupy used", "cupy limit", "rmm", "fraction"):
                afresh()
                devices()
                torch.pools.clear()
                cupy.pools.clear()
                rmm.mr.resources.clear()
                if name == "torch":
                    torch.pool(0, reserved=nonsense)
                elif name == "fraction":
                    torch.pool(0, fraction=nonsense)
                elif name == "rmm":
                    pool = rmm.PoolMemoryResource(rmm.CudaMemoryResource(), nonsense)
                    rmm.mr.resources[0] = rmm.StatisticsResourceAdaptor(pool, 0)
                else:
                    cupy.pool(0, **{name.partition(" ")[2] or "free": nonsense})
                monitor = vs.watch([CudaDriverSource()])
                place = name.partition(" ")[0].replace("fraction", "torch") + ":0"
                rows.append([name, str(nonsense), numbers(monitor.table), available(monitor.table, place)[0],
                             dict(monitor.errors)])
                monitor.close()
        print(json.dumps(rows))
    """)
    bad = [(name, nonsense) for name, nonsense, nodes, _, _ in seen if nodes != {"cuda:0": [4, 24], "cuda:1": [3, 24]}]
    assert bad == []
    # What cannot be read as bytes is not counted. (A count too large is, as any other.)
    none = ("None", "nan", "much", "[]", "b'1'")
    assert [row for row in seen if row[1] in none and row[3] != 4] == []


def test_they_are_not_woken(run: Run) -> None:
    """PyTorch initialises CUDA when it is first used; being asked for numbers must not be that."""
    seen = run("""
        import torch
        rows = []
        for blocks in (False, True):
            afresh()
            devices()
            torch.cuda.initialised, torch.cuda.lazily = False, 0
            with vs.watch([CudaDriverSource(largest_blocks=blocks)]) as monitor:
                monitor.refresh()
                rows.append([torch.cuda.lazily, torch.cuda.initialised, available(monitor.table, "torch:0", "cuda:0")])
                torch.cuda.initialised = True
                torch.pool(0, reserved=3 * GIB, fraction=0.5)
                monitor.refresh()
                rows.append([torch.cuda.lazily, *available(monitor.table, "torch:0"),
                             verdict(monitor.table, "torch:0")["total"]])
        print(json.dumps(rows))
    """)
    assert seen == [[0, False, [4, 4]], [0, 7, 12]] * 2


def test_without_a_context_nobody_is_asked(run: Run) -> None:
    seen = run("""
        import torch, cupy, rmm
        devices(active=False)
        nv.nv_devices(2)
        gpu(0, 8, 24)
        gpu(1, 9, 24)
        torch.pool(0, reserved=3 * GIB)
        with vs.watch([CudaDriverSource()], interval=60, max_age=600) as monitor:
            rows = [listed(monitor.table), available(monitor.table, "torch:0", "cuda:0"), torch.calls[:], contexts(2)]
            stub.stub_activate(0)
            monitor.refresh()
            rows += [available(monitor.table, "torch:0", "cuda:0", "cuda:1"), contexts(2), dict(monitor.errors)]
            stub.cuDevicePrimaryCtxRelease_v2(0)
            monitor.refresh()
            rows += [available(monitor.table, "torch:0", "cuda:0")]
        print(json.dumps(rows))
    """)
    placements, before, calls, made, after, made_after, errors, again = seen
    assert len(placements) == 8
    assert (before, calls, made) == ([8, 8], [], [0, 0, [0, 0], 0])
    assert (after, made_after, errors) == ([7, 4, 9], [0, 0, [1, 0], 0], {})
    assert again == [8, 8], "with its context, a pool's bytes are gone"


def test_decisions_ask_nobody(run: Run) -> None:
    seen = run("""
        import torch, cupy, rmm
        devices()
        monitor = vs.watch([CudaDriverSource()])
        torch.calls.clear()
        wanted = vs.AlternativeSet([vs.Candidate("torch:0", GIB), vs.Candidate("cupy:1", GIB)])
        before = stub.stub_calls(b"cuMemGetInfo"), stub.stub_calls(b"cuCtxGetDevice")
        for _ in range(100):
            monitor.table.select(wanted)
            monitor.table.would_fit("rmm:0", 1)
            explain(monitor.table, wanted)
        after = stub.stub_calls(b"cuMemGetInfo"), stub.stub_calls(b"cuCtxGetDevice")
        print(json.dumps([torch.calls, before == after]))
    """)
    assert seen == [[], True]


def test_on_an_integrated_device(run: Run) -> None:
    """Its pool's idle bytes are not counted: the host's free may have them. Its limit holds."""
    seen = run("""
        import torch, cupy
        rows = []
        for active in (True, False):
            afresh()
            stub.stub_devices(2)
            card(0, 3, 120, active=active)
            card(1, 4, 24, active=True)
            stub.stub_attribute(0, 18, 1)
            cupy.pool(0, free=5 * GIB)
            for fraction in (1.0, 0.5):
                torch.pool(0, reserved=10 * GIB, allocated=4 * GIB, fraction=fraction)
                torch.pool(1, reserved=10 * GIB, allocated=4 * GIB)
                with vs.watch([host(110, 128), CudaDriverSource()], interval=60, max_age=600) as monitor:
                    monitor.refresh()
                    table = monitor.table
                    places = ("cpu", "cuda:0", "torch:0", "cupy:0", "torch:1")
                    rows.append([[verdict(table, place)["node"] for place in places], available(table, *places),
                                 verdict(table, "torch:0", 1)["source"], dict(monitor.errors)])
        print(json.dumps(rows))
    """)
    nodes = ["cpu", "cpu", "cpu", "cpu", "cuda:1"]
    full, half, inactive, _ = seen
    assert full == [nodes, [108, 108, 108, 108, 10], "meminfo", {}]
    # 60 of 120 may be held, of which 4 are in use; and 2 GiB stay free of whatever there is.
    assert half[0] == nodes
    assert half[1][:2] == [108, 108]
    assert 54 <= half[1][2] <= 56
    assert half[1][3:] == [108, 10]
    assert inactive[:2] == full[:2]


def test_what_waits_to_be_imported_is_not_imported(run: Run) -> None:
    seen = run(
        """
        import importlib.util
        def lazy(name):
            spec = importlib.util.find_spec(name)
            spec.loader = importlib.util.LazyLoader(spec.loader)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        for name in ("torch", "cupy"):
            lazy(name)
        stub.stub_devices(1)
        card(0, 4, 16, active=True)
        with vs.watch([CudaDriverSource()], interval=0.02) as monitor:
            time.sleep(0.1)
            rows = [numbers(monitor.table), [str(p) for p in monitor.table._book.placements], dict(monitor.errors)]
        print(json.dumps([*rows, "boom" in sys.modules]))
        """,
        files=dict.fromkeys(("torch.py", "cupy.py"), "import sys\nsys.modules['boom'] = sys\nraise RuntimeError\n"),
    )
    assert seen == [{"cuda:0": [4, 16]}, ["cuda:0"], {}, False]
