"""Runs scripts against a CUDA driver and an NVML that need no GPU: stubs, compiled once per test session.

The stubs are found through ``LD_LIBRARY_PATH``, which the loader reads when a process starts, so
each script runs in a process of its own. `stubs/libcuda_stub.c` and `stubs/libnvml_stub.c` say what
the stubs can do, and `stubs/stub_controls.py` lists how a script steers them.
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

STUBS = Path(__file__).parent / "stubs"
CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
SOURCES = {CUDA: STUBS / "libcuda_stub.c", NVML: STUBS / "libnvml_stub.c"}

# Beside every script for the stubs; and what the script begins with, with and without a CUDA driver.
CONTROLS = STUBS / "stub_controls.py"
PRELUDE = {
    True: "import ctypes\nfrom stub_controls import load_cuda, nv\nstub = load_cuda()\n",
    False: "import ctypes\nfrom stub_controls import nv\n",
}

# They would hide devices of the stub too. A script has them where its test says so.
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def run_script(
    script: str,
    *,
    library_dir: Path | None = None,
    files: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    env: Mapping[str, str | None] | None = None,
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
    env : mapping of str to str or None, optional
        Environment variables to set, or with None to remove, for the script. It has all others from
        this process, but for `DEVICE_VARIABLES`.
    """
    # The process is to import what this one would, whichever way the package got here.
    path = [entry or str(Path.cwd()) for entry in sys.path]
    environment: dict[str, str] = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONFAULTHANDLER": "1"}
    if library_dir is not None:
        before = os.environ.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{library_dir}:{before}" if before else str(library_dir)
    for name, value in {**dict.fromkeys(DEVICE_VARIABLES), **(env or {})}.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
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
    """The compiled stubs: `directory` holds both, its ``libcuda.so.1`` and its ``libnvidia-ml.so.1``."""

    directory: Path

    def library_dir(self, *, cuda: bool = True, nvml: bool = True) -> Path:
        """A folder for the loader that has those of the stubs.

        In the place of the others it has files that are no library, so that the loader does not find those
        of a machine that has some.
        """
        if cuda and nvml:
            return self.directory
        return self.directory.with_name("cuda" if cuda else "nvml" if nvml else "neither")

    def run(
        self,
        script: str,
        *,
        files: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        env: Mapping[str, str | None] | None = None,
        cuda: bool = True,
        nvml: bool = True,
    ) -> Any:
        """Run a script whose CUDA driver and NVML are the stubs, and give back what it printed.

        It finds `stub`, the loaded driver, and `nv`, which loads NVML when it is first used, to steer them
        by: ``stub.stub_devices(2)``, ``nv.nv_devices(2)``. Their functions have argument types.

        Parameters
        ----------
        script, files, timeout, env
            As in `run_script`.
        cuda : bool, optional
            Whether there is a driver. If not, the script finds no `stub`.
        nvml : bool, optional
            Whether there is an NVML. If not, `nv` cannot be used.
        """
        return run_script(
            PRELUDE[cuda] + dedent(script),
            library_dir=self.library_dir(cuda=cuda, nvml=nvml),
            files={CONTROLS.name: CONTROLS.read_text(encoding="utf-8"), **(files or {})},
            timeout=timeout,
            env=env,
        )


def _has_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ImportError:
        return False


@pytest.fixture(scope="session")
def cuda_stub(tmp_path_factory: pytest.TempPathFactory) -> CudaStub:
    """The stub driver and the stub NVML. Skips the test where there cannot be any."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the CUDA stub driver needs Linux")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the CUDA stub driver needs a C compiler named cc")
    if not _has_bindings():
        pytest.skip("the CUDA stub driver needs cuda-python (cuda.bindings.driver)")
    # pytest gives each xdist worker a folder of its own.
    stubs = CudaStub(tmp_path_factory.mktemp("cuda_stub") / "both")
    stubs.directory.mkdir()
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
    for soname, source in SOURCES.items():
        command = [compiler, *flags, f"-Wl,-soname,{soname}", "-o", str(stubs.directory / soname), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"{source.name} does not compile\n{done.stderr}")
    for cuda, nvml in [(True, False), (False, True), (False, False)]:
        folder = stubs.library_dir(cuda=cuda, nvml=nvml)
        folder.mkdir()
        for soname, is_there in {CUDA: cuda, NVML: nvml}.items():
            if is_there:
                (folder / soname).symlink_to(stubs.directory / soname)
            else:
                (folder / soname).write_text("not a library")
    return stubs
