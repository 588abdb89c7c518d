"""Pick, of candidates ranked by cost, the first whose memory can still take it.

The main names are here; see `MemoryTable`, `AlternativeSet` and `FitPolicy` first.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec(f"{__name__}._core") is None:
    raise ImportError(
        "vramsel has no compiled core here: this is its source. Run from another folder, with vramsel installed,"
        " or build in place with 'python setup.py build_ext --inplace'"
    )

from .errors import UnknownBackendError, UnknownNodeError, UnknownPlacementError, VramselError
from .fit import FitPolicy, FitStatus, Reason
from .placement import Placement, backend_code, backend_name, register_backend
from .records import CANDIDATE_DTYPE, AlternativeSet, Candidate, candidates
from .selectors import (
    BackendRuntime,
    CachedPressureSelector,
    RuntimeSelector,
    VramPressureSelector,
    WinnerSelector,
    default_estimate_output_bytes,
)
from .table import MemoryTable

if TYPE_CHECKING:
    from .monitor import Monitor, watch

__all__ = [
    "CANDIDATE_DTYPE",
    "AlternativeSet",
    "BackendRuntime",
    "CachedPressureSelector",
    "Candidate",
    "FitPolicy",
    "FitStatus",
    "MemoryTable",
    "Monitor",
    "Placement",
    "Reason",
    "RuntimeSelector",
    "UnknownBackendError",
    "UnknownNodeError",
    "UnknownPlacementError",
    "VramPressureSelector",
    "VramselError",
    "WinnerSelector",
    "backend_code",
    "backend_name",
    "candidates",
    "default_estimate_output_bytes",
    "register_backend",
    "watch",
]


def __getattr__(name: str) -> Any:
    # Looked up at first use, so that importing vramsel costs little and touches no device.
    if name in ("watch", "Monitor"):
        from . import monitor

        value = getattr(monitor, name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("vramsel")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
