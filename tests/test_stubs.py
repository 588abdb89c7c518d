"""The stub driver and the stub NVML behave as the real ones, through the real cuda-python."""

from __future__ import annotations

import re
import runpy

import pytest
from cuda_stub import CONTROLS, CUDA, NVML, SOURCES, CudaStub

GIB = 1 << 30
ALL_ONES = 2**64 - 1

# What every script begins with.
BEGIN = """\
import json, os
from cuda.bindings import driver, nvml
GIB = 1 << 30

def code(answer):
    return int(answer[0])

def value(answer):
    assert code(answer) == 0, answer
    return answer[1]

def status(function, *arguments):
    try:
        function(*arguments)
    except nvml.NvmlError as error:
        return int(error.status)
    return 0

def in_child(function):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(os.read(read, 4096))
"""


def test_every_control_has_argument_types() -> None:
    listed = runpy.run_path(str(CONTROLS))
    for soname, prefix, name in ((CUDA, "stub", "CUDA_CONTROLS"), (NVML, "nv", "NVML_CONTROLS")):
        defined = re.findall(rf"^\w+ ({prefix}_\w+)\(([^)]*)\)", SOURCES[soname].read_text(), re.MULTILINE)
        counts = {control: 0 if taken == "void" else taken.count(",") + 1 for control, taken in defined}
        assert {control: len(types) for control, types in listed[name].items()} == counts


def test_scripts_find_the_libraries_asked_for(cuda_stub: CudaStub) -> None:
    script = """
        import ctypes, json, os
        with open("/proc/self/maps") as maps:
            loaded = sorted({line.split("/")[-1].strip() for line in maps if "libcuda" in line or "nvidia-ml" in line})
        found = []
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            try:
                ctypes.CDLL(name)
            except OSError:
                continue
            found.append(name)
        variables = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HOME")]
        print(json.dumps([loaded, found, "stub" in globals(), variables]))
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HOME"):
            patch.setenv(name, "1")
        both = cuda_stub.run(script)
        cuda = cuda_stub.run(script, nvml=False, env={"CUDA_VISIBLE_DEVICES": "", "HOME": None})
        only_nvml = cuda_stub.run(script, cuda=False)
        neither = cuda_stub.run(script, cuda=False, nvml=False)
    assert both == [[CUDA], [CUDA, NVML], True, [None, None, "1"]]
    assert cuda == [[CUDA], [CUDA], True, ["", None, None]]
    assert only_nvml == [[], [NVML], False, [None, None, "1"]]
    assert neither == [[], [], False, [None, None, "1"]]


# ---- the driver -------------------------------------------------------------------------------

# The mask, and the physical devices that it leaves in the order that it leaves them. Device 3 is a slice of
# device 0. The UUIDs begin with GPU-aa, GPU-ab, GPU-bb and MIG-aa.
MASKS = {
    None: [0, 1, 2, 3],
    "": [],
    "0": [0],
    "1,0": [1, 0],
    "0, 2": [0, 2],
    "0,x,1": [0],
    "x,0": [],
    "2,-1,0": [2],
    "1,4,0": [1],
    "1,99999999999999999999,0": [1],
    "0,,1": [0],
    "1,0,": [1, 0],
    "0,1,0": [],
    "0,1,x,0": [0, 1],
    "GPU-bb": [2],
    "GPU-ab,0": [1, 0],
    "GPU-aa000000-0000-0000-0000-000000000000": [0],
    "GPU-aa000000-0000-0000-0000-0000000000001": [],
    "0,GPU-a,1": [0],
    "1,GPU-cc,0": [1],
    "0,GPU-aa": [],
    "MIG-": [3],
    "MIG-aa,GPU-aa": [3, 0],
    "GPU-": [],
    "MIG": [],
}


def test_the_mask(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(f"""{BEGIN}
def visible(mask, late):
    stub.stub_reset()
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if mask is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = mask
    started = code(driver.cuInit(0)) if late else None
    stub.stub_devices(4)
    for device, first in enumerate((0xAA, 0xAB, 0xBB, 0xAA)):
        stub.stub_uuid(device, bytes([first, *[0] * 15]))
    stub.stub_mig(3, bytes([0xAA, *[0] * 15]))
    if not late:
        started = code(driver.cuInit(0))
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # too late to matter
    driver.cuInit(0) if started == 0 else None
    error, count = driver.cuDeviceGetCount()
    ids = [value(driver.cuDeviceGetPCIBusId(13, ordinal)) for ordinal in range(count or 0)]
    return [started, int(error), [int(id[5:7], 16) for id in ids]]

masks = {list(MASKS)!r}
print(json.dumps([[visible(mask, False), visible(mask, True)] for mask in masks]))
""")
    for (mask, expected), (early, late) in zip(MASKS.items(), seen, strict=True):
        # As the driver does, which then stays as it was before.
        assert early == ([0, 0, expected] if expected else [100, 3, []]), mask
        assert late == [0, 0, expected], mask


def test_driver_functions_take_visible_ordinals_and_controls_physical_indexes(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(
        f"""{BEGIN}
stub.stub_devices(3)
stub.stub_name(2, b"two")
stub.stub_memory(2, 2 * GIB, 3 * GIB)
stub.stub_total_mem(2, 4 * GIB)
stub.stub_activate(1)
stub.stub_fault(b"cuDeviceTotalMem", 1, 999)
driver.cuInit(0)
context = value(driver.cuCtxCreate(None, 0, 0) if driver.CUDA_VERSION >= 13000 else driver.cuCtxCreate(0, 0))
print(json.dumps([
    value(driver.cuDeviceGetName(4, 0)).rstrip(b"\\0").decode(),
    driver.cuMemGetInfo()[1:],
    [driver.cuDeviceTotalMem(ordinal)[1] for ordinal in range(3)],
    int(value(driver.cuCtxGetDevice())),
    [driver.cuDevicePrimaryCtxGetState(ordinal)[2] for ordinal in range(2)],
    code(driver.cuDeviceGet(2)),
    [stub.stub_contexts_created(), stub.stub_contexts_alive()],
    code(driver.cuCtxDestroy(context)),
    [stub.stub_depth(), stub.stub_contexts_created(), stub.stub_contexts_alive()],
    code(driver.cuCtxDestroy(context)),
]))
""",
        env={"CUDA_VISIBLE_DEVICES": "2,1"},
    )
    assert seen == [
        "two",
        [2 * GIB, 3 * GIB],
        [4 * GIB, None, None],
        0,
        [0, 1],
        101,
        [1, 2],
        0,
        [0, 1, 1],
        201,
    ]


def test_a_slice_has_a_uuid_of_its_own_in_the_second_version_alone(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(f"""{BEGIN}
stub.stub_devices(1)
stub.stub_mig(0, bytes(range(16)))
driver.cuInit(0)
uuids = []
for function in (stub.cuDeviceGetUuid, stub.cuDeviceGetUuid_v2):
    uuid = ctypes.create_string_buffer(16)
    assert function(uuid, 0) == 0
    uuids.append(uuid.raw.hex())
asked = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
uuids.append(value(asked(0)).bytes.hex())
print(json.dumps(uuids))
""")
    assert seen == [bytes(range(16)).hex(), "00" * 15 + "01", "00" * 15 + "01"]


def test_allocations_and_contexts_take_memory(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(f"""{BEGIN}
stub.stub_devices(2)
stub.stub_memory(0, 4 * GIB, 6 * GIB)
stub.stub_context_cost(0, GIB)
stub.stub_context_cost(1, 17 * GIB)
driver.cuInit(0)
seen = [code(driver.cuMemAlloc(1)), code(driver.cuMemFree(1))]

def now():
    free = driver.cuMemGetInfo()
    return [code(free), free[1] and free[1] / GIB, stub.stub_live_bytes(0) / GIB, stub.stub_contexts_alive()]

driver.cuCtxSetCurrent(value(driver.cuDevicePrimaryCtxRetain(0)))
driver.cuDevicePrimaryCtxRetain(0)
seen.append(now())
first, second = (value(driver.cuMemAlloc(GIB)) for _ in range(2))
seen += [int(first) != int(second), now(), code(driver.cuMemAlloc(GIB + 1)), code(driver.cuMemAlloc(0))]
seen += [code(driver.cuMemFree(first)), now(), code(driver.cuMemFree(first)), code(driver.cuMemFree(int(second) + 1))]
driver.cuDevicePrimaryCtxRelease(0)
seen.append(now())
driver.cuDevicePrimaryCtxRelease(0)
seen += [now(), code(driver.cuMemAlloc(1))]
driver.cuDevicePrimaryCtxRetain(0)
seen += [now(), code(driver.cuDevicePrimaryCtxRetain(1)), stub.stub_contexts_created()]
print(json.dumps(seen))
""")
    assert seen == [
        *[201, 201],
        [0, 3, 0, 1],
        *[True, [0, 1, 2, 1], 2, 1],
        *[0, [0, 2, 1, 1], 1, 1],
        [0, 2, 1, 1],
        *[[709, None, 0, 0], 709],
        *[[0, 3, 0, 1], 2, 2],
    ]


def test_faults_and_delays_of_the_driver(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(f"""{BEGIN}
import time
stub.stub_devices(2)
driver.cuInit(0)

def codes(device, calls):
    return [code(driver.cuDeviceTotalMem(device)) for _ in range(calls)]

stub.stub_fault(b"cuDeviceTotalMem", 0, 999)
stub.stub_fault_once(b"cuDeviceTotalMem", 0, 0, 1)
stub.stub_fault_once(b"cuDeviceTotalMem", 1, 2, 2)
faults = [codes(0, 2), codes(1, 3)]
stub.stub_fault(b"cuDeviceTotalMem", 0, 0)
faults.append(codes(0, 1))

def took(device):
    before = time.monotonic()
    driver.cuDeviceGetAttribute(driver.CUdevice_attribute(1), device)
    return time.monotonic() - before

stub.stub_delay(b"cuDeviceGetAttribute", 0, 20_000)
stub.stub_delay_once(b"cuDeviceGetAttribute", -1, 40_000, 1)
print(json.dumps([faults, [took(1), took(0), took(0)]]))
""")
    assert seen[0] == [[0, 999], [2, 2, 0], [0]]
    assert [took >= least for took, least in zip(seen[1], (0.04, 0.02, 0.02), strict=True)] == [True] * 3


def test_a_child_of_a_process_with_a_driver_has_none(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(f"""{BEGIN}
stub.stub_devices(1)

def ask():
    return [code(driver.cuInit(0)), code(driver.cuDeviceGetCount()), stub.stub_calls_after_fork()]

before = in_child(ask)
here = ask()
after = in_child(ask)
print(json.dumps([before, here, after, stub.stub_calls_after_fork()]))
""")
    assert seen == [[0, 0, 0], [0, 0, 0], [3, 3, 2], 0]


# ---- NVML -------------------------------------------------------------------------------------


def test_nvml_counts_its_references(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(f"""{BEGIN}
def ask():
    return [status(nvml.device_get_count_v2), nv.nv_references(), nv.nv_inits(), nv.nv_calls_after_fork()]

steps = [status(nvml.shutdown), ask()]
for step in (nvml.init_v2, lambda: nvml.init_with_flags(1), nvml.shutdown):
    steps += [status(step), ask()]
steps.append(in_child(ask))
steps += [status(nvml.shutdown), ask(), status(nvml.shutdown), nv.nv_calls(b"nvmlShutdown")]
nv.nv_fault_once(b"nvmlInit_v2", -1, 9, 1)
print(json.dumps([*steps, status(nvml.init_v2), status(nvml.init_v2)]))
""")
    assert seen == [
        *[1, [1, 0, 0, 0]],
        *[0, [0, 1, 1, 0]],
        *[0, [0, 2, 2, 0]],
        *[0, [0, 1, 2, 0]],
        [0, 1, 2, 1],
        *[0, [1, 0, 2, 0]],
        *[1, 4],
        *[9, 0],
    ]


def test_nvml_devices(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(
        f"""{BEGIN}
nv.nv_devices(2)
nv.nv_name(1, b"NVIDIA H200")
nv.nv_pci(1, b"0000:c1:00.0")
nv.nv_memory(0, 80 * GIB, 1 * GIB, 59 * GIB, 20 * GIB)
nv.nv_memory(1, *[{ALL_ONES}] * 4)
nvml.init_v2()

def describe(handle):
    memory = nvml.device_get_memory_info_v2(handle)
    pci = nvml.device_get_pci_info_v3(handle)
    return [
        nvml.device_get_index(handle),
        nvml.device_get_name(handle),
        nvml.device_get_uuid(handle),
        [pci.bus_id, pci.bus_id_legacy, pci.bus],
        [memory.total, memory.reserved, memory.free, memory.used],
        list(nvml.device_get_mig_mode(handle)),
    ]

handles = [nvml.device_get_handle_by_index_v2(index) for index in range(nvml.device_get_count_v2())]
one = "GPU-00000000-0000-0000-0000-000000000002"
same = [nvml.device_get_handle_by_uuid(one)]
same += [nvml.device_get_handle_by_pci_bus_id_v2(id) for id in ("0000:C1:00.0", "00000000:c1:00.0", "c1:0.0", "0:c1:0")]
print(json.dumps([
    [describe(handle) for handle in handles],
    [handle == handles[1] for handle in same],
    [status(nvml.device_get_handle_by_uuid, uuid) for uuid in (one[:-1], one + "0", "")],
    [status(nvml.device_get_handle_by_pci_bus_id_v2, id) for id in ("0000:c2:00.0", "nothing")],
    [status(nvml.device_get_handle_by_index_v2, 2), status(nvml.device_get_name, 12345)],
]))
""",
        env={"CUDA_VISIBLE_DEVICES": ""},  # nothing to NVML
    )
    devices, same, by_uuid, by_pci, by_index = seen
    assert devices == [
        [
            0,
            "Stub GPU 0",
            "GPU-00000000-0000-0000-0000-000000000001",
            ["00000000:00:00.0", "0000:00:00.0", 0],
            [80 * GIB, 1 * GIB, 59 * GIB, 20 * GIB],
            [0, 0],
        ],
        [
            1,
            "NVIDIA H200",
            "GPU-00000000-0000-0000-0000-000000000002",
            ["00000000:C1:00.0", "0000:C1:00.0", 0xC1],
            [ALL_ONES] * 4,
            [0, 0],
        ],
    ]
    assert same == [True] * 5
    assert (by_uuid, by_pci, by_index) == ([6, 6, 6], [6, 2], [2, 2])


def test_nvml_slices(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(f"""{BEGIN}
nv.nv_devices(2)
nv.nv_mig(1, 2)
nv.nv_mig_uuid(1, 1, b"MIG-one")
nv.nv_mig_memory(1, 1, 9, 1, 5, 3)
nv.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", nv.nv_slice(1, 0), 3)
nvml.init_v2()
parent = nvml.device_get_handle_by_index_v2(1)
slices = [nvml.device_get_mig_device_handle_by_index(parent, index) for index in range(2)]
memory = nvml.device_get_memory_info_v2(slices[1])
print(json.dumps([
    nvml.device_get_count_v2(),
    [nvml.device_get_mig_mode(parent), nvml.device_get_max_mig_device_count(parent)],
    [status(nvml.device_get_mig_device_handle_by_index, parent, index) for index in (2, 7)],
    [nvml.device_get_uuid(slice) for slice in slices],
    [nvml.device_is_mig_device_handle(handle) for handle in (parent, *slices)],
    [nvml.device_get_device_handle_from_mig_device_handle(slice) == parent for slice in slices],
    nvml.device_get_handle_by_uuid("MIG-one") == slices[1],
    nvml.device_get_index(slices[1]),
    [memory.total, memory.reserved, memory.free, memory.used],
    [status(nvml.device_get_memory_info_v2, handle) for handle in (parent, *slices)],
]))
""")
    assert seen == [
        2,
        [[1, 1], 7],
        [6, 2],
        ["MIG-00000000-0000-0000-0000-000000000201", "MIG-one"],
        [0, 1, 1],
        [True, True],
        True,
        1,
        [9, 1, 5, 3],
        [0, 3, 0],
    ]


def test_faults_and_delays_of_nvml(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(
        f"""{BEGIN}
import time
nv.nv_devices(2)
nvml.init_v2()
handles = [nvml.device_get_handle_by_index_v2(index) for index in range(2)]

def statuses(device, calls):
    return [status(nvml.device_get_memory_info_v2, handles[device]) for _ in range(calls)]

nv.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", 0, 15)
nv.nv_fault_once(b"nvmlDeviceGetMemoryInfo_v2", 0, 4711, 1)
nv.nv_fault_once(b"nvmlDeviceGetMemoryInfo_v2", 1, 999, 2)
faults = [statuses(0, 2), statuses(1, 3)]

def took(device):
    before = time.monotonic()
    nvml.device_get_name(handles[device])
    return time.monotonic() - before

nv.nv_delay(b"nvmlDeviceGetName", 0, 20_000)
nv.nv_delay_once(b"nvmlDeviceGetName", -1, 40_000, 1)
print(json.dumps([faults, [took(1), took(0)], nv.nv_calls(b"nvmlDeviceGetName")]))
""",
        cuda=False,
    )
    assert seen[0] == [[4711, 15], [999, 999, 0]]
    assert [took >= least for took, least in zip(seen[1], (0.04, 0.02), strict=True)] == [True, True]
    assert seen[2] == 2
