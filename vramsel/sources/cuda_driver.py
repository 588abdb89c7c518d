"""Reads the memory of CUDA devices from the CUDA driver, and disturbs nothing in doing so."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from uuid import UUID

from ..errors import described
from ..locks import Locked
from ..units import MAX_BYTES, as_bytes, format_bytes
from .base import PoolReading, Reading, Sample, Source
from .bindings import BindingsError, import_bindings, text_of
from .frameworks import Framework, imported
from .nvml import Nvml, NvmlError

__all__ = ["CudaDriverSource"]

_NO_DEVICE, _NOT_INITIALIZED = 100, 3
_INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED: the device's memory is the host's

# After these the device is of no use to this process. The driver's documentation says of most that
# "the process must be terminated and relaunched"; 214 and 220 are faults of the hardware; after 710
# (a device-side assert) the context "cannot be used anymore", and with it all that lives there.
_FATAL = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})


class CudaDriverSource(Source):
    """The CUDA devices that this process can see, in CUDA's own order and numbers.

    What it sees is the driver's affair (``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER``); a device is
    itself by its UUID. It is asked through cuda-python (12.9 or newer), under the device's primary
    context and only where the process has one: a context made for the question would itself take
    hundreds of megabytes. The caller's current context is left as it was. A device without a context
    is read through NVML, by UUID or PCI bus id; where that cannot be had it is unknown, with the reason.

    A device whose memory is the host's (the attribute ``INTEGRATED``, as on Jetson or DGX Spark; not
    unified *addressing*, which all devices have) is listed on the node ``cpu``: the driver's free
    leaves out what the host could give back.

    Where the process has imported PyTorch, CuPy or RMM, the placements ``torch:0``, ``cupy:0``,
    ``rmm:0`` are listed on the node of their device, and with its memory their idle bytes and limits
    are read.

    Parameters
    ----------
    init : bool, default True
        Whether `sample` may call ``cuInit``. A process that has initialised CUDA cannot use it in
        children that it forks. With False, nothing is known until someone else initialises it.
    create_context : bool, default False
        Make a primary context on each device that has none, and keep it until `close`. That takes
        hundreds of megabytes of each device and a good part of a second, and gives the numbers where
        there is no NVML.
    nvml : bool, default True
        Whether NVML may be asked.
    frameworks : bool, default True
        Whether frameworks that are imported are read.
    largest_blocks : bool, default False
        Whether PyTorch's largest idle block is looked for, which takes milliseconds under the GIL.
    unified_headroom : int or str, default "2GiB"
        Bytes that stay free on a node that such a device shares with the host, unless the node was
        given a policy by its name: a machine that over-allocates there hangs.
    """

    name = "cuda-driver"
    backends = ("cuda", "torch", "cupy", "rmm")

    def __init__(
        self,
        *,
        init: bool = True,
        create_context: bool = False,
        nvml: bool = True,
        frameworks: bool = True,
        largest_blocks: bool = False,
        unified_headroom: int | str = "2GiB",
    ) -> None:
        self.init = init
        self.create_context = create_context
        self.frameworks = frameworks
        self.largest_blocks = largest_blocks
        self.unified_headroom = as_bytes(unified_headroom, "unified_headroom")
        self._nvml = Nvml() if nvml else None
        self._devices: dict[int, _Device] = {}
        self._parts: dict[int, _Part] = {}
        self._count = 0
        self._kept: dict[int, Any] = {}  # ordinal -> device on which we keep a context
        self._pid = os.getpid()

    def sample(self) -> Sample:
        """Read every CUDA device that this process can see.

        Returns
        -------
        Sample
            One reading per device. A device that cannot be read has a reason; when not even the
            list of devices is to be had, `note` says why. No driver at all means no device.
        """
        return self._list(split=False)

    def survey(self) -> Sample:
        """As `sample`; of several devices, each is a part of its own."""
        if type(self).sample is not CudaDriverSource.sample:
            return self.sample()  # a subclass has its own
        return self._list(split=True)

    def _list(self, *, split: bool) -> Sample:
        if self._pid != os.getpid():  # what the parent had is not ours to use or to give back
            self._pid = os.getpid()
            self._devices, self._kept = {}, {}
        faults: dict[str, str] = {}
        known = imported() if self.frameworks else []
        # Of frameworks with CUDA's devices; what cannot tell, or has devices of its own, is left open.
        closed = {framework.name for framework in known if _devices(framework, 0, faults) is not None}
        everything = frozenset({"cuda", *closed})
        try:
            count = _call(_open_driver(init=self.init), "cuDeviceGetCount")
        except _DriverError as error:
            return self._without_devices(error, everything)
        _initialised.here()
        self._count = count
        if split and (count > 1 or self._parts):
            parts = tuple(self._parts.setdefault(ordinal, _Part(self, ordinal)) for ordinal in range(count))
            return Sample((), everything, parts=parts)
        samples = [self.sample_device(ordinal) for ordinal in range(count)]
        readings = tuple(reading for sample in samples for reading in sample.readings)
        notes = [sample.note for sample in samples if sample.note] if count else ["the NVIDIA driver lists no device"]
        return Sample(readings, everything, "; ".join(dict.fromkeys(notes)) or None, parts=())

    def _without_devices(self, error: _DriverError, everything: frozenset[str]) -> Sample:
        """The sample of a process that cannot list its devices."""
        if error.code == _NO_DEVICE:
            return Sample((), everything, f"the NVIDIA driver lists no device: {error}", ())
        if error.code == _NOT_INITIALIZED and not self.init and not error.in_child:
            return Sample(note="nobody has initialised CUDA in this process (init=False, init_cuda=False)")
        missing = _library_error() if error.code is None else None
        if missing is not None:
            return Sample((), everything, f"no NVIDIA driver: {missing}", ())
        return Sample(note=str(error))

    def sample_device(self, ordinal: int) -> Sample:
        """Read one device."""
        device = self._devices.setdefault(ordinal, _Device(ordinal))
        faults: dict[str, str] = {}
        known = imported(blocks=self.largest_blocks) if self.frameworks else []
        frameworks = [framework for framework in known if _devices(framework, ordinal + 1, faults)]
        reading = Reading(
            f"cuda:{ordinal}",
            began=time.monotonic(),
            pools=tuple(PoolReading(framework.placement(ordinal)) for framework in frameworks),
        )
        try:
            reading = self._read(_open_driver(init=False), device, reading, frameworks, faults)
        except _DriverError as error:  # of a driver that has listed its devices
            reading = replace(reading, reason=str(error))
        return Sample((reading,), note="; ".join(faults.values()) or None)

    def close(self) -> None:
        """Give back the contexts that `create_context` made, and NVML."""
        kept, self._kept = self._kept, {}
        with ExitStack() as stack:  # all of it, whichever of it fails
            if self._nvml is not None:
                stack.callback(self._nvml.close)
            if self._pid == os.getpid():
                for device in kept.values():
                    stack.callback(_release, device)

    # -- one device ---------------------------------------------------------------------------

    def _read(
        self,
        driver: ModuleType,
        device: _Device,
        reading: Reading,
        frameworks: list[Framework],
        faults: dict[str, str],
    ) -> Reading:
        try:
            device.look_at(driver)
            reading = replace(reading, device_name=device.name, uuid=device.uuid)
            if device.integrated is None:
                # Not to be guessed: where its memory is the host's, the driver's numbers are no measure.
                device.integrated = bool(_call(driver, "cuDeviceGetAttribute", _attribute(driver), device.handle))
            if device.integrated:
                reading = replace(reading, shares="cpu", total=device.total, headroom=self.unified_headroom)
            active, refusal = self._has_context(driver, device)
            if active and (frameworks or not device.integrated):
                return self._under_context(driver, device, reading, frameworks, faults)
        except _DriverError as error:
            if device.integrated and error.code not in _FATAL:
                return reading  # the host knows
            cause = _first_failure(error)
            lost = cause.code in _FATAL or (cause.code is not None and self._is_lost(device))
            return replace(reading, shares=None, total=None, lost=lost, reason=str(cause))
        if device.integrated:
            return reading
        return self._without_context(device, self._names(driver, device), reading, refusal)

    def _names(self, driver: ModuleType, device: _Device) -> tuple[str, ...]:
        """The UUIDs that are this device's alone: of an emulated or broken one, others may have the same."""
        for ordinal in range(self._count):
            other = self._devices.setdefault(ordinal, _Device(ordinal))
            if not other.names:
                with suppress(_DriverError):  # it cannot say who it is: so not that it is this one
                    other.look_at(driver)
            if other is not device and other.names == device.names:
                return ()
        return device.names

    def _has_context(self, driver: ModuleType, device: _Device) -> tuple[bool, str]:
        """Whether there is an active primary context, by now; else why one could not be made."""
        _flags, active = _call(driver, "cuDevicePrimaryCtxGetState", device.handle)
        if not active and self.create_context and not device.integrated:
            try:
                _call(driver, "cuDevicePrimaryCtxRetain", device.handle)
            except _DriverError as error:
                if error.code in _FATAL:
                    raise
                return False, f" ({error})"
            self._kept[device.ordinal] = device.handle
            return True, ""
        return bool(active), ""

    def _under_context(
        self,
        driver: ModuleType,
        device: _Device,
        reading: Reading,
        frameworks: list[Framework],
        faults: dict[str, str],
    ) -> Reading:
        with _current(driver, device.handle):
            # Bytes that a pool gives back meanwhile are idle before and free after; they count once.
            before = _pools(frameworks, device, faults)
            numbers: tuple[int, int] | None = None if device.integrated else _call(driver, "cuMemGetInfo")
            after = _pools(frameworks, device, faults)
        pools = tuple(_smaller(first, second) for first, second in zip(before, after, strict=True))
        reading = replace(reading, pools=pools)
        return reading if numbers is None else _judged(reading, numbers[0], numbers[1], device)

    def _without_context(self, device: _Device, names: tuple[str, ...], reading: Reading, refusal: str) -> Reading:
        none = f"no active CUDA context on this device in this process{refusal}"
        if self._nvml is None:
            return replace(reading, reason=none)
        try:
            uuid, (free, total) = self._nvml.memory_of(names, device.pci)
        except NvmlError as fault:
            reason = f"{none}, and {fault}"
            return replace(reading, lost=fault.lost, reason=reason, discarded=fault.discarded)
        return _judged(replace(reading, source="nvml", uuid=uuid or reading.uuid), free, total, device)

    def _is_lost(self, device: _Device) -> bool:
        """Whether the driver's error comes from a device that is gone, which NVML would know."""
        return self._nvml is not None and self._nvml.is_lost(device.names, device.pci)


class _Part(Source):
    """One device of several, so that one which hangs does not hold up the others."""

    def __init__(self, whole: CudaDriverSource, ordinal: int) -> None:
        self.name = whole.name
        self.label = f"{whole.name} cuda:{ordinal}"
        self.whole: CudaDriverSource = whole
        self.backends = ("cuda",)
        self.expected = (Reading(f"cuda:{ordinal}", reason="the driver lists it, and does not answer about it"),)
        self._ordinal = ordinal

    def sample(self) -> Sample:
        return self.whole.sample_device(self._ordinal)


@dataclass
class _Device:
    """What does not change of a device while this process runs. None until it could be read."""

    ordinal: int
    handle: Any = None
    name: str | None = None
    names: tuple[str, ...] = ()  # UUIDs that NVML may know it by, the likelier first
    pci: str | None = None
    total: int | None = None
    integrated: bool | None = None

    @property
    def uuid(self) -> str | None:
        return self.names[0] if self.names else None

    def look_at(self, driver: ModuleType) -> None:
        """Read what is not read yet. None of it needs a context."""
        if self.handle is None:
            self.handle = _call(driver, "cuDeviceGet", self.ordinal)
        if self.name is None:
            self.name = self._try(lambda: text_of(_call(driver, "cuDeviceGetName", 128, self.handle)) or None)
        if not self.names:
            self.names = self._try(lambda: _uuids(driver, self.handle, self.name)) or ()
        if self.pci is None:
            self.pci = self._try(lambda: text_of(_call(driver, "cuDeviceGetPCIBusId", 64, self.handle)) or None)
        if self.total is None:
            self.total = self._try(lambda: _size(_call(driver, "cuDeviceTotalMem", self.handle)))

    def _try(self, ask: Callable[[], Any]) -> Any:
        """What the driver will not tell is left for the next sample; a device can do without."""
        with suppress(_DriverError):
            return ask()
        return None


def _size(total: int) -> int | None:
    """A total, unless it is none."""
    return total if 0 < total < MAX_BYTES else None


def _attribute(driver: ModuleType) -> Any:
    return driver.CUdevice_attribute(_INTEGRATED)


def _uuids(driver: ModuleType, handle: Any, name: str | None) -> tuple[str, ...]:
    """The names by which a device may be known: a MIG instance says what it is by its name only.

    The first version of the function gives the parent's UUID to an instance. In 13 the plain name is
    the second.
    """
    second = hasattr(driver, "cuDeviceGetUuid_v2")
    raw = _call(driver, "cuDeviceGetUuid_v2" if second else "cuDeviceGetUuid", handle)
    uuid = UUID(bytes=bytes(raw.bytes))
    if not uuid.int:
        return ()  # as some emulations say
    kinds = ("MIG", "GPU") if name is not None and "MIG" in name.split() else ("GPU", "MIG")
    return tuple(f"{kind}-{uuid}" for kind in kinds)


def _judged(reading: Reading, free: int, total: int, device: _Device) -> Reading:
    """Add the numbers, unless they are another device's: the total is what is known of this one."""
    if MAX_BYTES in (free, total):
        return replace(reading, reason="reports all ones for bytes", discarded=True)
    expected = device.total
    if expected is not None and abs(total - expected) > expected // 16:
        what = f"{format_bytes(total)} in all, and the device has {format_bytes(expected)}"
        return replace(reading, reason=f"reading discarded: {what}", discarded=True)
    return replace(reading, free=free, total=total)


def _devices(framework: Framework, count: int, faults: dict[str, str]) -> int | None:
    try:
        return framework.devices(count)
    except Exception as error:  # a module of that name, and not the one that is meant
        faults[framework.name] = f"{framework.name}: {described(error)}"
        return None


def _pools(frameworks: list[Framework], device: _Device, faults: dict[str, str]) -> list[PoolReading]:
    pools = []
    for framework in frameworks:
        try:
            pools.append(framework.read(device.ordinal, device.total).checked())
        except Exception as error:  # it must not cost the device its number; no idle bytes is the safe side
            pools.append(PoolReading(framework.placement(device.ordinal)))
            faults[framework.name] = f"{framework.placement(device.ordinal)}: {described(error)}"
    return pools


def _smaller(first: PoolReading, second: PoolReading) -> PoolReading:
    return replace(
        second,
        idle=min(first.idle, second.idle),
        used=max(first.used, second.used),
        largest=min(first.largest, second.largest),
    )


# -- the driver -----------------------------------------------------------------------------------


class _Initialised(Locked):
    """Which process initialised CUDA, as far as this module knows: its children cannot use it."""

    def __init__(self) -> None:
        super().__init__()
        self._pid: int | None = None

    def here(self) -> None:
        """CUDA works in this process."""
        self._pid = os.getpid()

    def refuse_child(self) -> None:
        """Raise where asking would be of no use, and may hang."""
        if self._pid not in (None, os.getpid()):
            raise _DriverError(
                "this process was forked from one that had initialised CUDA, and cannot use it; start it by"
                " 'spawn', or initialise CUDA after the fork only (init_cuda=False)",
                _NOT_INITIALIZED,
                in_child=True,
            )


_initialised = _Initialised()


class _DriverError(Exception):
    """One line that says what failed, and the CUDA error code where there is one."""

    def __init__(self, text: str, code: int | None = None, *, in_child: bool = False) -> None:
        super().__init__(" ".join(text.split()))
        self.code = code
        self.in_child = in_child  # of a process that had initialised CUDA


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


def _open_driver(*, init: bool) -> ModuleType:
    _initialised.refuse_child()
    try:
        driver = import_bindings("driver")
    except BindingsError as error:
        raise _DriverError(str(error)) from error
    if init:
        _call(driver, "cuInit", 0)
    return driver


def _library_error() -> str | None:
    """Why the driver library cannot be loaded here; None if it can."""
    if sys.platform == "darwin":
        return "there is none for macOS"
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as exc:
        text = " ".join(str(exc).split())
        # That this process has no descriptor or memory left says nothing of the machine.
        return None if any(os.strerror(code) in text for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)) else text
    return None


@contextmanager
def _current(driver: ModuleType, device: Any) -> Iterator[None]:
    """Make a device's primary context current, which must be active, and put back what was."""
    # If the application lets go of the context just now, retaining makes a new one: the driver
    # offers no way to retain only what exists. It is gone again with our release.
    context = _call(driver, "cuDevicePrimaryCtxRetain", device)
    try:
        _call(driver, "cuCtxPushCurrent", context)
        try:
            yield
        finally:
            _pop(driver, context)
    finally:
        _call(driver, "cuDevicePrimaryCtxRelease", device)


def _release(device: Any) -> None:
    _call(_open_driver(init=False), "cuDevicePrimaryCtxRelease", device)


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
