"""Reads the memory of CUDA devices from the CUDA driver, and disturbs nothing in doing so."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import sys
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any
from uuid import UUID

from ..errors import described
from .base import Reading, Sample, Source

__all__ = ["CudaDriverSource"]

_CUDA = frozenset({"cuda"})
_NO_DEVICE = 100

# After these the device is of no use to this process. The driver's documentation says of most that
# "the process must be terminated and relaunched"; 214 and 220 are faults of the hardware; after 710
# (a device-side assert) the context "cannot be used anymore", and with it all that lives there.
_FATAL = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})


class CudaDriverSource(Source):
    """The CUDA driver, asked through cuda-python (12.9 or newer).

    A device is read under its primary context, and only where the process already has one: a
    context made for the question would itself take hundreds of megabytes. The caller's current
    context is left as it was.

    Parameters
    ----------
    init : bool, optional
        Whether `sample` may call ``cuInit``. A process that has initialised CUDA cannot use it in
        children that it forks. With False, nothing is known until someone else initialises it.
    """

    name = "cuda-driver"
    backends = ("cuda",)

    def __init__(self, *, init: bool = True) -> None:
        self.init = init

    def sample(self) -> Sample:
        """Read every CUDA device that this process can see.

        Returns
        -------
        Sample
            One reading per device. A device that cannot be read has a reason; when not even the
            list of devices is to be had, `note` says why. No driver at all means no device.
        """
        try:
            driver = _import_bindings()
            if self.init:
                _call(driver, "cuInit", 0)
            count = _call(driver, "cuDeviceGetCount")
        except _DriverError as error:
            return _without_devices(error)
        note = None if count else "the NVIDIA driver lists no device"
        return Sample(tuple(_read(driver, ordinal) for ordinal in range(count)), _CUDA, note)


class _DriverError(Exception):
    """One line that says what failed, and the CUDA error code where there is one."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(" ".join(text.split()))
        self.code = code


def _call(driver: ModuleType, name: str, *args: object) -> Any:
    """What a driver function answers besides success: its one value, or all of them."""
    try:
        status, *values = getattr(driver, name)(*args)
    except Exception as exc:
        # A RuntimeError: the library lacks the function, or there is no library, which is opened at
        # the first call. A ValueError "4711 is not a valid CUresult", in some releases a KeyError
        # of the bare number: a code that the bindings' enum lacks. Anything else: these are not
        # the bindings that they should be.
        unknown = re.fullmatch(r"(\d+)( is not a valid CUresult)?", str(exc))
        if unknown and isinstance(exc, (ValueError, KeyError)):
            raise _DriverError(f"{name}: unknown CUDA error ({unknown[1]})", int(unknown[1])) from exc
        raise _DriverError(f"{name}: {described(exc)}") from exc
    if status == 0:
        return values[0] if len(values) == 1 else tuple(values)
    raise _DriverError(f"{name}: {status.name} ({int(status)})", int(status))


def _import_bindings() -> ModuleType:
    try:
        spec = importlib.util.find_spec("cuda")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations is None:
        # Importing it would run a file that was never meant for us, perhaps the running script.
        raise _DriverError(f"cuda-python could not be imported: {spec.origin} hides it; rename that file")
    try:
        return importlib.import_module("cuda.bindings.driver")
    except (Exception, SystemExit) as exc:  # importing runs whatever stands in its place
        advice = 'install "cuda-python>=12.9.10"'
        raise _DriverError(f"cuda-python could not be imported: {described(exc)}; {advice}") from exc


def _without_devices(error: _DriverError) -> Sample:
    """The sample of a process that cannot list its devices."""
    if error.code == _NO_DEVICE:
        return Sample((), _CUDA, f"the NVIDIA driver lists no device: {error}")
    missing = _library_error() if error.code is None else None
    if missing is not None:
        return Sample((), _CUDA, f"no NVIDIA driver: {missing}")
    return Sample((), frozenset(), str(error))


def _library_error() -> str | None:
    """Why the driver library cannot be loaded here; None if it can."""
    if sys.platform == "darwin":
        return "there is none for macOS"
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as exc:
        return " ".join(str(exc).split())
    return None


def _read(driver: ModuleType, ordinal: int) -> Reading:
    reading = Reading(f"cuda:{ordinal}")
    try:
        device = _call(driver, "cuDeviceGet", ordinal)
        reading = replace(reading, device_name=_name(driver, device), uuid=_uuid(driver, device))
        _flags, active = _call(driver, "cuDevicePrimaryCtxGetState", device)
        if not active:
            return replace(reading, reason="no active CUDA context on this device in this process")
        free, total = _memory(driver, device)
    except _DriverError as error:
        cause = _first_failure(error)
        return replace(reading, lost=cause.code in _FATAL, reason=str(cause))
    return replace(reading, free=free, total=total)


def _name(driver: ModuleType, device: Any) -> str | None:
    with suppress(_DriverError):
        raw = _call(driver, "cuDeviceGetName", 128, device)
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
        return text.partition("\0")[0].strip() or None
    return None


def _uuid(driver: ModuleType, device: Any) -> str | None:
    # The first version gives the parent's UUID to a MIG slice. In 13 the plain name is the second.
    second = hasattr(driver, "cuDeviceGetUuid_v2")
    with suppress(_DriverError):
        raw = _call(driver, "cuDeviceGetUuid_v2" if second else "cuDeviceGetUuid", device)
        return f"GPU-{UUID(bytes=raw.bytes)}"
    return None


def _memory(driver: ModuleType, device: Any) -> tuple[int, int]:
    """Free and total bytes under the device's primary context, which must be active."""
    # If the application lets go of the context just now, retaining makes a new one: the driver
    # offers no way to retain only what exists. It is gone again with our release.
    context = _call(driver, "cuDevicePrimaryCtxRetain", device)
    try:
        _call(driver, "cuCtxPushCurrent", context)
        try:
            free, total = _call(driver, "cuMemGetInfo")
        finally:
            _pop(driver, context)
    finally:
        _call(driver, "cuDevicePrimaryCtxRelease", device)
    return free, total


def _pop(driver: ModuleType, context: Any) -> None:
    """Undo our push. What somebody else put in its place meanwhile is theirs and stays."""
    popped = _call(driver, "cuCtxPopCurrent")
    if int(popped) == int(context):
        return
    _call(driver, "cuCtxPushCurrent", popped)
    raise _DriverError("cuMemGetInfo: another context was made current meanwhile")


def _first_failure(error: _DriverError) -> _DriverError:
    """Of several, the one that came first: those after it failed to undo, most often because of it."""
    earlier: BaseException | None = error
    while earlier is not None:
        if isinstance(earlier, _DriverError):
            error = earlier
        earlier = earlier.__context__
    return error
