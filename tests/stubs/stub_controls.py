"""The functions that steer the stubs, with their types: beside every script that runs against them.

Names and other text are bytes. A `device` is an index into the devices that the test made; a negative one is any.
"""

import ctypes
from typing import Any

_INT = ctypes.c_int
_SIZE = ctypes.c_size_t
_TEXT = ctypes.c_char_p
_U64 = ctypes.c_uint64

# What each takes. Without this, ctypes would cut sizes down to an int.
CUDA_CONTROLS: dict[str, list[Any]] = {
    "stub_reset": [],
    "stub_devices": [_INT],  # count
    "stub_memory": [_INT, _SIZE, _SIZE],  # device, available, total
    "stub_total_mem": [_INT, _SIZE],  # device, bytes
    "stub_context_cost": [_INT, _SIZE],  # device, bytes
    "stub_name": [_INT, _TEXT],  # device, name
    "stub_uuid": [_INT, _TEXT],  # device, 16 bytes
    "stub_mig": [_INT, _TEXT],  # device, 16 bytes of the parent's UUID, or None
    "stub_pci": [_INT, _TEXT],  # device, id
    "stub_attribute": [_INT, _INT, _INT],  # device, attribute, value
    "stub_activate": [_INT],  # device
    "stub_fault": [_TEXT, _INT, _INT],  # name, device, code
    "stub_fault_once": [_TEXT, _INT, _INT, _INT],  # name, device, code, times
    "stub_delay": [_TEXT, _INT, _INT],  # name, device, microseconds
    "stub_delay_once": [_TEXT, _INT, _INT, _INT],  # name, device, microseconds, times
    "stub_hide": [_TEXT],  # name
    "stub_calls": [_TEXT],  # name
    "stub_calls_after_fork": [],
    "stub_contexts_created": [],
    "stub_contexts_alive": [],
    "stub_live_bytes": [_INT],  # device
    "stub_references": [_INT],  # device
    "stub_depth": [],
}

NVML_CONTROLS: dict[str, list[Any]] = {
    "nv_reset": [],
    "nv_devices": [_INT],  # count
    "nv_uuid": [_INT, _TEXT],  # device, uuid
    "nv_name": [_INT, _TEXT],  # device, name
    "nv_pci": [_INT, _TEXT],  # device, id
    "nv_memory": [_INT, _U64, _U64, _U64, _U64],  # device, total, reserved, free, used
    "nv_mig": [_INT, _INT],  # parent, count
    "nv_mig_uuid": [_INT, _INT, _TEXT],  # parent, index, uuid
    "nv_mig_memory": [_INT, _INT, _U64, _U64, _U64, _U64],  # parent, index, total, reserved, free, used
    "nv_slice": [_INT, _INT],  # parent, index
    "nv_fault": [_TEXT, _INT, _INT],  # name, device, code
    "nv_fault_once": [_TEXT, _INT, _INT, _INT],  # name, device, code, times
    "nv_delay": [_TEXT, _INT, _INT],  # name, device, microseconds
    "nv_delay_once": [_TEXT, _INT, _INT, _INT],  # name, device, microseconds, times
    "nv_calls": [_TEXT],  # name
    "nv_references": [],
    "nv_inits": [],
    "nv_calls_after_fork": [],
}


def _load(soname: str, controls: dict[str, list[Any]]) -> ctypes.CDLL:
    library = ctypes.CDLL(soname)
    for name, types in controls.items():
        getattr(library, name).argtypes = types
    return library


def load_cuda() -> ctypes.CDLL:
    """The stub driver: the copy that cuda-python has too."""
    library = _load("libcuda.so.1", CUDA_CONTROLS)
    library.stub_live_bytes.restype = _SIZE
    return library


class _Nvml:
    """The stub NVML: the copy that cuda-python has too, loaded when it is first used."""

    _library: ctypes.CDLL | None = None

    def __getattr__(self, name: str) -> Any:
        if self._library is None:
            self._library = _load("libnvidia-ml.so.1", NVML_CONTROLS)
        return getattr(self._library, name)


nv = _Nvml()
