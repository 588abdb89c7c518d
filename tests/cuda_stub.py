"""Runs scripts against a CUDA driver that needs no GPU: the stub, compiled once per test session.

The stub is found through ``LD_LIBRARY_PATH``, which the loader reads when a process starts, so
each script runs in a process of its own. `stubs/libcuda_stub.c` says what the stub can do.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "stubs" / "libcuda_stub.c"

# What every script for the stub begins with. Without the argument types, ctypes would cut sizes
# down to an int.
PRELUDE = """\
import ctypes
stub = ctypes.CDLL("libcuda.so.1")
stub.stub_memory.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
"""


def run_script(
    script: str,
    *,
    library_dir: Path | None = None,
    files: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> Any:
    """Run a Python script in a process of its own, and give back what it printed.

    Parameters
    ----------
    script : str
        Its text; common indentation is removed. Its last line of output must be JSON.
    library_dir : Path, optional
        A folder in which the loader looks for shared libraries first.
    files : mapping of str to str, optional
        Names and texts of files to put beside the script, where Python finds them first.
    timeout : float, optional
        Seconds after which the test fails.
    """
    # The process is to import what this one would, whichever way the package got here.
    path = [entry or str(Path.cwd()) for entry in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONFAULTHANDLER": "1"}
    if library_dir is not None:
        before = os.environ.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{library_dir}:{before}" if before else str(library_dir)
    with tempfile.TemporaryDirectory() as folder:
        main = Path(folder, "script.py")
        for name, text in {**(files or {}), main.name: dedent(script)}.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        command = [sys.executable, str(main)]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as exc:
            pytest.fail(f"the script took more than {timeout} s\n{_text(exc.stderr)}")
    if done.returncode != 0:
        pytest.fail(f"the script ended with status {done.returncode}\n{_text(done.stderr)}")
    lines = _text(done.stdout).splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        pytest.fail(f"the script's last line is not JSON\n{_text(done.stdout)}\n{_text(done.stderr)}")


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace")


@dataclass(frozen=True)
class CudaStub:
    """The compiled stub: `directory` holds its ``libcuda.so.1``."""

    directory: Path

    def run(self, script: str, *, files: Mapping[str, str] | None = None, timeout: float = 60.0) -> Any:
        """Run a script whose CUDA driver is the stub; it finds `stub`, to steer it by. See `run_script`."""
        text = PRELUDE + dedent(script)
        return run_script(text, library_dir=self.directory, files=files, timeout=timeout)


def _has_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ImportError:
        return False


@pytest.fixture(scope="session")
def cuda_stub(tmp_path_factory: pytest.TempPathFactory) -> CudaStub:
    """The stub driver. Skips the test where there cannot be one."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the CUDA stub driver needs Linux")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the CUDA stub driver needs a C compiler named cc")
    if not _has_bindings():
        pytest.skip("the CUDA stub driver needs cuda-python (cuda.bindings.driver)")
    # pytest gives each xdist worker a folder of its own.
    directory = tmp_path_factory.mktemp("cuda_stub")
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
    soname = "libcuda.so.1"
    command = [compiler, *flags, f"-Wl,-soname,{soname}", "-o", str(directory / soname), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"the CUDA stub driver does not compile\n{done.stderr}")
    return CudaStub(directory)
