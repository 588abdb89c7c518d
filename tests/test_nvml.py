"""NVML: numbers of devices without a context, and what must not pass for a number."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from cuda_stub import CudaStub
from stand_ins import BEGIN

GIB = 1 << 30
ONES = 2**64 - 1

Run = Callable[..., Any]


@pytest.fixture
def run(cuda_stub: CudaStub) -> Run:
    """Run a script in a process whose CUDA driver and NVML are the stubs."""
    return lambda script, **options: cuda_stub.run(BEGIN + dedent(script), **options)


# ---- no signal --------------------------------------------------------------------------------

# What NVML answers when it is asked for memory, and whether the device is lost then.
CODES = {
    2: (False, "Invalid Argument"),
    3: (False, "Not Supported"),
    4: (False, "Insufficient Permissions"),
    6: (False, "Not Found"),
    9: (False, "Driver Not Loaded"),
    10: (False, "Timeout"),
    13: (False, "Function Not Found"),
    15: (True, "GPU is lost"),
    16: (True, "GPU requires reset"),
    17: (False, "GPU access blocked by the operating system"),
    18: (False, "Driver/library version mismatch"),
    999: (False, "Unknown Error"),
    4711: (False, "Unknown Error"),
}


@pytest.mark.parametrize("source", ["CudaDriverSource", "NvmlSource"])
def test_an_error_of_one_device_is_no_signal(run: Run, source: str) -> None:
    seen = run(f"""
        rows = {{}}
        for code in {list(CODES)!r}:
            afresh()
            stub.stub_devices(3)
            nv.nv_devices(3)
            for device in range(3):
                gpu(device, 8 + device, 16)
            uuids = [f"GPU-00000000-0000-0000-0000-00000000000{{n}}" for n in (1, 2, 3)]
            sources = [CudaDriverSource() if "{source}" == "CudaDriverSource" else
                       NvmlSource({{uuid: [f"cuda:{{i}}"] for i, uuid in enumerate(uuids)}})]
            monitor = vs.watch(sources)
            before = list(numbers(monitor.table).values())
            nv.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", 1, code)
            monitor.refresh()
            during = list(numbers(monitor.table).values())
            there = verdict(monitor.table, "cuda:1", 1)
            nv.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", 1, 0)
            monitor.refresh()
            after = list(numbers(monitor.table).values())
            monitor.close()
            rows[code] = [before, during, there, after, dict(monitor.errors), nv.nv_references(), contexts(3)]
        print(json.dumps(rows))
    """)
    good = [[8, 16], [9, 16], [10, 16]]
    for code, (lost, text) in CODES.items():
        before, during, verdict, after, errors, references, contexts = seen[str(code)]
        assert before == after == good, code
        assert during == [[8, 16], None, [10, 16]], code
        assert verdict["status"] == ("WONT_FIT" if lost else "UNKNOWN"), code
        assert text in verdict["detail"], code
        assert "\n" not in verdict["detail"], code
        assert (errors, references, contexts) == ({}, 0, [0, 0, [0, 0, 0], 0]), code


# Total, reserved, free and used in bytes, and what is to be published of them. The driver says 16 GiB.
NUMBERS: list[tuple[int, int, int, int, list[float] | None]] = [
    (16 * GIB, GIB, 8 * GIB, 7 * GIB, [8, 16]),
    (16 * GIB, 0, 0, 16 * GIB, [0, 16]),  # full
    (16 * GIB, GIB, 9 * GIB, 9 * GIB, [9, 16]),  # they do not add up; free is as reported
    (0, 0, 0, 0, None),
    (ONES, ONES, ONES, ONES, None),
    (ONES, 0, 8 * GIB, 8 * GIB, None),
    (16 * GIB, ONES, 8 * GIB, 8 * GIB, None),
    (16 * GIB, 0, ONES, 8 * GIB, None),
    (16 * GIB, 0, 8 * GIB, ONES, None),
    (16 * GIB, 0, 8 * GIB, 2**64 - GIB, None),
    (16 * GIB, 0, 8 * GIB, 2**64 - 2, None),
    (16 * GIB, 0, 2**64 - 2, 0, None),
    (16 * GIB, 2**64 - 7, 8 * GIB, 8 * GIB, None),
    (16 * GIB, 0, 8 * GIB, 17 * GIB, None),  # used above total
    (0, 0, 8 * GIB, 0, None),
    (16 * GIB, 0, 16 * GIB + GIB // 8, 0, [16, 16]),  # a rounding
    (16 * GIB, 0, 20 * GIB, 0, None),
    (16 * GIB + GIB // 8, 0, 8 * GIB, 8 * GIB, [8, 16.125]),  # the total is a little another than the driver's
    (16 * GIB - GIB // 8, 0, 8 * GIB, 7 * GIB, [8, 15.875]),
    (24 * GIB, 0, 8 * GIB, 16 * GIB, None),  # another device's
    (10 * GIB, 0, 8 * GIB, 2 * GIB, None),
]


def test_numbers_that_cannot_be_are_no_signal(run: Run) -> None:
    seen = run(f"""
        import contextlib, io
        from vramsel.cli import main

        rows = []
        for total, reserved, free, used, _ in {NUMBERS!r}:
            afresh()
            stub.stub_devices(2)
            nv.nv_devices(2)
            nv.nv_memory(0, total, reserved, free, used)
            gpu(1, 8, 16)
            with vs.watch([CudaDriverSource()]) as monitor:
                rows.append([numbers(monitor.table), verdict(monitor.table, "cuda:0", 1)])
            with vs.watch([NvmlSource()]) as monitor:
                rows[-1].append(list(numbers(monitor.table).values()))
                rows[-1].append([node.reason for node in monitor.table._book.nodes])
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                main(["status"])
                main(["pick", "cuda:0=1GiB", "cuda:1=1GiB", "--explain", "--json"])
            rows[-1].append(printed.getvalue())
        print(json.dumps(rows))
    """)
    for numbers, (nodes, verdict, alone, reasons, printed) in zip(NUMBERS, seen, strict=True):
        *_, expected = numbers
        assert nodes == {"cuda:0": expected, "cuda:1": [8, 16]}, numbers
        if numbers[0] in (24 * GIB, 10 * GIB):  # alone, NVML has nothing to compare with
            expected = [numbers[2] / GIB, numbers[0] / GIB]
        assert alone == [expected, [8, 16]], numbers
        if nodes["cuda:0"] is None:
            assert (verdict["status"], verdict["available"], verdict["total"]) == ("UNKNOWN", None, None), numbers
            assert verdict["detail"], numbers
        for text in (printed, str(verdict), str(reasons)):
            assert "184467440" not in text, numbers
            assert "EiB" not in text, numbers


def test_a_library_that_does_not_start(run: Run) -> None:
    """Each time it is tried anew; without that, once in a while only, since failing may take long."""
    seen = run("""
        import vramsel.sources.nvml as module
        patience, module._RETRY = module._RETRY, 0.0
        rows = {}
        stub.stub_devices(2)
        card(0, 8, 16, active=True)
        nv.nv_devices(2)
        gpu(1, 9, 16)
        monitor = vs.watch([CudaDriverSource(), NvmlSource()])
        assert monitor.table.known.tolist()[:2] == [True, True], numbers(monitor.table)
        monitor.close()
        for code in (4, 9, 12, 18, 999):
            nv.nv_fault(b"nvmlInit_v2", -1, code)
            nv.nv_fault(b"nvmlInitWithFlags", -1, code)
            monitor = vs.watch([CudaDriverSource(), NvmlSource()])
            rows[code] = [numbers(monitor.table), verdict(monitor.table, "cuda:1"), dict(monitor.errors)]
            nv.nv_fault(b"nvmlInit_v2", -1, 0)
            nv.nv_fault(b"nvmlInitWithFlags", -1, 0)
            monitor.refresh()
            rows[code] += [list(numbers(monitor.table).values()), dict(monitor.errors)]
            monitor.close()
            rows[code].append(nv.nv_references())
        module._RETRY = patience
        nv.nv_fault(b"nvmlInit_v2", -1, 9)
        before, begin = nv.nv_calls(b"nvmlInit_v2"), time.monotonic()
        monitor = vs.watch([CudaDriverSource(), NvmlSource()])
        for _ in range(20):
            monitor.refresh()
        tries = nv.nv_calls(b"nvmlInit_v2") - before, (time.monotonic() - begin) / patience + 1
        print(json.dumps([rows, tries]))
    """)
    rows, (tries, most) = seen
    assert 1 <= tries <= most
    texts = {
        "4": "Insufficient Permissions",
        "9": "Driver Not Loaded",
        "12": "NVML Shared Library Not Found",
        "18": "Driver/library version mismatch",
        "999": "Unknown Error",
    }
    for code, (nodes, verdict, errors, after, errors_after, references) in rows.items():
        assert nodes == {"cuda:0": [8, 16], "cuda:1": None}, code
        assert verdict["status"] == "UNKNOWN", code
        assert texts[code] in verdict["detail"], code
        assert texts[code] in errors["nvml"], code
        assert "\n" not in errors["nvml"], code
        assert after == [[8, 16], [9, 16], [16, 16], [9, 16]], code
        assert (errors_after, references) == ({}, 0), code


@pytest.mark.parametrize("missing", ["all of it", "one function"])
def test_a_library_or_a_function_that_is_not_there(run: Run, missing: str) -> None:
    alone = missing == "all of it"
    seen = run(
        f"""
        stub.stub_devices(2)
        card(0, 8, 16, active=True)
        if not {alone}:
            from cuda.bindings import nvml
            nv.nv_devices(2)
            # What the bindings raise where the library lacks the function.
            nvml.device_get_memory_info_v2 = nvml.device_get_fan_speed
        with vs.watch([CudaDriverSource(), NvmlSource()]) as monitor:
            monitor.refresh()
            table = monitor.table
            print(json.dumps([numbers(table), verdict(table, "cuda:1"), dict(monitor.errors)]))
        """,
        nvml=not alone,
    )
    nodes, verdict, errors = seen
    assert nodes["cuda:0"] == [8, 16]
    assert nodes["cuda:1"] is None
    assert verdict["status"] == "UNKNOWN"
    assert "nvml" in verdict["detail"].partition("and ")[2].lower(), "which library it is"
    assert "\n" not in verdict["detail"]
    if alone:
        assert "\n" not in errors["nvml"]
    else:
        assert [number for node, number in nodes.items() if node.startswith("GPU-")] == [None, None]


# ---- which device is it -----------------------------------------------------------------------


def test_every_device_under_its_uuid(run: Run) -> None:
    """NVML lists what the mask hides, in an order of its own; slices in the place of what they divide."""
    seen = run(
        """
        nv.nv_devices(4)
        for device, (free, total) in enumerate(((31, 32), (9, 10), (60, 80), (8, 16))):
            gpu(device, free, total)
            nv.nv_uuid(device, f"GPU-{device}".encode())
        nv.nv_mig(2, 2)
        for index, (free, total) in enumerate(((7, 10), (3, 20))):
            nv.nv_mig_uuid(2, index, f"MIG-{index}".encode())
            nv.nv_mig_memory(2, index, total * GIB, 0, free * GIB, (total - free) * GIB)
        nv.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", nv.nv_slice(2, 1), 3)
        rows = []
        places = {"GPU-1": ["cuda:0"], "MIG-0": ["cuda:1", "vulkan:0"], "GPU-none": ["cuda:9"]}
        with vs.watch([NvmlSource(places)]) as monitor:
            table = monitor.table
            rows.append(numbers(table))
            rows.append([verdict(table, place)["node"] for place in ("cuda:0", "cuda:1", "vulkan:0", "cuda:9")])
            rows.append([status(table, place, 8) for place in ("cuda:0", "cuda:1", "vulkan:0", "cuda:9")])
            nv.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", nv.nv_slice(2, 1), 0)
            nv.nv_mig(2, 0)  # it is whole again
            monitor.refresh()
            rows.append(numbers(table))
            nv.nv_mig(1, 1)  # and another is divided, which had a placement
            monitor.refresh()
            rows.append([numbers(table), status(table, "cuda:0", 1)])
        print(json.dumps(rows))
        """,
        cuda=False,
    )
    assert seen[0] == {"GPU-0": [31, 32], "GPU-1": [9, 10], "MIG-0": [7, 10], "MIG-1": None, "GPU-3": [8, 16]}
    assert seen[1] == ["GPU-1", "MIG-0", "MIG-0", None]
    assert seen[2] == ["TIGHT", "WONT_FIT", "WONT_FIT", "UNKNOWN"]
    assert seen[3]["GPU-2"] == [60, 80]
    assert seen[3]["MIG-0"] is seen[3]["MIG-1"] is None
    divided, status = seen[4]
    assert divided["GPU-1"] is None, "what is divided has no memory to give"
    assert divided["MIG-00000000-0000-0000-0000-000000000201"] == [2, 2]
    assert status == "UNKNOWN"


def test_names_and_uuids_in_every_form(run: Run) -> None:
    seen = run(
        r"""
        from cuda.bindings import nvml
        rows = []
        get_uuid, get_name = nvml.device_get_uuid, nvml.device_get_name
        for form in ("as they are", "bytes", "bytes with a NUL"):
            afresh_nv = nv.nv_reset()
            nv.nv_devices(3)
            nv.nv_name(1, b"\xff\xfeGPU \xc3\xa9")
            nv.nv_fault(b"nvmlDeviceGetName", 2, 999)
            if form != "as they are":
                end = b"" if form == "bytes" else b"\0\0"
                nvml.device_get_uuid = lambda handle: get_uuid(handle).encode() + end
                nvml.device_get_name = lambda handle: b"\xff\xfeGPU" + end
            uuid = "GPU-00000000-0000-0000-0000-000000000001"
            with vs.watch([NvmlSource({uuid: ["cuda:0"]})]) as monitor:
                nodes = monitor.table._book.nodes
                rows.append([numbers(monitor.table), [node.uuid for node in nodes], status(monitor.table, "cuda:0"),
                             [node.device_name for node in nodes], dict(monitor.errors)])
        print(json.dumps(rows))
        """,
        cuda=False,
    )
    uuids = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (1, 2, 3)]
    for nodes, names, status, _, errors in seen:
        assert nodes == {uuid: [16, 16] for uuid in uuids}
        assert names == uuids
        assert (status, errors) == ("COMFORTABLE", {})
    assert seen[0][3][0] == "Stub GPU 0"
    assert seen[0][3][2] is None
    assert seen[1][3] == seen[2][3] == ["\ufffd\ufffdGPU"] * 3


def test_a_device_is_lost_and_comes_back(run: Run) -> None:
    seen = run(
        """
        rows = {}
        for call in (b"nvmlDeviceGetMemoryInfo_v2", b"nvmlDeviceGetHandleByIndex_v2", b"nvmlDeviceGetUUID"):
            nv.nv_reset()
            nv.nv_devices(3)
            for device in range(3):
                nv.nv_uuid(device, f"GPU-{device}".encode())
            monitor = vs.watch([NvmlSource({f"GPU-{device}": [f"cuda:{device}"] for device in range(3)})])
            found = []
            for code in (0, 15, 999, 0, 16, 0):
                nv.nv_fault(call, 1, code)
                monitor.refresh()
                found.append([status(monitor.table, f"cuda:{device}") for device in range(3)])
            monitor.close()
            nv.nv_fault(call, 1, 15)  # and one that is lost from the first
            first = vs.watch([NvmlSource({f"GPU-{device}": [f"cuda:{device}"] for device in range(3)})])
            found.append([status(first.table, f"cuda:{device}") for device in (0, 2)])
            first.close()
            rows[call.decode()] = [found, dict(first.errors)]
        print(json.dumps(rows))
        """,
        cuda=False,
    )
    for call, (found, errors) in seen.items():
        middle = [row[1] for row in found[:-1]]
        # Lost is lost: an error that says less does not bring it back.
        assert middle == ["COMFORTABLE", "WONT_FIT", "WONT_FIT", "COMFORTABLE", "WONT_FIT", "COMFORTABLE"], call
        assert all(row[0] == row[-1] == "COMFORTABLE" for row in found), call
        assert list(errors) in ([], ["nvml"]), call


# ---- lifetime ---------------------------------------------------------------------------------


def test_one_init_for_many_refreshes_and_another_user_keeps_theirs(run: Run) -> None:
    seen = run("""
        from cuda.bindings import nvml

        def theirs():
            try:
                return nvml.device_get_count_v2()
            except nvml.NvmlError as error:
                return str(error)

        stub.stub_devices(2)
        nv.nv_devices(2)
        rows = []
        def note(*more):
            rows.append([nv.nv_inits(), nv.nv_references(), *more])
        one, two = vs.watch([CudaDriverSource(), NvmlSource()]), vs.watch([CudaDriverSource()])
        for _ in range(100):
            one.refresh()
        two.refresh()
        note()
        one.close()
        one.close()
        note(numbers(two.table)["cuda:0"])
        two.refresh()
        two.close()
        note()

        nvml.init_v2()  # another user in this process
        note(theirs())
        with vs.watch([NvmlSource(), CudaDriverSource()], interval=0.01) as monitor:
            before = nv.nv_calls(b"nvmlDeviceGetMemoryInfo_v2")
            until(lambda: nv.nv_calls(b"nvmlDeviceGetMemoryInfo_v2") >= before + 20)
            note(theirs())
        note(theirs())
        with vs.watch([NvmlSource()], interval=0.01) as monitor:
            nvml.shutdown()  # they leave first
            monitor.refresh()
            note(numbers(monitor.table)["GPU-00000000-0000-0000-0000-000000000001"], theirs())
        note(theirs())
        print(json.dumps(rows))
    """)
    gone = "Uninitialized"
    assert seen[:3] == [[1, 1], [1, 1, [16, 16]], [1, 0]]
    assert seen[3:6] == [[2, 1, 2], [3, 2, 2], [3, 1, 2]]
    assert seen[6:] == [[4, 1, [16, 16], 2], [4, 0, gone]]


def test_somebody_shuts_nvml_down_once_too_often(run: Run) -> None:
    seen = run("""
        from cuda.bindings import nvml
        stub.stub_devices(2)
        nv.nv_devices(2)
        rows = []
        monitor = vs.watch([CudaDriverSource(), NvmlSource()])
        for _ in range(3):
            nvml.shutdown()  # ours
            assert nv.nv_references() == 0
            monitor.refresh()
            rows.append([list(numbers(monitor.table).values()), dict(monitor.errors)])
        references = nv.nv_references()
        nvml.shutdown()
        monitor.close()  # nothing to shut down
        print(json.dumps([rows, references, nv.nv_references(), nv.nv_inits()]))
    """)
    rows, references, after, inits = seen
    assert rows == [[[[16, 16]] * 4, {}]] * 3
    assert references == 1, "two users of ours, and one initialisation"
    assert after == 0
    assert inits == 4


def test_two_users_that_find_it_shut_down_initialise_it_once(run: Run) -> None:
    """The second one's call failed before the first had it initialised anew."""
    seen = run(
        """
        from cuda.bindings import nvml
        nv.nv_devices(1)
        sources = [NvmlSource(), NvmlSource()]
        for source in sources:
            source.sample()
        nvml.shutdown()
        count = nvml.device_get_count_v2
        failed = threading.Event()

        def late():
            try:
                return count()
            except nvml.NvmlError:
                failed.set()
                until(lambda: nv.nv_inits() == 2)
                raise

        nvml.device_get_count_v2 = lambda: late() if threading.current_thread() is thread else count()
        found = []
        thread = threading.Thread(target=lambda: found.append(len(sources[1].sample().readings)))
        thread.start()
        assert failed.wait(20)
        found.append(len(sources[0].sample().readings))
        thread.join()
        row = [found, nv.nv_inits(), nv.nv_references()]
        for source in sources:
            source.close()
        print(json.dumps([*row, nv.nv_references()]))
        """,
        cuda=False,
    )
    assert seen == [[1, 1], 2, 1, 0]


def test_sources_that_nobody_closes(run: Run) -> None:
    """What is collected lets go too; a source that stays keeps what it has."""
    seen = run(
        """
        import gc
        nv.nv_devices(1)
        keeps = NvmlSource()
        keeps.sample()
        for _ in range(20):
            NvmlSource().sample()
        gc.collect()
        rows = [nv.nv_inits(), nv.nv_references(), len(keeps.sample().readings)]
        keeps.close()
        rows.append(nv.nv_references())
        print(json.dumps(rows))
        """,
        cuda=False,
    )
    assert seen == [1, 1, 1, 0]


def test_a_failing_init_is_not_tried_all_the_time(run: Run) -> None:
    seen = run(
        """
        nv.nv_devices(1)
        nv.nv_fault(b"nvmlInit_v2", -1, 9)
        import vramsel.sources.nvml as module
        module._RETRY = 600.0
        notes = {source.sample().note for source in [NvmlSource(), NvmlSource()] for _ in range(20)}
        print(json.dumps([sorted(notes), nv.nv_calls(b"nvmlInit_v2")]))
        """,
        cuda=False,
    )
    notes, calls = seen
    assert (len(notes), calls) == (1, 1)


def test_the_instances_of_a_lost_device_are_lost(run: Run) -> None:
    seen = run(
        """
        nv.nv_devices(2)
        nv.nv_mig(1, 2)
        for i in range(2):
            nv.nv_mig_uuid(1, i, f"MIG-{i}".encode())
            nv.nv_mig_memory(1, i, 8 * GIB, 0, 6 * GIB, 2 * GIB)
        monitor = vs.watch([NvmlSource({"MIG-1": ["cuda:0"]})])
        rows = [status(monitor.table, "cuda:0")]
        nv.nv_fault(b"nvmlDeviceGetHandleByIndex_v2", 1, 15)
        monitor.refresh()
        rows += [status(monitor.table, "cuda:0"), sum(monitor.table._columns()[4].tolist())]
        nv.nv_fault(b"nvmlDeviceGetHandleByIndex_v2", 1, 0)
        monitor.refresh()
        print(json.dumps([*rows, status(monitor.table, "cuda:0")]))
        """,
        cuda=False,
    )
    assert seen == ["COMFORTABLE", "WONT_FIT", 2, "COMFORTABLE"]


def test_an_init_that_hangs_holds_up_nobody_who_leaves(run: Run) -> None:
    seen = run(
        """
        nv.nv_devices(1)
        nv.nv_delay(b"nvmlInit_v2", -1, 1_500_000)
        other = NvmlSource()
        hung = threading.Thread(target=NvmlSource().sample)
        hung.start()
        until(lambda: nv.nv_calls(b"nvmlInit_v2") == 1)
        other.close()
        del other
        print(json.dumps(hung.is_alive()))
        """,
        cuda=False,
    )
    assert seen is True
