"""The version matrix, and lint."""

import os
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests", "lint"]

PYTEST = ["pytest", "-q", "-n", "auto", "--dist", "loadgroup"]
# What could depend on NumPy's version; the rest is tested with the other one.
NUMPY = ["arrays", "decision", "import", "kernels", "properties", "table"]


_wheels: dict[str, Path] = {}  # Python's version -> the wheel that this run has built for it


def install_wheel(session: nox.Session, extras: str) -> None:
    version = session.run("python", "-c", "import sys; print('{}.{}'.format(*sys.version_info))", silent=True).strip()
    if version not in _wheels:
        folder = Path(session.create_tmp(), "wheel")
        shutil.rmtree(folder, ignore_errors=True)
        session.run("pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), ".", silent=True)
        (_wheels[version],) = folder.absolute().glob("vramsel-*.whl")
    session.install("-q", f"{_wheels[version]}[{extras}]")


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """All tests once per Python, with its newest NumPy or 1.26; what could depend on that, with 1.26 as well."""
    install_wheel(session, "test")
    if session.python == "3.12":
        session.install("-q", "numpy==1.26.*")
    # .ci/run has just had the README's command run all of them on one Python and NumPy 2.
    if session.python != os.environ.get("VRAMSEL_TESTED"):
        session.run(*PYTEST, *session.posargs)
    if session.python == "3.11":
        session.install("-q", "numpy==1.26.*")
        session.run(*PYTEST, *(f"tests/test_{name}.py" for name in NUMPY), *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    install_wheel(session, "lint,test")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("cython-lint", *map(str, [*Path("vramsel").glob("*.p[yx][xd]"), *Path("bench").glob("*.pyx")]))
    session.run("cython-lint", *map(str, Path("tests/consumer").glob("*.pyx")))
    session.run("mypy")
    # Elsewhere, so that it is the installed copy that the stubs are compared with.
    session.chdir(session.create_tmp())
    session.run("python", "-m", "mypy.stubtest", "vramsel._core")


@nox.session
def bench(session: nox.Session) -> None:
    install_wheel(session, "bench")
    session.run("python", "bench/run.py", *session.posargs)
