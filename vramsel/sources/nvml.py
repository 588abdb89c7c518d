"""NVML, the NVIDIA management library: reads devices without CUDA and without a context on them."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import described, shown
from ..locks import Locked
from ..placement import Placement, PlacementLike
from ..units import MAX_BYTES
from .base import Reading, Sample, Source
from .bindings import BindingsError, import_bindings, text_of

__all__ = ["Nvml", "NvmlError", "NvmlSource"]

# nvmlReturn_t, of which the bindings make exceptions with a `status`.
_UNINITIALIZED, _GPU_IS_LOST, _RESET_REQUIRED = 1, 15, 16
_RETRY = 5.0  # seconds after a failed initialisation, which may take long to fail
_UNDIVIDED = frozenset({2, 3, None})  # invalid argument, not supported; a library that has no such function
_NOT_THIS = frozenset({2, 6})  # invalid argument, not found: of a name that NVML does not know


class NvmlError(Exception):
    """One line that says what failed, and NVML's code where there is one.

    `discarded` says that NVML did give a number, and that it cannot be true.
    """

    def __init__(self, text: str, code: int | None = None, *, discarded: bool = False) -> None:
        super().__init__(" ".join(text.split()))
        self.code = code
        self.discarded = discarded

    @property
    def lost(self) -> bool:
        """Whether the device is gone until it, or the machine, starts again."""
        return self.code in (_GPU_IS_LOST, _RESET_REQUIRED)


class Memory(NamedTuple):
    """Bytes of one device or MIG instance."""

    free: int
    total: int


class _Library(Locked):
    """NVML's initialisation, which this process shares: once for all who use it here, and per process.

    NVML counts initialisations itself, so ours and those of others in this process do not meet.
    """

    held_at_fork = False  # held while NVML starts, which can take seconds

    def __init__(self) -> None:
        super().__init__()
        self._forget_all()

    def _forget_all(self) -> None:
        self.users: set[int] = set()
        self.nvml: ModuleType | None = None
        self.times = 0  # that it was initialised
        self.failed: tuple[float, str, int | None] | None = None  # when, and why

    def renew(self) -> None:
        """Start anew in a forked child: what the parent initialised is the parent's."""
        super().renew()
        self._forget_all()

    def join(self, user: int) -> tuple[ModuleType, int]:
        """Initialise NVML if that has not been done; returns it, and which initialisation it is."""
        with self.lock:
            if self.nvml is None:
                self._initialise()
            assert self.nvml is not None
            self.users.add(user)
            return self.nvml, self.times

    def _initialise(self) -> None:
        if self.failed is not None and time.monotonic() < self.failed[0] + _RETRY:
            raise NvmlError(*self.failed[1:])
        try:
            nvml = import_bindings("nvml")
            nvml.init_v2()
        except Exception as error:
            fault = _fault("nvmlInit", error)
            self.failed = time.monotonic(), str(fault), fault.code
            raise fault from error
        self.nvml, self.failed = nvml, None
        self.times += 1

    def leave(self, user: int) -> None:
        """Shut NVML down after the last of its users."""
        if user not in self.users:
            return  # without the lock, which is held as long as an initialisation hangs
        with self.lock:
            if user not in self.users:
                return
            self.users.discard(user)
            if not self.users and self.nvml is not None:
                nvml, self.nvml = self.nvml, None
                nvml.shutdown()

    def forget(self, times: int) -> None:
        """Somebody has shut NVML down once too often: the next who asks initialises it again."""
        with self.lock:
            if self.times == times:
                self.nvml = None


_library = _Library()
_users = itertools.count()


class Nvml:
    """What one user asks of NVML. Devices are told apart by UUID or PCI bus id, never by position."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}
        self._pid = os.getpid()
        self._user = next(_users)
        weakref.finalize(self, _library.leave, self._user).atexit = False  # where nobody closes it

    def close(self) -> None:
        """Let NVML go; the next question initialises it again. Others in this process keep theirs."""
        self._handles.clear()
        _library.leave(self._user)

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of the bindings.

        Raises
        ------
        NvmlError
        """
        for attempt in (1, 2):
            if self._pid != os.getpid():
                self._handles.clear()
                self._pid = os.getpid()
            nvml, times = _library.join(self._user)
            try:
                return getattr(nvml, name)(*args)
            except Exception as error:
                fault = _fault(name, error)
                if fault.code != _UNINITIALIZED or attempt == 2:
                    raise fault from error
                self._handles.clear()
                _library.forget(times)
        raise AssertionError

    def memory_of(self, uuids: Sequence[str], pci: str | None) -> tuple[str | None, Memory]:
        """Memory of the device that has one of these UUIDs or, failing that, this PCI bus id.

        Returns the UUID that was found, None where it was the bus id.

        Raises
        ------
        NvmlError
        """
        key, handle = self._find(uuids, pci)
        try:
            memory = self.memory(handle)
        except NvmlError:
            self._handles.pop(key, None)  # a device that comes back may have another handle
            raise
        return key if key in uuids else None, memory

    def _find(self, uuids: Sequence[str], pci: str | None) -> tuple[str, int]:
        for key in (*uuids, *([pci] if pci else [])):
            if key in self._handles:
                return key, self._handles[key]
        missing: NvmlError | None = None
        for uuid in uuids:
            try:
                handle = self.call("device_get_handle_by_uuid", uuid)
            except NvmlError as fault:
                if fault.code not in _NOT_THIS:
                    raise
                missing = missing or fault
            else:
                return self._keep(uuid, handle)
        if pci is None:
            raise missing or NvmlError("NVML needs a device's UUID or PCI bus id, and has neither")
        return self._keep(pci, self.call("device_get_handle_by_pci_bus_id_v2", pci))

    def _keep(self, key: str, handle: int) -> tuple[str, int]:
        if self.is_divided(handle):
            # The driver gave a MIG instance the name of its device, whose memory is not the instance's.
            raise NvmlError("NVML knows only the whole device, and that is divided into MIG instances")
        self._handles[key] = handle
        return key, handle

    def is_divided(self, handle: int) -> bool:
        """Whether a handle stands for a device in MIG mode, whose instances are what has memory.

        Raises
        ------
        NvmlError
        """
        try:
            if self.call("device_is_mig_device_handle", handle):
                return False
            current, _ = self.call("device_get_mig_mode", handle)
        except NvmlError as error:
            if error.code in _UNDIVIDED:
                return False
            raise
        return bool(current)

    def memory(self, handle: int) -> Memory:
        """Free and total bytes, as reported. What cannot be true is no signal.

        Raises
        ------
        NvmlError
        """
        info = self.call("device_get_memory_info_v2", handle)
        total, free, used, kept = (int(getattr(info, field)) for field in ("total", "free", "used", "reserved"))
        if MAX_BYTES in (total, free, used, kept) or max(used, kept) > total or total == 0:
            raise NvmlError("reading discarded: NVML reports no memory that there could be", discarded=True)
        return Memory(free, total)

    def is_lost(self, uuids: Sequence[str], pci: str | None) -> bool:
        """Whether NVML says of a device that it is gone."""
        try:
            self.memory_of(uuids, pci)
        except NvmlError as fault:
            return fault.lost
        return False


class NvmlSource(Source):
    """Every NVIDIA device and MIG instance of this machine, as nodes named by UUID.

    It needs neither CUDA nor a context, and counts devices that ``CUDA_VISIBLE_DEVICES`` hides: it
    is for processes that hand out devices. Which ordinal a device has in CUDA it cannot know, so the
    nodes list no placements but those given here.

    Parameters
    ----------
    placements : mapping, optional
        UUID to the placements that live on that device.
    """

    name = "nvml"

    def __init__(self, placements: Mapping[str, Iterable[PlacementLike]] | None = None) -> None:
        self._placements = {}
        for uuid, lives in (placements or {}).items():
            if isinstance(lives, str):
                raise TypeError(f"placements of {shown(uuid)} must be several, as in ({lives!r},)")
            self._placements[uuid] = tuple(str(Placement(placement)) for placement in lives)
        self._nvml = Nvml()
        self._count = 0
        # index -> UUIDs and names, of the device or its instances, for when it is lost
        self._seen: dict[int, list[tuple[str, str | None]]] = {}

    def sample(self) -> Sample:
        """Read every device; a MIG-enabled one through its instances."""
        try:
            count = self._nvml.call("device_get_count_v2")
        except NvmlError as fault:
            return Sample((), note=str(fault))
        if count != self._count:  # indices are not what they were
            self._seen.clear()
            self._count = count
        readings: list[Reading] = []
        notes: list[str] = []
        for index in range(count):
            try:
                readings += self._read(index)
            except NvmlError as fault:
                if index in self._seen:
                    readings += [self._failed(uuid, name, fault) for uuid, name in self._seen[index]]
                else:
                    notes.append(f"device {index} of NVML: {fault}")
        note = "; ".join(notes) or (None if count else "NVML lists no device")
        return Sample(tuple(readings), note=note)

    def close(self) -> None:
        """Let NVML go."""
        self._nvml.close()

    def _read(self, index: int) -> Iterable[Reading]:
        handle = self._nvml.call("device_get_handle_by_index_v2", index)
        handles = self._instances(handle) if self._nvml.is_divided(handle) else [handle]
        found = [(one, text_of(self._nvml.call("device_get_uuid", one)), self._name(one)) for one in handles]
        self._seen[index] = [(uuid, name) for _, uuid, name in found]
        return [self._reading(one, uuid, name) for one, uuid, name in found]

    def _instances(self, handle: int) -> list[int]:
        found = []
        for number in range(self._nvml.call("device_get_max_mig_device_count", handle)):
            try:
                found.append(self._nvml.call("device_get_mig_device_handle_by_index", handle, number))
            except NvmlError as fault:
                if fault.code not in _NOT_THIS:
                    raise
                # a slot without an instance
        return found

    def _name(self, handle: int) -> str | None:
        with suppress(NvmlError):
            return text_of(self._nvml.call("device_get_name", handle)) or None
        return None

    def _reading(self, handle: int, uuid: str, name: str | None) -> Reading:
        try:
            free, total = self._nvml.memory(handle)
        except NvmlError as fault:
            return self._failed(uuid, name, fault)
        return Reading(uuid, free, total, self._placements.get(uuid, ()), device_name=name, uuid=uuid)

    def _failed(self, uuid: str, name: str | None, fault: NvmlError) -> Reading:
        lives = self._placements.get(uuid, ())
        return Reading(
            uuid,
            placements=lives,
            lost=fault.lost,
            reason=str(fault),
            device_name=name,
            uuid=uuid,
            discarded=fault.discarded,
        )


def _fault(call: str, error: Exception) -> NvmlError:
    """What an exception of the bindings says, in one line."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return NvmlError(f"{call}: {described(error)}", int(status))
    if isinstance(error, BindingsError):
        return NvmlError(str(error))
    if type(error).__name__ == "DynamicLibNotFoundError":  # of cuda-pathfinder; what it says is long
        return NvmlError("the NVML library is not on this machine")
    return NvmlError(f"{call}: {described(error)}")
