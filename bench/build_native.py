"""Compiles native.pyx against the installed package, in a temporary folder, and loads it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType


def load_native() -> ModuleType:
    """The module of native.pyx."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "native.pyx")
        shutil.copy(Path(__file__).with_name("native.pyx"), source)
        flags = [] if sys.platform == "win32" else ["-O3"]
        modules = cythonize([Extension("native", [str(source)], extra_compile_args=flags)], quiet=True)
        command = build_ext(Distribution({"ext_modules": modules}))
        command.build_lib, command.build_temp = folder, folder
        command.ensure_finalized()
        command.run()
        spec = importlib.util.spec_from_file_location("native", command.get_ext_fullpath("native"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
