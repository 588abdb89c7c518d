"""The CUDA driver source, through the real cuda-python, on a stub driver that needs no GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from cuda_stub import CudaStub, run_script

GIB = 1 << 30
INACTIVE = "no active CUDA context on this device in this process"

# What every script begins with: `take` samples, in a form that JSON can carry.
BEGIN = """\
import dataclasses, json, sys
from vramsel.sources.cuda_driver import CudaDriverSource
GIB = 1 << 30

def take(**options):
    sample = CudaDriverSource(**{"nvml": False, **options}).sample()
    nodes = {reading.node: dataclasses.asdict(reading) for reading in sample.readings}
    for node in nodes.values():
        del node["began"]
    return {"nodes": nodes, "enumerated": sorted(sample.enumerated), "note": sample.note}
"""

Run = Callable[[str], Any]


@pytest.fixture
def run(cuda_stub: CudaStub) -> Run:
    """Run a script in a process whose CUDA driver is the stub."""
    return lambda script: cuda_stub.run(BEGIN + dedent(script))


def numbers(node: dict[str, Any]) -> tuple[Any, Any, bool, str | None]:
    return node["free"], node["total"], node["lost"], node["reason"]


# ---- reading --------------------------------------------------------------------------------


def test_an_active_device_is_read_and_the_other_gets_no_context(run: Run) -> None:
    seen = run("""
        stub.stub_devices(2)
        stub.stub_activate(0)
        stub.stub_memory(0, 10 * GIB, 24 * GIB)
        sample = take()
        sample["created"] = stub.stub_contexts_created()
        sample["cuCtxCreate"] = stub.stub_calls(b"cuCtxCreate")
        sample["references"] = [stub.stub_references(0), stub.stub_references(1)]
        print(json.dumps(sample))
    """)
    assert list(seen["nodes"]) == ["cuda:0", "cuda:1"]
    assert numbers(seen["nodes"]["cuda:0"]) == (10 * GIB, 24 * GIB, False, None)
    assert numbers(seen["nodes"]["cuda:1"]) == (None, None, False, INACTIVE)
    assert seen["enumerated"] == ["cuda"]
    assert seen["note"] is None
    assert seen["created"] == seen["cuCtxCreate"] == 0
    assert seen["references"] == [1, 0]


def test_the_callers_current_context_stays(run: Run) -> None:
    seen = run("""
        import threading
        from cuda.bindings import driver

        stub.stub_devices(2)
        for device, free in enumerate((8, 3)):
            stub.stub_activate(device)
            stub.stub_memory(device, free * GIB, 16 * GIB)
        driver.cuInit(0)
        _, mine = driver.cuDevicePrimaryCtxRetain(1)
        driver.cuCtxSetCurrent(mine)
        before = [int(mine), stub.stub_depth()]
        here = take()
        after = [int(driver.cuCtxGetCurrent()[1]), stub.stub_depth()]

        elsewhere = []
        def thread():
            elsewhere.extend([take(), int(driver.cuCtxGetCurrent()[1])])
        worker = threading.Thread(target=thread)
        worker.start()
        worker.join()
        print(json.dumps([here, before, after, elsewhere, int(driver.cuCtxGetDevice()[1])]))
    """)
    here, before, after, (there, current_there), device = seen
    assert [numbers(node)[:2] for node in here["nodes"].values()] == [
        (8 * GIB, 16 * GIB),
        (3 * GIB, 16 * GIB),
    ]
    assert after == before
    assert there == here
    assert current_there == 0
    assert device == 1


def test_every_step_is_undone_whichever_fails(run: Run) -> None:
    seen = run("""
        from cuda.bindings import driver

        steps = ["cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuMemGetInfo", "cuCtxPopCurrent",
                 "cuDevicePrimaryCtxRelease"]
        seen = {}
        for fails in [None, *steps]:
            for code in [201, 4711] if fails else [0]:
                stub.stub_reset()
                stub.stub_devices(2)
                stub.stub_activate(0)
                stub.stub_activate(1)
                driver.cuInit(0)
                driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(1)[1])
                ours = stub.stub_calls(b"cuDevicePrimaryCtxRetain")
                if fails:
                    stub.stub_fault(fails.encode(), 0, code)
                sample = take()
                calls = {name: stub.stub_calls(name.encode()) for name in steps}
                calls["cuDevicePrimaryCtxRetain"] -= ours
                seen[f"{fails} {code}"] = {
                    "calls": list(calls.values()),
                    "references": [stub.stub_references(0), stub.stub_references(1)],
                    "depth": stub.stub_depth(),
                    "nodes": sample["nodes"],
                }
        print(json.dumps(seen))
    """)
    # Calls of each step on both devices (device 1 always goes through), references, depth of the stack.
    expected = {
        "None": ([2, 2, 2, 2, 2], [1, 2], 1),
        "cuDevicePrimaryCtxRetain": ([2, 1, 1, 1, 1], [1, 2], 1),
        "cuCtxPushCurrent": ([2, 2, 1, 1, 2], [1, 2], 1),
        "cuMemGetInfo": ([2, 2, 2, 2, 2], [1, 2], 1),
        "cuCtxPopCurrent": ([2, 2, 2, 2, 2], [1, 2], 2),  # the driver refused: nothing can be done
        "cuDevicePrimaryCtxRelease": ([2, 2, 2, 2, 2], [2, 2], 1),  # the same
    }
    assert len(seen) == 11
    for case, got in seen.items():
        fails, code = case.split()
        assert (got["calls"], got["references"], got["depth"]) == expected[fails], case
        assert numbers(got["nodes"]["cuda:1"]) == (16 * GIB, 16 * GIB, False, None), case
        if fails == "None":
            assert numbers(got["nodes"]["cuda:0"]) == (16 * GIB, 16 * GIB, False, None)
            continue
        error = {"201": "CUDA_ERROR_INVALID_CONTEXT (201)", "4711": "unknown CUDA error (4711)"}[code]
        assert numbers(got["nodes"]["cuda:0"]) == (None, None, False, f"{fails}: {error}"), case


def test_a_context_that_another_makes_current_meanwhile_is_theirs(run: Run) -> None:
    seen = run("""
        from cuda.bindings import driver

        stub.stub_devices(2)
        stub.stub_activate(0)
        stub.stub_activate(1)
        driver.cuInit(0)
        _, theirs = driver.cuDevicePrimaryCtxRetain(1)
        query = driver.cuMemGetInfo

        def interrupted():
            driver.cuCtxSetCurrent(theirs)
            return query()

        driver.cuMemGetInfo = interrupted
        sample = take()
        print(json.dumps([sample, int(driver.cuCtxGetDevice()[1]), stub.stub_references(0)]))
    """)
    sample, current_device, references = seen
    assert numbers(sample["nodes"]["cuda:0"]) == (
        None,
        None,
        False,
        "cuMemGetInfo: another context was made current meanwhile",
    )
    assert current_device == 1
    assert references == 1


def test_name_and_uuid(run: Run) -> None:
    seen = run(r"""
        stub.stub_devices(4)
        stub.stub_name(0, b"NVIDIA H200")
        stub.stub_uuid(0, bytes.fromhex("00ff10a0000000000080000102030405"))
        stub.stub_name(1, b"\xff\xfeGPU \xc3\xa9")
        stub.stub_uuid(1, bytes(range(0xf0, 0x100)))
        stub.stub_name(2, b"long " * 40)
        stub.stub_name(3, b"")
        stub.stub_activate(1)
        sample = take()
        sample["asked"] = [stub.stub_calls(b"cuDeviceGetUuid_v2"), stub.stub_calls(b"cuDeviceGetUuid")]
        print(json.dumps(sample))
    """)
    nodes = list(seen["nodes"].values())
    assert nodes[0]["device_name"] == "NVIDIA H200"
    assert nodes[0]["uuid"] == "GPU-00ff10a0-0000-0000-0080-000102030405"
    assert nodes[1]["device_name"] == "\ufffd\ufffdGPU é"
    assert nodes[1]["uuid"] == "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"
    assert numbers(nodes[1]) == (16 * GIB, 16 * GIB, False, None)
    assert nodes[2]["device_name"] == ("long " * 40)[:127].strip()
    assert nodes[3]["device_name"] is None
    assert seen["asked"] == [4, 0]


# ---- errors of one device ---------------------------------------------------------------------


def test_an_error_on_one_device_leaves_the_others(run: Run) -> None:
    seen = run("""
        from cuda.bindings import driver

        names = {int(code): code.name for code in driver.CUresult}
        fatal = [int(code) for code in driver.CUresult
                 if "terminated and relaunched" in " ".join((code.__doc__ or "").split())]
        samples = {}
        for call in ["cuDeviceGet", "cuDevicePrimaryCtxGetState", "cuMemGetInfo"]:
            for code in [*names, 4711]:
                if code == 0:
                    continue
                stub.stub_reset()
                stub.stub_devices(3)
                for device in range(3):
                    stub.stub_activate(device)
                stub.stub_fault(call.encode(), 1, code)
                samples[f"{call} {code}"] = take()
        print(json.dumps([names, fatal, samples]))
    """)
    names, documented, samples = seen
    fatal = {214, 220, 226, 700, 702, 710, *range(714, 720), 721, 810, 911, *documented}
    assert len(samples) == 3 * len(names)
    for case, sample in samples.items():
        call, code = case.split()
        text = f"{names[code]} ({code})" if code in names else f"unknown CUDA error ({code})"
        assert sample["enumerated"] == ["cuda"], case
        good, bad, last = sample["nodes"].values()
        assert numbers(good) == numbers(last) == (16 * GIB, 16 * GIB, False, None), case
        assert numbers(bad) == (None, None, int(code) in fatal, f"{call}: {text}"), case


def test_an_unknown_error_code_however_the_bindings_put_it(run: Run) -> None:
    seen = run("""
        from cuda.bindings import driver

        stub.stub_devices(1)
        stub.stub_activate(0)
        nodes = []
        for error in (ValueError("4711 is not a valid CUresult"), KeyError(4711)):
            def failing():
                raise error
            driver.cuMemGetInfo = failing
            nodes.append(take()["nodes"]["cuda:0"])
        print(json.dumps([nodes, stub.stub_references(0), stub.stub_depth()]))
    """)
    nodes, references, depth = seen
    assert [numbers(node) for node in nodes] == 2 * [(None, None, False, "cuMemGetInfo: unknown CUDA error (4711)")]
    assert (references, depth) == (1, 0)


def test_the_first_of_several_errors_is_the_reason(run: Run) -> None:
    node = run("""
        stub.stub_devices(1)
        stub.stub_activate(0)
        stub.stub_fault(b"cuMemGetInfo", -1, 719)
        stub.stub_fault(b"cuCtxPopCurrent", -1, 4711)
        stub.stub_fault(b"cuDevicePrimaryCtxRelease", -1, 201)
        print(json.dumps(take()["nodes"]["cuda:0"]))
    """)
    assert numbers(node) == (None, None, True, "cuMemGetInfo: CUDA_ERROR_LAUNCH_FAILED (719)")


def test_a_device_without_name_or_uuid_is_still_read(run: Run) -> None:
    seen = run("""
        samples = []
        for code in (999, 719, 4711):
            stub.stub_reset()
            stub.stub_devices(1)
            stub.stub_activate(0)
            for name in (b"cuDeviceGetName", b"cuDeviceGetUuid", b"cuDeviceGetUuid_v2"):
                stub.stub_fault(name, -1, code)
            samples.append(take()["nodes"]["cuda:0"])
        print(json.dumps(samples))
    """)
    for node in seen:
        assert numbers(node) == (16 * GIB, 16 * GIB, False, None)
        assert node["device_name"] is node["uuid"] is None


# ---- no list of devices -----------------------------------------------------------------------


def test_a_driver_that_does_not_start(run: Run) -> None:
    seen = run("""
        samples = {}
        for call in ("cuInit", "cuDeviceGetCount"):
            for code in (3, 100, 803, 999, 4711):
                stub.stub_reset()
                stub.stub_devices(2)
                stub.stub_fault(call.encode(), -1, code)
                samples[f"{call} {code}"] = [take(), stub.stub_calls(b"cuDeviceGet")]
        print(json.dumps(samples))
    """)
    names = {
        "3": "CUDA_ERROR_NOT_INITIALIZED (3)",
        "803": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
        "999": "CUDA_ERROR_UNKNOWN (999)",
        "4711": "unknown CUDA error (4711)",
    }
    for case, (sample, asked) in seen.items():
        call, code = case.split()
        assert sample["nodes"] == {}, case
        assert asked == 0, case
        if code == "100":
            assert sample["enumerated"] == ["cuda"], case
            assert sample["note"] == (f"the NVIDIA driver lists no device: {call}: CUDA_ERROR_NO_DEVICE (100)")
        else:
            assert sample["enumerated"] == [], case
            assert sample["note"] == f"{call}: {names[code]}"


def test_a_driver_without_devices(run: Run) -> None:
    seen = run("print(json.dumps(take()))")
    assert seen == {"nodes": {}, "enumerated": ["cuda"], "note": "the NVIDIA driver lists no device"}


def test_without_init_nothing_is_initialised(run: Run) -> None:
    seen = run("""
        stub.stub_devices(1)
        stub.stub_activate(0)
        before = [take(init=False), stub.stub_calls(b"cuInit")]
        stub.cuInit(0)  # the application does
        after = [take(init=False), stub.stub_calls(b"cuInit")]
        print(json.dumps([before, after]))
    """)
    (before, calls_before), (after, calls_after) = seen
    assert before == {
        "nodes": {},
        "enumerated": [],
        "note": "nobody has initialised CUDA in this process (init=False, init_cuda=False)",
    }
    assert numbers(after["nodes"]["cuda:0"]) == (16 * GIB, 16 * GIB, False, None)
    assert (calls_before, calls_after) == (0, 1)


@pytest.mark.parametrize("missing", ["cuInit", "cuDeviceGetCount"])
def test_a_driver_that_lacks_a_function_to_list_devices(run: Run, missing: str) -> None:
    seen = run(f"""
        stub.stub_devices(1)
        stub.stub_hide(b"{missing}")
        print(json.dumps(take()))
    """)
    assert (seen["nodes"], seen["enumerated"]) == ({}, [])
    assert seen["note"].startswith(f"{missing}: ")
    assert "not found" in seen["note"]


@pytest.mark.parametrize("missing", ["cuMemGetInfo", "cuDevicePrimaryCtxGetState"])
def test_a_driver_that_lacks_a_function_to_read_a_device(run: Run, missing: str) -> None:
    seen = run(f"""
        stub.stub_devices(2)
        stub.stub_activate(0)
        stub.stub_activate(1)
        stub.stub_hide(b"{missing}")
        sample = take()
        sample["references"] = [stub.stub_references(0), stub.stub_references(1)]
        sample["depth"] = stub.stub_depth()
        print(json.dumps(sample))
    """)
    assert seen["enumerated"] == ["cuda"]
    assert len(seen["nodes"]) == 2
    for node in seen["nodes"].values():
        assert (node["free"], node["total"], node["lost"]) == (None, None, False)
        assert node["reason"].startswith(f"{missing}: ")
        assert "not found" in node["reason"]
        assert node["device_name"].startswith("Stub GPU")
    assert (seen["references"], seen["depth"]) == ([1, 1], 0)


def test_a_driver_that_lacks_name_and_uuid(run: Run) -> None:
    node = run("""
        stub.stub_devices(1)
        stub.stub_activate(0)
        for name in (b"cuDeviceGetName", b"cuDeviceGetUuid", b"cuDeviceGetUuid_v2"):
            stub.stub_hide(name)
        print(json.dumps(take()["nodes"]["cuda:0"]))
    """)
    assert numbers(node) == (16 * GIB, 16 * GIB, False, None)
    assert node["device_name"] is node["uuid"] is None


# ---- no driver, no cuda-python ----------------------------------------------------------------

SHADOW = {"cuda.py": "raise SystemExit('the local file cuda.py was run')"}

# Some releases of cuda-python put the package into sys.modules when Python starts.
FORGET = """
for name in [name for name in sys.modules if name.partition(".")[0] == "cuda"]:
    del sys.modules[name]
"""

# Ways to be without cuda-python: what to run first, files beside the script, what the note must name.
WITHOUT_CUDA_PYTHON = {
    "not installed": ("sys.modules['cuda'] = None", {}, 'install "cuda-python'),
    "import refused": (
        """
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cuda":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
""",
        {},
        "No module named 'cuda'",
    ),
    "hidden by a file": ("", SHADOW, "cuda.py"),
    "hidden by a stand-in": ("sys.modules['cuda'] = type(sys)('cuda')", {}, "not a package"),
}


@pytest.mark.parametrize("way", WITHOUT_CUDA_PYTHON)
def test_a_driver_but_no_cuda_python(cuda_stub: CudaStub, way: str) -> None:
    first, files, named = WITHOUT_CUDA_PYTHON[way]
    seen = cuda_stub.run(f"{BEGIN}\n{FORGET}\n{first}\nprint(json.dumps(take()))", files=files)
    assert (seen["nodes"], seen["enumerated"]) == ({}, [])
    assert seen["note"].startswith("cuda-python could not be imported: ")
    assert named in seen["note"]
    assert "\n" not in seen["note"]


@pytest.mark.parametrize("way", [None, "not installed", "hidden by a file"])
def test_no_driver_means_no_device(tmp_path: Path, way: str | None) -> None:
    # A file that is no library hides the driver of a machine that has one.
    (tmp_path / "libcuda.so.1").write_text("not a library")
    first, files, _ = WITHOUT_CUDA_PYTHON[way] if way else ("", {}, "")
    seen = run_script(
        f"{BEGIN}\n{FORGET}\n{first}\nprint(json.dumps([take(), take(init=False)]))",
        library_dir=tmp_path,
        files=files,
    )
    for sample in seen:
        assert (sample["nodes"], sample["enumerated"]) == ({}, ["cuda"])
        assert sample["note"].startswith("no NVIDIA driver: ")
        assert "\n" not in sample["note"]


def test_no_libcuda_on_this_machine() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        seen = run_script(f"{BEGIN}\nprint(json.dumps(take()))")
        assert (seen["nodes"], seen["enumerated"]) == ({}, ["cuda"])
        assert seen["note"].startswith("no NVIDIA driver: ")
    else:
        pytest.skip("this machine has a libcuda.so.1")


def test_importing_loads_no_cuda(cuda_stub: CudaStub) -> None:
    # Not through `run`: the stub must be loadable, and not loaded.
    seen = run_script(
        """
        import json, sys
        before = set(sys.modules)
        import vramsel.sources.cuda_driver
        with open("/proc/self/maps") as maps:
            libraries = [line for line in maps if "libcuda" in line]
        modules = [name for name in set(sys.modules) - before if name.partition(".")[0] == "cuda"]
        print(json.dumps([modules, libraries]))
        """,
        library_dir=cuda_stub.directory,
    )
    assert seen == [[], []]
