"""What importing vramsel costs, against importing NumPy."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from measure import Case


def import_seconds(module: str, loops: int) -> float:
    """What ``python -X importtime`` says of one module, imported in a process of its own."""
    spent = 0.0
    for _ in range(loops):
        command = [sys.executable, "-P", "-X", "importtime", "-c", f"import {module}"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        (line,) = [line for line in report.splitlines() if line.split("|")[-1].strip() == module]
        spent += int(line.split("|")[1]) / 1e6
    return spent


def case() -> Case:
    """The one case there is."""
    return Case(
        "import vramsel / import numpy",
        partial(import_seconds, "vramsel"),
        partial(import_seconds, "numpy"),
        1,
        None,
        1.3,
    )
