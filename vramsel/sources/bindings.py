"""Finding cuda-python: a file ``cuda.py`` in its place is not imported."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from ..errors import described

__all__ = ["BindingsError", "import_bindings", "text_of"]


class BindingsError(Exception):
    """One line that says why cuda-python cannot be had."""


def import_bindings(name: str) -> ModuleType:
    """Import ``cuda.bindings.<name>``.

    Raises
    ------
    BindingsError
    """
    try:
        spec = importlib.util.find_spec("cuda")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations is None:
        # Importing it would run a file that was never meant for us, perhaps the running script.
        raise BindingsError(f"cuda-python could not be imported: {spec.origin} hides it; rename that file")
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except (Exception, SystemExit) as exc:  # importing runs whatever stands in its place
        advice = 'install "cuda-python>=12.9.10"'
        raise BindingsError(f"cuda-python could not be imported: {described(exc)}; {advice}") from exc


def text_of(raw: object) -> str:
    """A name or UUID, which is bytes in some versions and str in others, with what cannot be decoded replaced."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    return text.partition("\0")[0].strip()
