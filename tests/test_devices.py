"""CUDA devices as a user of watch() sees them: which device is which, what free means, what it costs."""

from __future__ import annotations

import json
import logging
import threading
import time
import warnings
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from cuda_stub import CudaStub
from stand_ins import BEGIN

import vramsel as vs
from vramsel.sources import Reading, Sample, Source

GIB = 1 << 30

Run = Callable[..., Any]


@pytest.fixture
def run(cuda_stub: CudaStub) -> Run:
    """Run a script in a process whose CUDA driver and NVML are the stubs."""
    return lambda script, *, begin="", **options: cuda_stub.run(BEGIN + begin + dedent(script), **options)


# ---- which device is it -----------------------------------------------------------------------

# Three cards, in the driver's order: first byte of the UUID, free and total. NVML has them in another.
CARDS = """
CARDS = [(0xAA, 31, 32), (0xAB, 9, 10), (0xBB, 5, 24)]

def uuid(first):
    return f"GPU-{first:02x}000000-0000-0000-0000-000000000000"

def cards(nvml_order, *, active=()):
    stub.stub_devices(3)
    nv.nv_devices(3)
    for device, (first, free, total) in enumerate(CARDS):
        card(device, free, total, active=device in active)
        stub.stub_uuid(device, bytes([first, *[0] * 15]))
        stub.stub_pci(device, f"0000:{first:02x}:00.0".encode())
        gpu(nvml_order[device], free, total)
        nv.nv_uuid(nvml_order[device], uuid(first).encode())
        nv.nv_pci(nvml_order[device], f"0000:{first:02x}:00.0".encode())
"""

ALL = [[31, 32], [9, 10], [5, 24]]  # free and total of the cards

# A mask, and the cards that it leaves, in order.
MASKS = {
    None: [0, 1, 2],
    "": [],
    "1": [1],
    "1,0": [1, 0],
    "2,0,1": [2, 0, 1],
    "GPU-bb": [2],
    "GPU-ab,GPU-aa": [1, 0],
    "GPU-a": [],  # two cards begin so
    "GPU-cc": [],
    "0,x,1": [0],
    "-1": [],
}


def test_the_driver_enumerates_and_a_device_is_its_uuid(run: Run) -> None:
    seen = run(
        f"""
        def look(mask, nvml_order, active):
            afresh()
            if mask is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = mask
            cards(nvml_order, active=active)
            with vs.watch([CudaDriverSource()]) as monitor:
                table = monitor.table
                uuids = [node.uuid for node in table._book.nodes]
                row = [numbers(table), uuids, status(table, "cuda:0"), status(table, "cuda:3"), contexts(3)]
            return row

        rows = []
        for mask in {list(MASKS)!r}:
            rows.append([look(mask, order, active) for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0])
                         for active in ([], [0, 1, 2], [1])])
        print(json.dumps(rows))
        """,
        begin=CARDS,
    )
    firsts = ["aa", "ab", "bb"]
    for (mask, visible), rows in zip(MASKS.items(), seen, strict=True):
        assert len(rows) == 9
        for number, (nodes, uuids, first, beyond, contexts) in enumerate(rows):
            case = mask, number
            assert nodes == {f"cuda:{ordinal}": ALL[card] for ordinal, card in enumerate(visible)}, case
            assert [uuid[4:6] for uuid in uuids] == [firsts[card] for card in visible], case
            assert first == ("COMFORTABLE" if visible else "WONT_FIT"), case
            assert beyond == "WONT_FIT", "the driver lists no more than it shows"
            active = [[], [0, 1, 2], [1]][number % 3]
            assert contexts == [0, 0, [int(card in active) for card in range(3)], 0], case


def test_a_device_whose_uuid_nvml_does_not_know_is_joined_by_its_pci_id_or_not_at_all(run: Run) -> None:
    seen = run(
        """
        rows = []
        for way in ("no UUID from CUDA", "another UUID in NVML", "neither", "PCI id of another"):
            afresh()
            cards([2, 0, 1])
            if way == "no UUID from CUDA":
                stub.stub_fault(b"cuDeviceGetUuid", -1, 999)
            else:
                for device in range(3):
                    nv.nv_uuid(device, f"GPU-{device}".encode())
            if way == "neither":
                stub.stub_fault(b"cuDeviceGetPCIBusId", -1, 999)
            if way == "PCI id of another":  # the bus was numbered anew, say; then the total gives it away
                for device, first in enumerate((0xAB, 0xBB, 0xAA)):
                    stub.stub_pci(device, f"0000:{first:02x}:00.0".encode())
            with vs.watch([CudaDriverSource()]) as monitor:
                details = [verdict(monitor.table, f"cuda:{i}")["detail"] for i in range(3)]
                rows.append([numbers(monitor.table), details])
        print(json.dumps(rows))
        """,
        begin=CARDS,
    )
    by_pci, other, neither, wrong = seen
    everything = {"cuda:0": ALL[0], "cuda:1": ALL[1], "cuda:2": ALL[2]}
    assert by_pci == other == [everything, [None, None, None]]
    nothing = {"cuda:0": None, "cuda:1": None, "cuda:2": None}
    assert neither[0] == wrong[0] == nothing
    for details in (neither[1], wrong[1]):
        assert all(details)
        assert not any("\n" in detail for detail in details)


def test_slices_are_read_as_slices_or_not_at_all(run: Run) -> None:
    """A card of 60/80 with two instances of 7/10 and 3/20. CUDA sees the instances, NVML both."""
    seen = run("""
        import ctypes
        from cuda.bindings import driver

        PARENT = bytes([0xCC, *[0] * 15])
        second = getattr(driver, "cuDeviceGetUuid_v2", None)
        plain = driver.cuDeviceGetUuid

        def first_version(device):
            raw = ctypes.create_string_buffer(16)
            code = stub.cuDeviceGetUuid(raw, int(device))
            return driver.CUresult(code), type("CUuuid", (), {"bytes": raw.raw})()

        def look(old, active, fault=None, name=b"NVIDIA H200 MIG 1g.18gb", size=20):
            afresh()
            stub.stub_devices(2)
            nv.nv_devices(1)
            nv.nv_uuid(0, b"GPU-cc000000-0000-0000-0000-000000000000")
            gpu(0, 60, 80)
            nv.nv_mig(0, 2)
            for device, (free, total) in enumerate(((7, 10), (3, size))):
                card(device, free, total, active=active)
                stub.stub_name(device, name)
                stub.stub_pci(device, b"0000:00:00.0")
                stub.stub_uuid(device, bytes([0xD0 + device, *[0] * 15]))
                stub.stub_mig(device, PARENT)
                nv.nv_mig_uuid(0, device, f"MIG-d{device}000000-0000-0000-0000-000000000000".encode())
                nv.nv_mig_memory(0, device, total * GIB, 0, free * GIB, (total - free) * GIB)
            if fault:
                nv.nv_fault(*fault)
            if old:
                if second:
                    del driver.cuDeviceGetUuid_v2
                driver.cuDeviceGetUuid = first_version
            try:
                with vs.watch([CudaDriverSource()]) as monitor:
                    return [numbers(monitor.table), verdict(monitor.table, "cuda:1"), contexts(2)]
            finally:
                driver.cuDeviceGetUuid = plain
                if second:
                    driver.cuDeviceGetUuid_v2 = second

        print(json.dumps({
            "contexts": look(False, True),
            "contexts, old": look(True, True),
            "none": look(False, False),
            "none, no name": look(False, False, name=b""),
            "none, old": look(True, False),
            "none, old, no name": look(True, False, name=b""),
            "none, old, a slice of the whole": look(True, False, size=80),
            "none, old, mode unknown": look(True, False, (b"nvmlDeviceGetMigMode", -1, 999)),
        }))
    """)
    slices = {"cuda:0": [7, 10], "cuda:1": [3, 20]}
    for case in ("contexts", "contexts, old", "none", "none, no name"):
        assert seen[case][0] == slices, case
        assert seen[case][1]["source"] == ("cuda-driver" if "contexts" in case else "nvml"), case
    for case in (case for case in seen if case.startswith("none, old")):
        nodes, verdict, contexts = seen[case]
        assert nodes == {"cuda:0": None, "cuda:1": None}, case
        assert verdict["status"] == "UNKNOWN", case
        assert verdict["detail"], case
        assert contexts == [0, 0, [0, 0], 0], case


def test_the_callers_context_stays_while_a_monitor_runs(run: Run) -> None:
    seen = run("""
        from cuda.bindings import driver

        stub.stub_devices(2)
        card(0, 8, 16, active=True)
        card(1, 3, 16, active=True)
        driver.cuInit(0)
        zero, one = (driver.cuDevicePrimaryCtxRetain(device)[1] for device in (0, 1))

        def current():
            return [int(driver.cuCtxGetCurrent()[1]) == int(one), stub.stub_depth(), contexts(2)[2]]

        driver.cuCtxPushCurrent(zero)
        driver.cuCtxPushCurrent(one)
        rows = [current()]
        direct = CudaDriverSource().sample()  # on this thread
        rows.append(current())
        with vs.watch(interval=0.01) as monitor:
            rows.append(current())
            before = stub.stub_calls(b"cuMemGetInfo")
            until(lambda: stub.stub_calls(b"cuMemGetInfo") >= before + 10)
            monitor.refresh()
            rows.append(current()[:2])
            seen = numbers(monitor.table)
        rows.append(current())
        print(json.dumps([[[r.free / GIB, r.total / GIB] for r in direct.readings], seen, rows]))
    """)
    direct, watched, rows = seen
    assert direct == [[8, 16], [3, 16]]
    assert [watched["cuda:0"], watched["cuda:1"]] == [[8, 16], [3, 16]]
    assert [row[:2] for row in rows] == [[True, 2]] * 5
    assert rows[0][2] == rows[1][2] == rows[4][2] == [2, 2]


def test_names_and_uuids_in_every_form(run: Run) -> None:
    seen = run(r"""
        from cuda.bindings import driver

        class Raw:
            def __init__(self, value):
                self.bytes = value

        name = driver.cuDeviceGetName
        which = "cuDeviceGetUuid_v2" if hasattr(driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        uuid = getattr(driver, which)
        rows = []
        for names, form in [
            (name, bytes), (lambda *a: (0, "Plain text"), bytearray), (lambda *a: (0, b"\xff\xfe \0junk"), memoryview),
            (lambda *a: (0, b""), list),
        ]:
            afresh()
            stub.stub_devices(1)
            stub.stub_name(0, b"GPU \xe9\n\x1b[31m")
            nv.nv_devices(1)
            driver.cuDeviceGetName = names
            setattr(driver, which, lambda device, form=form: (uuid(device)[0], Raw(form(uuid(device)[1].bytes))))
            with vs.watch([CudaDriverSource()]) as monitor:
                (node,) = monitor.table._book.nodes
                rows.append([node.device_name, node.uuid, numbers(monitor.table)])
        print(json.dumps(rows))
    """)
    uuid = "GPU-00000000-0000-0000-0000-000000000001"
    assert [row[1:] for row in seen] == [[uuid, {"cuda:0": [16, 16]}]] * 4
    names = [row[0] for row in seen]
    assert names[0] == "GPU \ufffd ?[31m"
    assert names[1:] == ["Plain text", "\ufffd\ufffd", None]


# ---- free that is not free --------------------------------------------------------------------


def test_an_integrated_device_is_judged_by_the_host(run: Run) -> None:
    seen = run("""
        INTEGRATED, UNIFIED_ADDRESSING = 18, 41

        def look(*sources, size=40, fault=None, attributes=(INTEGRATED,), active=True, total=120, **watching):
            afresh()
            stub.stub_devices(2)
            nv.nv_devices(2)
            card(0, 3, total, active=active)
            card(1, 8, 16, active=True)
            for attribute in attributes:
                stub.stub_attribute(0, attribute, 1)
            stub.stub_attribute(1, UNIFIED_ADDRESSING, 1)
            if fault:
                stub.stub_fault(*fault)
            with vs.watch(sources or [host(110, 128), CudaDriverSource()], **watching) as monitor:
                table = monitor.table
                one = vs.AlternativeSet([vs.Candidate("cuda:0", size * GIB), vs.Candidate("cpu", size * GIB)])
                first = verdict(table, "cuda:0", size)
                monitor.refresh()
                return {
                    "first": first,
                    "cuda:0": verdict(table, "cuda:0", size),
                    "cpu": verdict(table, "cpu", size),
                    "pick": table.select(one),
                    "nodes": numbers(table),
                    "errors": dict(monitor.errors),
                    "nvml": nv.nv_calls(b"nvmlInit_v2"),
                    "contexts": contexts(2),
                }

        print(json.dumps({
            "integrated": look(),
            "discrete": look(attributes=()),
            "unified addressing": look(attributes=(UNIFIED_ADDRESSING,)),
            "no context": look(active=False),
            "memory query fails": look(fault=(b"cuMemGetInfo", 0, 999)),
            "state query fails": look(fault=(b"cuDevicePrimaryCtxGetState", 0, 999)),
            "total query fails": look(fault=(b"cuDeviceTotalMem", 0, 999)),
            "name and UUID fail": look(fault=(b"cuDeviceGetUuid", 0, 999)),
            "no host source": look(CudaDriverSource()),
            "host last": look(CudaDriverSource(), host(110, 128)),
            "large": look(size=109),
            "cap": look(size=58, total=60),
        }))
    """)
    for case in (
        "integrated",
        "no context",
        "memory query fails",
        "state query fails",
        "total query fails",
        "name and UUID fail",
        "host last",
    ):
        row = seen[case]
        total = 128 if case == "total query fails" else 120
        for verdict in (row["first"], row["cuda:0"], row["cpu"]):
            assert verdict["node"] == "cpu", case
            assert (verdict["status"], verdict["source"]) == ("COMFORTABLE", "meminfo"), case
            assert verdict["available"] == 108, case  # 2 GiB stay free
        assert row["cuda:0"]["total"] == row["cpu"]["total"] == total, case
        assert row["pick"] == 0, case
        assert row["nodes"] == {"cpu": [110, total], "cuda:1": [8, 16]}, case
        assert (row["errors"], row["nvml"]) == ({}, 0), case
        assert row["contexts"] == [0, 0, [int(case != "no context"), 1], 0], case
    for case in ("discrete", "unified addressing"):
        row = seen[case]
        assert (row["cuda:0"]["node"], row["cuda:0"]["status"]) == ("cuda:0", "WONT_FIT"), case
        assert row["cuda:0"]["source"] == "cuda-driver", case
        assert row["nodes"] == {"cpu": [110, 128], "cuda:0": [3, 120], "cuda:1": [8, 16]}, case
        assert (row["pick"], row["cpu"]["available"]) == (1, 110), case
    assert seen["no host source"]["cuda:0"]["status"] == "UNKNOWN"
    assert seen["no host source"]["nodes"] == {"cpu": None, "cuda:1": [8, 16]}
    assert seen["large"]["cuda:0"]["status"] == "WONT_FIT"
    verdict = seen["cap"]["cuda:0"]
    assert (verdict["status"], verdict["available"], verdict["total"]) == ("TIGHT", 58, 60)


def test_an_integrated_devices_total_caps_the_first_numbers_too(run: Run) -> None:
    seen = run("""
        rows = []
        for sources in ([host(110, 128), CudaDriverSource()], [CudaDriverSource(), host(110, 128)]):
            for count in (1, 2):
                afresh()
                stub.stub_devices(count)
                card(0, 3, 60)
                stub.stub_attribute(0, 18, 1)
                with vs.watch(sources, interval=60, max_age=600) as monitor:
                    rows.append([numbers(monitor.table)["cpu"], status(monitor.table, "cuda:0", 80)])
        print(json.dumps(rows))
    """)
    assert seen == [[[60, 60], "WONT_FIT"]] * 4


def test_the_headroom_of_an_integrated_device(run: Run) -> None:
    seen = run("""
        def look(source=None, policy=None, act=lambda table: None):
            afresh()
            stub.stub_devices(1)
            card(0, 3, 120, active=True)
            stub.stub_attribute(0, 18, 1)
            sources = [host(110, 128), CudaDriverSource() if source is None else source]
            with vs.watch(sources, policy=policy) as monitor:
                act(monitor.table)
                monitor.refresh()
                monitor.refresh()
                return [verdict(monitor.table, placement)["available"] for placement in ("cuda:0", "cpu")]

        mine = vs.FitPolicy(headroom="1GiB")
        print(json.dumps({
            "default": look(),
            "configured": look(CudaDriverSource(unified_headroom="10GiB")),
            "in bytes": look(CudaDriverSource(unified_headroom=4 * GIB)),
            "none": look(CudaDriverSource(unified_headroom=0)),
            "cpu by name": look(policy={"cpu": mine}),
            "cpu by its other name": look(policy={"cpu:0": vs.FitPolicy()}),
            "for all, less": look(policy=mine),
            "for all, more": look(policy=vs.FitPolicy(headroom="5GiB")),
            "another node's": look(policy={"cuda:0": mine}),
        }))
        for wrong in (-1, "2G", 1.5, None):
            try:
                CudaDriverSource(unified_headroom=wrong)
            except (TypeError, ValueError):
                continue
            raise AssertionError(wrong)
    """)
    expected = {
        "default": 108,
        "configured": 100,
        "in bytes": 106,
        "none": 110,
        "cpu by name": 109,
        "cpu by its other name": 110,
        "for all, less": 108,
        "for all, more": 105,
        "another node's": 108,
    }
    assert seen == {case: [free, free] for case, free in expected.items()}


def test_a_policy_that_the_user_sets_on_a_running_table_stays(run: Run) -> None:
    seen = run("""
        stub.stub_devices(2)
        card(0, 3, 120)
        card(1, 8, 16, active=True)
        stub.stub_attribute(0, 18, 1)
        rows = []
        with vs.watch([host(110, 128), CudaDriverSource()], interval=60, max_age=600) as monitor:
            monitor.table.set_policy("cpu", vs.FitPolicy(headroom="1GiB"))
            monitor.table.set_policy("cuda:1", vs.FitPolicy(headroom="1GiB"))
            for _ in range(2):
                monitor.refresh()
                rows.append([verdict(monitor.table, place)["available"] for place in ("cuda:0", "cpu", "cuda:1")])
        print(json.dumps(rows))
    """)
    assert seen == [[109, 109, 7]] * 2


def test_an_integrated_device_that_fails_or_is_lost_and_comes_back(run: Run) -> None:
    seen = run("""
        stub.stub_devices(2)
        nv.nv_devices(2)
        card(0, 3, 120, active=True)
        card(1, 8, 16, active=True)
        stub.stub_attribute(0, 18, 1)
        stub.stub_fault_once(b"cuDeviceGetAttribute", 0, 999, 1)
        rows = []
        with vs.watch([host(110, 128), CudaDriverSource()], interval=60, max_age=600) as monitor:
            def note():
                rows.append([verdict(monitor.table, "cuda:0", 40), verdict(monitor.table, "cpu", 40)["status"],
                             status(monitor.table, "cuda:1")])
            monitor.refresh()
            note()
            stub.stub_fault(b"cuDevicePrimaryCtxGetState", 0, 700)
            monitor.refresh()
            note()
            monitor.refresh()
            note()
            stub.stub_fault(b"cuDevicePrimaryCtxGetState", 0, 0)
            monitor.refresh()
            monitor.refresh()
            note()
        print(json.dumps(rows))
    """)
    for verdict, cpu, other in seen:
        assert cpu == "COMFORTABLE"
        assert other == "COMFORTABLE"
        assert "\n" not in (verdict["detail"] or "")
    assert [row[0]["status"] for row in seen] == ["COMFORTABLE", "WONT_FIT", "WONT_FIT", "COMFORTABLE"]
    assert [row[0]["reason"] for row in seen[1:3]] == ["device lost"] * 2
    assert [row[0]["node"] for row in seen] == ["cpu", "cuda:0", "cuda:0", "cpu"]


def test_a_driver_that_cannot_list_its_devices_has_not_lost_them(run: Run) -> None:
    seen = run("""
        rows = {}
        for call, code in [(b"cuInit", 999), (b"cuDeviceGetCount", 4711), (b"cuDeviceGetCount", 3)]:
            for count in (1, 2, 3):
                afresh()
                stub.stub_devices(count)
                card(0, 3, 120)
                stub.stub_attribute(0, 18, 1)
                for device in range(1, count):
                    card(device, 8, 16, active=True)
                places = ["cpu", *(f"cuda:{device}" for device in range(count))]
                monitor = vs.watch([host(110, 128), CudaDriverSource()])
                stub.stub_fault(call, -1, code)
                failing = []
                for _ in range(2):
                    monitor.refresh()
                    failing.append([verdict(monitor.table, place)["status"] for place in places])
                stub.stub_fault(call, -1, 0)
                monitor.refresh()
                monitor.refresh()
                after = [verdict(monitor.table, place)["status"] for place in places]
                monitor.close()
                rows[f"{call} {code}, {count} devices"] = [failing, after, dict(monitor.errors)]
        print(json.dumps(rows))
    """)
    for case, (failing, after, errors) in seen.items():
        others = len(after) - 2
        assert after == ["COMFORTABLE"] * (2 + others), case
        for statuses in failing:
            # One device alone is read with the list; several go on without it, as long as they answer.
            assert statuses[:2] == ["COMFORTABLE"] * 2, case
            assert statuses[2:] == ["COMFORTABLE"] * others, case
        assert errors == {}, case


def test_absurd_numbers_of_the_driver(run: Run) -> None:
    """Free and total of one device in the driver, and what becomes of them; the other is always read."""
    rows = [
        (55 * GIB, 32 * GIB, None),
        (8 * GIB + GIB // 5, 8 * GIB, [8, 8]),
        (17 * GIB, 16 * GIB, [16, 16]),  # by 1/16
        (17 * GIB + 1, 16 * GIB, None),
        (0, 0, None),
        (0, 16 * GIB, [0, 16]),
        (2**64 - 1, 16 * GIB, None),
        (16 * GIB, 2**64 - 1, None),
        (2**64 - 1, 2**64 - 1, None),
        (2**64 - 5, 16 * GIB, None),
        (GIB, 0, None),
    ]
    seen = run(f"""
        import contextlib, io
        from vramsel.cli import main

        rows = []
        for free, total, _ in {rows!r}:
            afresh()
            stub.stub_devices(2)
            stub.stub_memory(0, free, total)
            stub.stub_activate(0)
            card(1, 8, 16, active=True)
            with vs.watch([CudaDriverSource()]) as monitor, warnings.catch_warnings():
                warnings.simplefilter("error")
                table = monitor.table
                discarded = table._book.discarded > 0
                rows.append([numbers(table), verdict(table, "cuda:0"), dict(monitor.errors), discarded])
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                main(["status"])
                main(["status", "--json"])
                main(["pick", "cuda:0=1GiB", "cuda:1=1GiB", "--explain"])
            rows[-1].append(printed.getvalue())
        print(json.dumps(rows))
    """)
    for (free, total, expected), (nodes, verdict, errors, discarded, printed) in zip(rows, seen, strict=True):
        case = free, total
        assert nodes["cuda:1"] == [8, 16], case
        if free == GIB:  # its total is unknown, so nothing can be said of what fits
            assert verdict["status"] == "UNKNOWN", case
        else:
            assert nodes["cuda:0"] == expected, case
        if expected is None:
            assert verdict["status"] == "UNKNOWN", case
            assert verdict["detail"], case
        assert discarded == (expected is None and total != 0), f"{case}: discarded readings are counted, and no others"
        assert errors == {}, case
        assert "184467440" not in printed, case
        assert "EiB" not in printed, case


def test_free_and_total_are_of_one_source(run: Run) -> None:
    """One card: 94.97 in all for the driver, 95.59 for NVML, which also counts what is set aside."""
    seen = run("""
        stub.stub_devices(1)
        nv.nv_devices(1)
        card(0, 90.5, 94.97)
        gpu(0, 91.25, 95.59)
        rows = []
        with vs.watch([CudaDriverSource()], interval=60, max_age=600) as monitor:
            def note():
                rows.append([numbers(monitor.table)["cuda:0"], verdict(monitor.table, "cuda:0")["source"]])
            note()
            stub.stub_activate(0)
            monitor.refresh()
            note()
            stub.cuDevicePrimaryCtxRelease_v2(0)
            monitor.refresh()
            note()
        print(json.dumps(rows))
    """)
    for (free, total), source in seen:
        assert (round(free, 6), round(total, 2)) == {"cuda-driver": (90.5, 94.97), "nvml": (91.25, 95.59)}[source]
    assert [source for _, source in seen] == ["nvml", "cuda-driver", "nvml"]


def test_a_total_that_is_no_signal_is_not_compared_with(run: Run) -> None:
    seen = run("""
        rows = []
        for total in (0, ONES):
            for active in (False, True):
                afresh()
                stub.stub_devices(1)
                nv.nv_devices(1)
                card(0, 8, 16, active=active)
                gpu(0, 9, 16)
                stub.stub_total_mem(0, total)
                with vs.watch([CudaDriverSource()]) as monitor:
                    rows.append([numbers(monitor.table)["cuda:0"], verdict(monitor.table, "cuda:0")["detail"]])
        print(json.dumps(rows))
    """)
    assert seen == [[[9, 16], None], [[8, 16], None]] * 2


def test_no_signal_in_one_update_of_all_nodes(table_type: type[vs.MemoryTable]) -> None:
    table = table_type(dict.fromkeys(("cuda:0", "cuda:1", "cuda:2", "cpu"), (5, 10)))
    rows = [
        ([5, 5, 5, 5], [10, 0, 10, 10], None, ["COMFORTABLE", "UNKNOWN", "COMFORTABLE", "COMFORTABLE"]),
        ([5, 5, 0, 5], [10, 10, 0, 10], None, ["COMFORTABLE", "COMFORTABLE", "UNKNOWN", "COMFORTABLE"]),
        (
            [5, 5, 0, 5],
            [10, 10, 9, 10],
            [True, True, True, False],
            ["COMFORTABLE", "COMFORTABLE", "WONT_FIT", "UNKNOWN"],
        ),
        ([0, 0, 0, 0], [0, 0, 0, 0], None, ["UNKNOWN"] * 4),
        ([5, 5, 5, 5], [10, 10, 10, 10], [False] * 4, ["UNKNOWN"] * 4),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for free, total, known, expected in rows:
            table.update_all(free, total, known)
            assert [table.would_fit(node, 1).name for node in table.nodes] == expected
            asked = vs.candidates([(node, 1) for node in table.nodes])
            assert [vs.FitStatus(status).name for status in table.classify(asked)] == expected


# ---- stale and racing -------------------------------------------------------------------------


class Played(Source):
    """Gives the readings that a test puts there; an exception is raised, an event waited for."""

    name = "played"

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.asked = 0

    def sample(self) -> Sample:
        self.asked += 1
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, threading.Event):
            step.wait(20)
            step = (1, 100)
        if isinstance(step, BaseException):
            raise step
        return Sample((Reading("cuda:0", *step),))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


@pytest.mark.parametrize("steps", [[(83, 100), (90, 100)], [(0, 16), (16, 16), (0, 16)], [(8, 16), (30, 32)]])
def test_free_may_grow_between_samples(steps: list[Any]) -> None:
    source = Played(*steps)
    with vs.watch([source], interval=0.01) as monitor:
        until(lambda: source.asked > len(steps))
        monitor.refresh()
        assert dict(monitor.errors) == {}
        assert (monitor.table.free.tolist(), monitor.table.total.tolist()) == ([steps[-1][0]], [steps[-1][1]])


def test_free_of_a_device_grows_while_it_is_watched(run: Run) -> None:
    seen = run("""
        stub.stub_devices(1)
        card(0, 83, 100, active=True)
        with vs.watch([CudaDriverSource()], interval=0.01) as monitor:
            rows = [numbers(monitor.table)]
            card(0, 90, 100)
            until(lambda: monitor.table.free[0] == 90 * GIB)
            rows += [numbers(monitor.table), dict(monitor.errors), status(monitor.table, "cuda:0", 85)]
        print(json.dumps(rows))
    """)
    assert seen == [{"cuda:0": [83, 100]}, {"cuda:0": [90, 100]}, {}, "TIGHT"]


@pytest.mark.parametrize("runs", [True, False], ids=["running", "refresh alone"])
@pytest.mark.parametrize("way", ["raises", "hangs", "has nothing"])
def test_a_source_that_fails_leaves_no_old_number(way: str, runs: bool) -> None:
    hang = threading.Event()
    bad = {"raises": OSError("gone"), "hangs": hang, "has nothing": (None, None)}[way]
    source = Played((5, 100), bad)
    monitor = vs.watch([source], interval=0.02, max_age=0.2)
    asked = vs.AlternativeSet([vs.Candidate("cuda:0", 50)])
    assert monitor.table.select_fit(asked) is None  # 50 of 5
    try:
        if runs:
            monitor.start()
            until(lambda: not monitor.table.known[0])
        else:
            monitor.refresh()  # which waits for a source that hangs no longer than max_age
        assert monitor.table.known.tolist() == [False]
        assert monitor.table.would_fit("cuda:0", 50) is vs.FitStatus.UNKNOWN
        source.steps = [(90, 100)]
        hang.set()
        if runs:
            until(lambda: bool(monitor.table.known[0]) and int(monitor.table.free[0]) == 90)
        else:
            monitor.refresh()
        assert monitor.table.select_fit(asked) == 0
        assert dict(monitor.errors) == {}
    finally:
        hang.set()
        monitor.close()


def test_a_driver_that_fails_for_longer_than_max_age(run: Run) -> None:
    seen = run("""
        stub.stub_devices(2)
        nv.nv_devices(2)
        card(0, 8, 16, active=True)
        card(1, 4, 16, active=True)
        rows = {}
        with vs.watch([CudaDriverSource()], interval=0.02, max_age=0.2) as monitor:
            def pair():
                return list(numbers(monitor.table).values())
            for way, begin, end in [
                ("all of it", (b"cuDevicePrimaryCtxGetState", -1, 999), (b"cuDevicePrimaryCtxGetState", -1, 0)),
                ("one device", (b"cuMemGetInfo", 1, 999), (b"cuMemGetInfo", 1, 0)),
            ]:
                stub.stub_fault(*begin)
                until(lambda: pair()[1] is None)
                if way == "all of it":
                    until(lambda: pair()[0] is None)
                rows[way] = [pair()[0] is None, verdict(monitor.table, "cuda:1")]
                stub.stub_fault(*end)
                until(lambda: None not in pair())
            stub.stub_fault(b"cuDeviceGetCount", -1, 4711)
            until(lambda: monitor.errors)
            time.sleep(0.5)
            rows["its list"] = [pair(), dict(monitor.errors)]
            stub.stub_fault(b"cuDeviceGetCount", -1, 0)
            monitor.refresh()
            for device in (0, 1):
                stub.stub_delay_once(b"cuMemGetInfo", device, 600_000, 1)
            until(lambda: pair() == [None, None])
            rows["it hangs"] = [True, verdict(monitor.table, "cuda:1")]
            until(lambda: None not in pair())
            rows["end"] = [pair(), dict(monitor.errors)]
        print(json.dumps(rows))
    """)
    for way, (both, why) in {
        "all of it": (True, "cuDevicePrimaryCtxGetState: CUDA_ERROR_UNKNOWN (999)"),
        "one device": (False, "cuMemGetInfo: CUDA_ERROR_UNKNOWN (999)"),
        "it hangs": (True, "older than 0.2 s"),
    }.items():
        assert seen[way][0] == both, way
        assert seen[way][1]["status"] == "UNKNOWN", way
        assert why in seen[way][1]["detail"], way
    # Devices that answer are known, whatever becomes of the list.
    assert seen["its list"] == [[[8, 16], [4, 16]], {"cuda-driver": "cuDeviceGetCount: unknown CUDA error (4711)"}]
    assert seen["end"] == [[[8, 16], [4, 16]], {}]


def test_an_older_sample_never_replaces_a_newer_one(table_type: type[vs.MemoryTable]) -> None:
    table = table_type({"cuda:0": (50, 100), "cuda:1": (50, 100)})
    older, newer = table.begin_sample(), table.begin_sample()
    assert table.publish(newer, "cuda:0", 20, 100)
    version = table.version
    assert not table.publish(older, "cuda:0", 90, 100)
    assert (table.free.tolist(), table.version) == ([20, 50], version)
    assert table.publish(older, "cuda:1", 60, 100), "of the other node nothing newer is known"
    assert table.publish(newer, "cuda:1", 61, 100)
    assert table.publish(newer, "cuda:1", 62, 100), "one sample may be told twice"
    for overtake in (
        lambda: table.update("cuda:0", 30, 100),
        lambda: table.mark_unknown("cuda:0"),
        lambda: table.mark_lost("cuda:0"),
        lambda: table.update_all([30, 40], [100, 100]),
    ):
        late = table.begin_sample()
        overtake()
        before = table.free.tolist(), table.known.tolist(), table.would_fit("cuda:0", 1)
        assert not table.publish(late, "cuda:0", 90, 100)
        assert (table.free.tolist(), table.known.tolist(), table.would_fit("cuda:0", 1)) == before
        assert table.publish(table.begin_sample(), "cuda:0", 90, 100)
    assert table.free[0] == 90


def test_samplers_that_overlap() -> None:
    """Four threads sample one node; whatever the order, what is published last began last."""
    table = vs.MemoryTable({"cuda:0": (0, 1 << 40)})
    answers: list[tuple[int, bool]] = []
    begin = threading.Lock()
    meet = threading.Barrier(4)
    count = 0

    def sampler(turn: int) -> None:
        nonlocal count
        for _ in range(50):
            with begin:
                token = table.begin_sample()
                count += 1
                number = count
            meet.wait(20)
            answers.append((number, table.publish(token, "cuda:0", number, 1 << 40)))
            meet.wait(20)
            if turn == 0:
                assert table.free[0] == count, "the newest of the four"
            meet.wait(20)

    failed: list[BaseException] = []

    def work(turn: int) -> None:
        try:
            sampler(turn)
        except BaseException as error:
            failed.append(error)
            meet.abort()

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(answers) == 200
    assert all(accepted for number, accepted in answers if number % 4 == 0)


# ---- cost and lifetime ------------------------------------------------------------------------


def test_a_slow_driver_holds_up_nothing(run: Run) -> None:
    seen = run("""
        interval = 0.05
        rows = {}
        for way, call in [("driver", b"cuMemGetInfo"), ("NVML", b"nvmlDeviceGetMemoryInfo_v2")]:
            afresh()
            stub.stub_devices(1)
            nv.nv_devices(1)
            gpu(0, 8, 16)
            card(0, 8, 16, active=way == "driver")
            calls, delay, delay_once = (
                (stub.stub_calls, stub.stub_delay, stub.stub_delay_once) if way == "driver"
                else (nv.nv_calls, nv.nv_delay, nv.nv_delay_once)
            )
            delay(call, -1, 8_000)
            wanted = vs.AlternativeSet([vs.Candidate("cuda:0", GIB), vs.Candidate("cpu", GIB)])
            before = time.monotonic()
            fixed = FixedSource({"cpu": (50 * GIB, 64 * GIB)})
            with vs.watch([fixed, CudaDriverSource()], interval=interval) as monitor:
                time.sleep(0.5)
                asked, elapsed = calls(call), time.monotonic() - before
                picks = {monitor.table.select(wanted)}

                # In the driver for a long time: selects, other threads and the host go on.
                delay_once(call, -1, 1_200_000, 1)
                at = calls(call)
                until(lambda: calls(call) > at)
                version = monitor.table.version
                samples = monitor._feeds[0].taken
                for _ in range(1000):
                    picks.add(monitor.table.select(wanted))
                threads = []
                for _ in range(3):
                    threads.append(threading.Thread(target=monitor.table.select, args=(wanted,)))
                    threads[-1].start()
                    threads[-1].join()
                until(lambda: monitor._feeds[0].taken > samples)
                still = monitor._feeds[1].began is not None and calls(call) == at + 1
                until(lambda: calls(call) > at + 1)
                whole = time.monotonic() - before
                rows[way] = [asked, elapsed / interval + 1, calls(call), whole / interval + 1, still, sorted(picks)]
        print(json.dumps(rows))
    """)
    for way, (asked, most, all_asked, most_of_all, still, picks) in seen.items():
        assert 1 <= asked <= most, way
        assert all_asked <= most_of_all, way
        assert still, f"{way}: all of that happened while the call was waiting"
        assert picks == [0], way


def test_a_refresh_adds_one_query_each(run: Run) -> None:
    seen = run("""
        stub.stub_devices(2)
        card(0, 8, 16, active=True)
        rows = []
        monitor = vs.watch([CudaDriverSource()], interval=0.05)
        rows.append(stub.stub_calls(b"cuMemGetInfo"))
        time.sleep(0.12)
        rows.append(stub.stub_calls(b"cuMemGetInfo"))  # nothing runs
        for _ in range(10):
            monitor.refresh()
        rows.append(stub.stub_calls(b"cuMemGetInfo"))
        begin = time.monotonic()
        with monitor:
            for _ in range(7):
                monitor.refresh()
                time.sleep(0.03)
            rows += [stub.stub_calls(b"cuMemGetInfo") - rows[-1], (time.monotonic() - begin) / 0.05 + 1 + 7]
        closed = stub.stub_calls(b"cuMemGetInfo")
        time.sleep(0.12)
        rows += [stub.stub_calls(b"cuMemGetInfo") - closed, contexts(2), threading.active_count()]
        print(json.dumps(rows))
    """)
    assert seen[:3] == [1, 1, 11]
    assert 7 <= seen[3] <= seen[4]
    assert seen[5:] == [0, [0, 0, [1, 0], 0], 1]


def test_no_context_is_made_where_the_application_has_none(run: Run) -> None:
    seen = run("""
        from cuda.bindings import driver

        stub.stub_devices(4)
        for device in range(4):
            card(device, 8 + device, 16, active=device == 2)
        rows = []
        with vs.watch([CudaDriverSource(nvml=False)], interval=0.01) as monitor:
            table = monitor.table
            def settle():
                before = stub.stub_calls(b"cuDeviceGetCount")
                until(lambda: stub.stub_calls(b"cuDeviceGetCount") >= before + 4)
            settle()
            rows.append([table.known.tolist(), contexts(0)[:2], [verdict(table, "cuda:0")["status"]]])
            stub.stub_activate(0)  # the application begins to use another
            until(lambda: table.known[0])
            stub.cuDevicePrimaryCtxRelease_v2(2)  # and ends with the first, perhaps while it is read
            until(lambda: not table.known[2])
            settle()
            rows.append([table.known.tolist(), contexts(0)[1], numbers(table)["cuda:0"]])
        rows.append([contexts(4)[1:3], stub.stub_contexts_alive()])

        # The application lets go of its context between our question and our use of it.
        state = driver.cuDevicePrimaryCtxGetState
        def gone_at_once(device):
            answer = state(device)
            if int(device) == 0:
                stub.cuDevicePrimaryCtxRelease_v2(0)
            return answer
        driver.cuDevicePrimaryCtxGetState = gone_at_once
        CudaDriverSource(nvml=False).sample()
        rows.append([contexts(4)[2:], stub.stub_contexts_alive()])
        print(json.dumps(rows))
    """)
    assert seen[0] == [[False, False, True, False], [0, 0], ["UNKNOWN"]]
    assert seen[1] == [[True, False, False, False], 0, [8, 16]]
    assert seen[2] == [[0, [1, 0, 0, 0]], 1]
    assert seen[3] == [[[0, 0, 0, 0], 0], 0]


# A monitor with a source that makes contexts where there are none, on three devices of which the first has one.
MAKING = """
def look(prepare=lambda: None, before_close=lambda: None, **options):
    afresh()
    stub.stub_devices(3)
    nv.nv_devices(3)
    for device in range(3):
        card(device, 8, 16, active=device == 0)
        stub.stub_context_cost(device, GIB // 2)
    prepare()
    monitor = vs.watch([CudaDriverSource(create_context=True, **options)])
    for _ in range(3):
        monitor.refresh()
    sources = [verdict(monitor.table, f"cuda:{i}")["source"] for i in range(3)]
    row = [contexts(3), numbers(monitor.table), sources]
    before_close()
    monitor.close()
    return [*row, contexts(3)[2], nv.nv_references()]
"""


def test_contexts_on_request(run: Run) -> None:
    seen = run("print(json.dumps([look(), look(nvml=False)]))", begin=MAKING)
    for made, nodes, sources, after, references in seen:
        assert made == [2, 0, [1, 1, 1], 0], "one each, whatever the number of refreshes"
        assert nodes == {"cuda:0": [8, 16], "cuda:1": [7.5, 16], "cuda:2": [7.5, 16]}
        assert sources == ["cuda-driver"] * 3
        assert (after, references) == ([1, 0, 0], 0)


def test_where_no_context_can_be_made_it_is_as_without(run: Run) -> None:
    seen = run(
        """
        full = lambda: stub.stub_memory(1, GIB // 4, 16 * GIB)
        print(json.dumps([look(full), look(lambda: stub.stub_fault(b"cuDevicePrimaryCtxRetain", 1, 2))]))
        """,
        begin=MAKING,
    )
    for made, nodes, sources, after, references in seen:
        assert made == [1, 0, [1, 0, 1], 0]
        assert nodes == {"cuda:0": [8, 16], "cuda:1": [16, 16], "cuda:2": [7.5, 16]}
        assert sources == ["cuda-driver", "nvml", "cuda-driver"]
        assert (after, references) == ([1, 0, 0], 0)


def test_closing_gives_back_what_it_can(run: Run) -> None:
    seen = run(
        """
        def in_use_and_sick():
            stub.stub_fault(b"cuDevicePrimaryCtxRetain", 2, 2)
            nv.nv_fault(b"nvmlShutdown", -1, 999)

        print(json.dumps({
            "a release fails": look(before_close=lambda: stub.stub_fault(b"cuDevicePrimaryCtxRelease", 1, 999)),
            "another fails": look(before_close=lambda: stub.stub_fault(b"cuDevicePrimaryCtxRelease", 2, 999)),
            "NVML does not shut down": look(in_use_and_sick),
        }))
        """,
        begin=MAKING,
    )
    assert (seen["a release fails"][3], seen["another fails"][3]) == ([1, 1, 0], [1, 0, 1])
    assert seen["NVML does not shut down"][3] == [1, 0, 0]


def test_closing_while_a_device_is_read(run: Run) -> None:
    """What the read takes after the closing has begun is given back too, at the latest when the read ends."""
    seen = run("""
        rows = {}
        for way in ("NVML", "context"):
            afresh()
            stub.stub_devices(3)
            nv.nv_devices(3)
            card(0, 8, 16, active=True)
            source = CudaDriverSource(create_context=way == "context")
            monitor = vs.watch([source], interval=0.02)
            if way == "NVML":  # the device is looked up anew after an error
                call, calls = b"nvmlDeviceGetHandleByUUID", nv.nv_calls
                nv.nv_delay(call, 2, 400_000)
                nv.nv_fault_once(b"nvmlDeviceGetMemoryInfo_v2", 2, 999, 1)
            else:
                call, calls = b"cuDevicePrimaryCtxGetState", stub.stub_calls
                stub.stub_delay(call, 2, 400_000)
            before = calls(call)
            with monitor:
                until(lambda: calls(call) > before)
                time.sleep(0.1)  # well within the call
            until(lambda: threading.active_count() == 1)
            rows[way] = [contexts(3)[2], nv.nv_references(), monitor.table.known.tolist()]
        print(json.dumps(rows))
    """)
    assert seen == {way: [[1, 0, 0], 0, [False] * 3] for way in ("NVML", "context")}


def test_without_init_cuda_until_the_application_initialises(run: Run) -> None:
    seen = run("""
        stub.stub_devices(2)
        stub.stub_activate(0)
        rows = []
        with vs.watch(init_cuda=False, interval=0.01) as monitor:
            table = monitor.table
            rows.append([table.nodes, status(table, "cuda:0"), verdict(table, "cuda:0")["detail"], dict(monitor.errors),
                         status(table, "cpu", 0), stub.stub_calls(b"cuInit")])
            stub.cuInit(0)
            monitor.refresh()
            until(lambda: len(table.nodes) == 3)
            rows.append([table.nodes, numbers(table)["cuda:0"], status(table, "cuda:5"), dict(monitor.errors),
                         stub.stub_calls(b"cuInit")])
        print(json.dumps(rows))
    """)
    (nodes, status, detail, errors, cpu, inits), after = seen
    assert (nodes, status, cpu, inits) == (["cpu"], "UNKNOWN", "COMFORTABLE", 0)
    assert detail == errors["cuda-driver"]
    assert "\n" not in detail
    assert after == [["cpu", "cuda:0", "cuda:1"], [16, 16], "WONT_FIT", {}, 1]


def test_a_device_that_falls_off_the_bus_is_lost_alone(run: Run) -> None:
    seen = run("""
        def look(*faults, active=()):
            afresh()
            stub.stub_devices(3)
            nv.nv_devices(3)
            for device in range(3):
                card(device, 8, 16, active=device in active)
                gpu(device, 8, 16)
            rows = []
            with vs.watch([CudaDriverSource()], interval=60, max_age=600) as monitor:
                def note():
                    rows.append([verdict(monitor.table, f"cuda:{i}", 1) for i in range(3)])
                    pick = vs.AlternativeSet([vs.Candidate(f"cuda:{i}", 99 * GIB) for i in (1, 0, 2)])
                    rows[-1].append(monitor.table.select(pick))
                note()
                for fault in faults:
                    fault(1)
                monitor.refresh()
                note()
                monitor.refresh()
                note()
                for fault in faults:
                    fault(0)
                monitor.refresh()
                note()
            return rows

        def cuda(name, code):
            return lambda on: stub.stub_fault(name, 1, code if on else 0)

        def nvml(name, code):
            return lambda on: nv.nv_fault(name, 1, code if on else 0)

        gone = nvml(b"nvmlDeviceGetMemoryInfo_v2", 15)
        print(json.dumps({
            "NVML says so": look(gone),
            "it wants a reset": look(nvml(b"nvmlDeviceGetMemoryInfo_v2", 16)),
            "the driver's error, and NVML says so": look(cuda(b"cuMemGetInfo", 999), gone, active=(0, 1, 2)),
            "no handle any more": look(cuda(b"cuMemGetInfo", 999), gone, nvml(b"nvmlDeviceGetHandleByUUID", 15),
                                       active=(0, 1, 2)),
            "an Xid, to the driver": look(cuda(b"cuMemGetInfo", 214), active=(0, 1, 2)),
            "its context is dead": look(cuda(b"cuMemGetInfo", 719), active=(1,)),
        }))
    """)
    for case, (before, lost, still, back) in seen.items():
        assert [verdict["status"] for verdict in before[:3]] == ["COMFORTABLE"] * 3, case
        assert before[3] == 0, case
        for row in (lost, still):
            assert [verdict["status"] for verdict in row[:3]] == ["COMFORTABLE", "WONT_FIT", "COMFORTABLE"], case
            assert row[1]["reason"] == "device lost", case
            assert row[1]["detail"], case
            assert row[3] == 1, f"{case}: a device that is lost is no fallback"
        assert [verdict["status"] for verdict in back[:3]] == ["COMFORTABLE"] * 3, case


NO_BINDINGS = "sys.modules['cuda'] = None"
SHADOW = {"cuda.py": "raise SystemExit('the local file cuda.py was run')"}

# Which of the libraries there are, what is run first, files beside the script, what the reason must name.
NOTHING_THERE: dict[str, Any] = {
    "no libcuda": (False, True, "", {}, "libcuda.so.1"),
    "no libcuda, no NVML": (False, False, "", {}, "libcuda.so.1"),
    "no NVML": (True, False, "", {}, ""),
    "no cuda-python": (True, True, NO_BINDINGS, {}, "cuda-python"),
    "cuda.py": (True, True, "", SHADOW, "cuda.py"),
    "nothing at all": (False, False, NO_BINDINGS, SHADOW, "libcuda.so.1"),
}


@pytest.mark.parametrize("case", NOTHING_THERE)
def test_import_and_status_work_without(run: Run, case: str) -> None:
    cuda, nvml, first, files, named = NOTHING_THERE[case]
    begin = "stub.stub_devices(1)" if cuda else ""
    seen = run(
        f"""
        import contextlib, io
        for name in [name for name in sys.modules if name.partition(".")[0] == "cuda"]:
            del sys.modules[name]
        {first}
        {begin}
        from vramsel.cli import main
        out, err = io.StringIO(), io.StringIO()
        def ask(*words):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                return [main(words), out.getvalue(), err.getvalue()]
        rows = [ask("status"), ask("status", "--json"), ask("pick", "cuda:0=1B", "cpu=1B", "--json")]
        with vs.watch() as monitor:
            rows.append([dict(monitor.errors), verdict(monitor.table, "cuda:0"), status(monitor.table, "cpu", 0)])
        print(json.dumps(rows))
        """,
        cuda=cuda,
        nvml=nvml,
        files=files,
    )
    (code, _, err), (json_code, out, _), (pick_code, picked, _), (errors, verdict, cpu) = seen
    assert (code, json_code, pick_code, cpu) == (0, 0, 0, "COMFORTABLE")
    nodes = [row["node"] for row in json.loads(out)["nodes"]]
    if case == "no NVML":  # a device without a context, and nobody to read it
        assert nodes == ["cpu", "cuda:0"]
        assert (verdict["status"], errors, err) == ("UNKNOWN", {}, "")
        assert verdict["detail"].startswith("no active CUDA context")
        assert "NVML" in verdict["detail"] or "nvml" in verdict["detail"]
        assert "\n" not in verdict["detail"]
        return
    assert nodes == ["cpu"]
    reason = errors["cuda-driver"]
    assert named in reason
    assert "\n" not in reason
    assert f"cuda-driver: {reason}\n" == err, "one line"
    assert verdict["detail"] == reason
    absent = not cuda
    assert verdict["status"] == ("WONT_FIT" if absent else "UNKNOWN")
    assert json.loads(picked)["placement"] == ("cpu" if absent else "cuda:0")


def test_a_source_that_hangs_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Errors are logged once per change; that the time goes on is no change."""
    hang = threading.Event()
    source = Played((5, 100), hang)
    with caplog.at_level(logging.WARNING, "vramsel"), vs.watch([source], interval=0.02, max_age=0.1) as monitor:
        until(lambda: not monitor.table.known[0])
        for _ in range(3):
            monitor.refresh()
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        hang.set()
    assert len(lines) == 1, lines


# ---- what hostile readers found -------------------------------------------------------------------


def test_whether_memory_is_the_hosts_is_not_guessed(run: Run) -> None:
    seen = run("""
        rows = []
        for failing in (True, False):
            afresh()
            stub.stub_devices(1)
            card(0, 60, 120, active=True)
            stub.stub_attribute(0, 18, 1)
            if failing:
                stub.stub_fault(b"cuDeviceGetAttribute", 0, 999)
            with vs.watch([host(10, 128), CudaDriverSource()], interval=60, max_age=600) as monitor:
                rows.append(verdict(monitor.table, "cuda:0", 40))
        print(json.dumps(rows))
    """)
    failing, read = seen
    assert (failing["status"], failing["detail"]) == ("UNKNOWN", "cuDeviceGetAttribute: CUDA_ERROR_UNKNOWN (999)")
    assert read["status"] == "WONT_FIT"


def test_a_slow_start_of_one_costs_no_number_of_another(run: Run) -> None:
    seen = run("""
        stub.stub_devices(2)
        nv.nv_devices(2)
        card(0, 1, 16, active=True)
        card(1, 8, 16, active=True)
        stub.stub_delay(b"cuMemGetInfo", 1, 3_500_000)
        began = time.monotonic()
        monitor = vs.watch([host(10, 16), CudaDriverSource()])
        rows = [status(monitor.table, place, 4) for place in ("cpu", "cuda:0", "cuda:1", "cuda:2")]
        rows += [verdict(monitor.table, "cuda:1")["detail"], list(monitor.errors.items()), monitor.table.nodes]
        monitor.close()
        print(json.dumps(rows))
    """)
    assert seen[:4] == ["COMFORTABLE", "WONT_FIT", "UNKNOWN", "WONT_FIT"]
    assert seen[4] == "the driver lists it, and does not answer about it"
    assert seen[5] == [["cuda-driver cuda:1", "does not answer"]]
    assert seen[6] == ["cpu", "cuda:0", "cuda:1"]


def test_devices_of_one_uuid_are_told_apart_by_where_they_are(run: Run) -> None:
    seen = run("""
        from uuid import UUID
        rows = []
        for uuid in (bytes([7] * 16), bytes(16)):
            for known in (True, False):
                afresh()
                stub.stub_devices(2)
                nv.nv_devices(2)
                for device, free in enumerate((10, 3)):
                    card(device, free, 16)
                    gpu(device, free, 16)
                    stub.stub_uuid(device, uuid)
                    if known:
                        nv.nv_uuid(device, f"GPU-{UUID(bytes=uuid)}".encode())
                monitor = vs.watch([CudaDriverSource()])
                rows.append(numbers(monitor.table))
                monitor.close()
        print(json.dumps(rows))
    """)
    assert seen == [{"cuda:0": [10, 16], "cuda:1": [3, 16]}] * 4


def test_a_process_without_descriptors_has_a_driver_all_the_same(run: Run) -> None:
    seen = run(
        """
        import resource
        import cuda.bindings.driver
        from vramsel.sources import cuda_driver
        source = CudaDriverSource()
        low = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
                if len(held) > 5000:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (len(held), low[1]))
        except OSError:
            pass
        sample = source.sample()
        reason = cuda_driver._library_error()
        for one in held:
            os.close(one)
        print(json.dumps([sorted(sample.enumerated), sample.note, reason]))
        """,
        cuda=False,
        nvml=False,
    )
    enumerated, note, reason = seen
    assert (enumerated, reason) == ([], None)
    assert note.startswith("cuInit: ")
