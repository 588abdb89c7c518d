"""The version matrix, and lint."""

import os
import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests", "lint"]

PYTEST = ["pytest", "-q", "-n", "auto", "--dist", "loadgroup"]
# What depends on NumPy's version first, if anything does.
NUMPY = ["arrays", "decision", "import", "table"]
# What no Python is part of, or what is the same on all: once is enough.
ONCE = ["native", "stubs", "faults"]


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
    """All tests once per Python; on one of them with NumPy 1.26, from the wheel that has just run on NumPy 2."""
    tested = os.environ.get("VRAMSEL_TESTED")  # where .ci/run has had the README's command run all of them
    if session.python == tested:
        session.skip("its tests have passed already")
    install_wheel(session, "test")
    if session.python == "3.12":
        session.run(*PYTEST, *(f"tests/test_{name}.py" for name in NUMPY), *session.posargs)
        session.install("-q", "numpy==1.26.*")
    others = [f"--ignore=tests/test_{name}.py" for name in ONCE] if tested else []
    session.run(*PYTEST, *others, *session.posargs)


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
