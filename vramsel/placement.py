"""Backend names and their codes, and the placement: a backend and one of its devices."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsIndex

from .errors import UnknownBackendError, shown
from .locks import Locked

__all__ = ["Placement", "PlacementLike", "backend_code", "backend_name", "register_backend"]

# A code is an index into this list, for the life of the process: append only.
_names = ["cpu", "cuda", "vulkan", "metal", "rocm", "torch", "cupy", "rmm", "xpu", "tpu", "disk"]
_codes = {name: code for code, name in enumerate(_names)}
_registry = Locked()  # held while a backend is registered

_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)
_LIMIT = 2**16  # codes and ordinals travel as uint16


def register_backend(name: str) -> int:
    """Give `name` a backend code, or return the code it has.

    Codes of backends registered at run time depend on the order of registration, so they
    differ between processes; names do not. Placements and tables pickle by name.

    Raises
    ------
    TypeError, ValueError
        If `name` is not a string of lower-case letters, digits, ``_`` and ``-`` that begins
        with a letter, or if all 65536 codes are taken.
    """
    if not isinstance(name, str):
        raise TypeError(f"a backend's name must be a string, not {type(name).__name__}")
    code = _codes.get(name)
    if code is not None:
        return code
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"backend name {shown(name)} must be lower-case letters, digits, '_' or '-', and begin with a letter"
        )
    with _registry.lock:
        code = _codes.get(name)
        if code is None:
            if len(_names) == _LIMIT:
                raise ValueError(f"cannot register backend {name!r}: all {_LIMIT} codes are taken")
            code = len(_names)
            _names.append(name)
            _codes[name] = code
    return code


def backend_code(name: str) -> int:
    """The code of a backend: ``backend_code("cuda") == 1``.

    Raises
    ------
    UnknownBackendError
        If `name` was not registered.
    """
    try:
        return _codes[name]
    except (KeyError, TypeError):
        raise UnknownBackendError(
            f"unknown backend {shown(name)}; known: {', '.join(_names[:12])}; others by register_backend()"
        ) from None


def backend_name(code: SupportsIndex) -> str:
    """The name behind a backend code.

    Raises
    ------
    UnknownBackendError
        If no backend has that code.
    """
    index = operator.index(code)
    if not 0 <= index < len(_names):
        raise UnknownBackendError(f"unknown backend code {shown(index)}; codes 0 to {len(_names) - 1} are in use")
    return _names[index]


class _Pair(NamedTuple):
    backend: int
    device: int


class Placement(_Pair):
    """Where an operation runs: a backend and the ordinal of one of its devices.

    Parameters
    ----------
    backend : str, int, Placement or pair
        A backend's name or code; or, with no `device`, a whole placement: ``"cuda:1"``,
        ``"cpu"`` (device 0 where none is named), or a pair ``(backend, device)``.
    device : int, optional
        Ordinal within the backend, 0 to 65535.

    Raises
    ------
    UnknownBackendError
        If the backend was not registered.
    TypeError, ValueError
        If the rest is not a placement.

    Notes
    -----
    A tuple ``(backend code, device)``; ``str()`` gives the name back.
    """

    __slots__ = ()

    def __new__(cls, backend: PlacementLike | str | SupportsIndex, device: SupportsIndex | None = None) -> Placement:  # noqa: D102
        if device is None:
            if isinstance(backend, Placement):
                return backend
            if isinstance(backend, str):
                backend, device = _split(backend)
            elif isinstance(backend, (tuple, list)) and len(backend) == 2:
                backend, device = backend
            else:
                raise TypeError(f"not a placement: {shown(backend)}; write 'cuda:0', 'cpu' or (backend, device)")
        if isinstance(backend, str):
            code = backend_code(backend)
        else:
            try:
                code = _codes[backend_name(backend)]  # type: ignore[arg-type]
            except TypeError:
                raise TypeError(f"a backend is a name or a code, not {type(backend).__name__}") from None
        try:
            ordinal = operator.index(device)
        except TypeError:
            raise TypeError(f"a device ordinal is an integer, not {type(device).__name__}") from None
        if not 0 <= ordinal < _LIMIT:
            raise ValueError(f"device ordinal {shown(ordinal)} of {_names[code]!r} is outside 0..{_LIMIT - 1}")
        return super().__new__(cls, code, ordinal)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Placement:  # type: ignore[override]
        # What _replace() goes through; the tuple's own would check nothing.
        return cls(*iterable)

    @property
    def backend_name(self) -> str:
        """The backend's name."""
        return _names[self.backend]

    def __str__(self) -> str:
        # Host memory has one device in nearly every program, so it goes by its bare name.
        if self == (0, 0):
            return "cpu"
        return f"{_names[self.backend]}:{self.device}"

    def __repr__(self) -> str:
        return f"Placement({str(self)!r})"

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return _restore, (_names[self.backend], self.device)


def _split(text: str) -> tuple[str, int]:
    name, colon, ordinal = text.partition(":")
    if not colon:
        return name, 0
    if not (ordinal.isascii() and ordinal.isdigit()):
        raise ValueError(f"{shown(text)} is not a placement: {shown(ordinal)} is no device ordinal, such as 0")
    if len(ordinal) > 5:
        raise ValueError(f"{shown(text)} is not a placement: its device ordinal is outside 0..{_LIMIT - 1}")
    return name, int(ordinal)


def _restore(name: str, device: int) -> Placement:
    # In another process the backend may not be registered yet.
    return Placement(register_backend(name), device)


PlacementLike = str | Placement | tuple[str | int, int]
"""What is accepted as a placement: its name, itself, or a pair."""
