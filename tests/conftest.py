"""Fixtures that several test files use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cuda_stub import cuda_stub  # noqa: F401  a fixture
from implementations import IMPLEMENTATIONS, TABLES, Implementation

import vramsel as vs

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(params=TABLES, ids=lambda cls: cls.__name__)
def table_type(request: pytest.FixtureRequest) -> type[vs.MemoryTable]:
    """The core's table and the oracle's: same value, same dtype, same error."""
    return request.param


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda item: item.__name__)
def decide(request: pytest.FixtureRequest) -> Implementation:
    """Every implementation of the decision, as a function of a table and a set."""
    return request.param


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of cases and traces that lies beside a checkout, where there is one."""
    folder = Path(os.environ.get("VRAMSEL_SHARED") or ROOT.parent / "shared")
    if not (folder / "cases").is_dir():
        pytest.skip(f"no folder {folder.name}/cases beside the checkout, and VRAMSEL_SHARED names none")
    return folder
