"""Builds the compiled core. Everything else about the package stands in pyproject.toml.

Environment switches, for building from a checkout:

VRAMSEL_DEBUG=1             no optimisation, symbols, C assertions on
VRAMSEL_SANITIZE=address,undefined
                            instrument the core with the sanitizers named
VRAMSEL_PROFILE=1           symbols beside full optimisation, for callgrind or perf
"""

import os
import sys

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

debug = os.environ.get("VRAMSEL_DEBUG") == "1"
sanitize = os.environ.get("VRAMSEL_SANITIZE", "")
profile = os.environ.get("VRAMSEL_PROFILE") == "1"

if sys.platform == "win32":
    compile_args, link_args = ["/std:c11", *(["/Od", "/Zi"] if debug else ["/O2"])], []
else:
    compile_args, link_args = ["-std=gnu11", "-pthread", "-O0" if debug else "-O3"], ["-pthread"]
    if debug or profile or sanitize:
        compile_args += ["-g", "-fno-omit-frame-pointer"]
    if debug:
        compile_args += ["-UNDEBUG"]
    if sanitize:
        compile_args += [f"-fsanitize={sanitize}"]
        link_args += [f"-fsanitize={sanitize}"]

core = Extension(
    "vramsel._core",
    ["vramsel/_core.pyx"],
    depends=[
        f"vramsel/{name}.h" for name in ("vramsel", "sync", "view", "kernels", "state", "threads", "api", "arrays")
    ],
    include_dirs=[numpy.get_include(), "vramsel"],
    # Built against NumPy 2, runs on 1.26 as well.
    define_macros=[
        ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION"),
    ],
    extra_compile_args=compile_args,
    extra_link_args=link_args,
)

setup(ext_modules=cythonize([core], show_all_warnings=True))
