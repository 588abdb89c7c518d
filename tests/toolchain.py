"""The C compiler that tests use, and what it can do."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import vramsel

HEADERS = Path(vramsel.__file__).parent  # those of the copy that is tested


def compiler() -> list[str]:
    """The command of a C compiler; skips where there is none."""
    if sys.platform == "win32":
        pytest.skip("these tests call a Unix C compiler")
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(command[0]):
        pytest.skip(f"no C compiler ({command[0]})")
    return command


def run(command: list[object], **more: object) -> str:
    """Run a command that must succeed; returns what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        **more,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def needs_sanitizer(name: str, folder: Path) -> None:
    """Skip where a program with this sanitizer cannot be linked or started."""
    source, program = folder / "empty.c", folder / f"empty-{name.replace(',', '-')}"
    source.write_text("int main(void) { return 0; }\n")
    linked = [*compiler(), f"-fsanitize={name}", "-o", str(program), str(source)]
    for command in (linked, [str(program)]):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip(f"the C compiler has no working -fsanitize={name}")
