"""Runs measurements on a GPU, each in a process of its own, and gathers the figures that tests note."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuda_stub import DEVICE_VARIABLES, run_script

SCRIPT = Path(__file__).with_name("measure.py")
FIGURE = "GPU figure"

Measure = Callable[[str], Any]
Figure = Callable[[str, str], None]


def _measured(name: str, timeout: float) -> Any:
    return run_script(
        f"import measure\nmeasure.main({name!r})\n",
        files={SCRIPT.name: SCRIPT.read_text(encoding="utf-8")},
        timeout=timeout,
        env={variable: os.environ.get(variable) for variable in DEVICE_VARIABLES},  # which devices the caller means
    )


@pytest.fixture(scope="session")
def device() -> str | None:
    """What is absent for there to be a device; None where there is one."""
    return _measured("machine", 60).get("absent")


@pytest.fixture
def measure(device: str | None) -> Measure:
    """A measurement by name; skips the test, naming it, where something is absent."""
    if device is not None:
        pytest.skip(device)

    def measured(name: str, timeout: float = 60) -> Any:
        seen = _measured(name, timeout)
        if "absent" in seen:
            pytest.skip(seen["absent"])
        return seen

    return measured


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Note what was measured: its name, and the figure in words."""
    return lambda what, text: record_property(FIGURE, f"{what}: {text}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, text in report.user_properties
        if name == FIGURE
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """``-m gpu`` asks for these tests: that every one was skipped is no success."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or session.config.option.markexpr != "gpu":  # the first: in a worker of pytest-xdist
        return
    if session.exitstatus == 0 and "passed" not in reporter.stats:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
