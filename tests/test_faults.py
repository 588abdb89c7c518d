"""Thousands of random faults on three stub devices: see `bench/faults.py`, which prints what it finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_stub import CudaStub

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "faults.py"


def test_no_wrong_number_under_faults(cuda_stub: CudaStub) -> None:
    if not SCRIPT.is_file():
        pytest.skip(f"no {SCRIPT.parent.name}/{SCRIPT.name} beside the tests")
    assert shutil.which("cc"), "the fixture has found it"
    command = [sys.executable, "-P", str(SCRIPT), "--refreshes", "700", "--stalls", "1", "--rounds", "0", "--json"]
    path = [entry or str(Path.cwd()) for entry in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.stdout, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    wrong = {what: figure for what, figure in figures.items() if what.startswith("wrong:")}
    assert len(wrong) == 6
    assert not any(wrong.values()), (wrong, figures["first that is wrong"])
    assert done.returncode == 0, done.stderr
    assert figures["contexts made, NVML initialisations"] == "0, 1"
    assert figures["refreshes"] == 700
    assert figures["numbers looked at while they changed"] > 0
