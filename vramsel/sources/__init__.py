"""Sources: where the numbers come from. None of them is imported before it is asked for."""

from typing import TYPE_CHECKING, Any

from .base import PoolReading, Reading, Sample, Source

if TYPE_CHECKING:
    from .callback import CallbackSource
    from .cuda_driver import CudaDriverSource
    from .fixed import FixedSource
    from .host import HostSource
    from .nvml import NvmlSource

__all__ = [
    "CallbackSource",
    "CudaDriverSource",
    "FixedSource",
    "HostSource",
    "NvmlSource",
    "PoolReading",
    "Reading",
    "Sample",
    "Source",
]

_MODULES = {
    "CallbackSource": "callback",
    "CudaDriverSource": "cuda_driver",
    "FixedSource": "fixed",
    "HostSource": "host",
    "NvmlSource": "nvml",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value
