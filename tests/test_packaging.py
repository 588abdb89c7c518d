"""What an installed copy holds, and what it declares."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import vramsel

PACKAGE = Path(vramsel.__file__).parent


def test_it_is_the_installed_copy_that_is_tested() -> None:
    """The version is that of the metadata, and the compiled core lies beside the rest."""
    assert vramsel.__version__ == distribution("vramsel").version
    assert Path(vramsel._core.__file__).parent == PACKAGE


def test_files_for_compilers_and_type_checkers() -> None:
    for name in (
        "__init__.pxd",
        "_core.pxd",
        "_core.pyi",
        "py.typed",
        "vramsel.h",
        "view.h",
        "kernels.h",
        "state.h",
        "sync.h",
    ):
        assert (PACKAGE / name).is_file(), name


def test_requirements() -> None:
    requires = [text for text in distribution("vramsel").requires or [] if "extra ==" not in text]
    names = {re.match(r"[\w-]+", text)[0] for text in requires}
    assert names == {"numpy", "psutil", "cuda-python"}
    for text in requires:
        assert "<" not in text.split(";")[0], "no upper caps"
    (cuda,) = [text for text in requires if text.startswith("cuda-python")]
    assert "sys_platform" in cuda
    assert "platform_machine" in cuda


def test_licence_and_command() -> None:
    metadata = distribution("vramsel").metadata
    assert metadata["License-Expression"] == "MIT OR Apache-2.0"
    assert {entry.name for entry in distribution("vramsel").entry_points} == {"vramsel"}
