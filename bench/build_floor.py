"""Compiles floor.pyx into a temporary folder and loads it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path


def load_floor() -> object:
    """An instance of the `Floor` of floor.pyx."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "floor.pyx")
        shutil.copy(Path(__file__).with_name("floor.pyx"), source)
        flags = [] if sys.platform == "win32" else ["-O3"]
        modules = cythonize([Extension("floor", [str(source)], extra_compile_args=flags)], quiet=True)
        command = build_ext(Distribution({"ext_modules": modules}))
        command.build_lib, command.build_temp = folder, folder
        command.ensure_finalized()
        command.run()
        spec = importlib.util.spec_from_file_location("floor", command.get_ext_fullpath("floor"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.Floor()
