"""The C headers without Python, under sanitizers: tests/harness/harness.c."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toolchain import HEADERS, compiler, needs_sanitizer, run

HARNESS = Path(__file__).with_name("harness") / "harness.c"
WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-variable", "-Wno-unused-function"]


def build(folder: Path, *flags: str) -> Path:
    program = folder / "harness"
    run([*compiler(), "-std=gnu11", "-g", *WARNINGS, *flags, f"-I{HEADERS}", "-o", program, HARNESS, "-lpthread"])
    return program


def quiet(**more: str) -> dict[str, str]:
    """The environment without what would change a sanitizer's ways, or load a library into it."""
    kept = {
        name: text for name, text in os.environ.items() if not name.endswith("SAN_OPTIONS") and name != "LD_PRELOAD"
    }
    return kept | more


def test_optimised(tmp_path: Path) -> None:
    """As users get it: what a sanitizer's build does not vectorise, this does."""
    program = build(tmp_path, "-O3")
    for seed in range(12):
        assert "portable" in run([program, "kernels", seed])
    assert "copies" in run([program, "latch", 300])
    assert "forked" in run([program, "fork", 20])


def test_memory_and_undefined_behaviour(tmp_path: Path) -> None:
    needs_sanitizer("address,undefined", tmp_path)
    program = build(tmp_path, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    for seed in range(100, 110):
        assert "portable" in run([program, "kernels", seed], env=quiet())
    assert "copies" in run([program, "latch", 200], env=quiet())


def test_data_races(tmp_path: Path) -> None:
    needs_sanitizer("thread", tmp_path)
    # The sanitizer does not model fences; all that is shared is atomic, so it sees no race without them.
    flags = ["-O1", "-fsanitize=thread", "-Wno-tsan", "-Wno-unknown-warning-option"]
    program = build(tmp_path, *flags)
    assert "copies" in run([program, "latch", 200], env=quiet(TSAN_OPTIONS="halt_on_error=1"))


@pytest.mark.parametrize("standard", ["c11", "c17"])
def test_the_public_header_stands_alone(tmp_path: Path, standard: str) -> None:
    source = tmp_path / "user.c"
    source.write_text('#include "vramsel.h"\nint main(void) { return sizeof(vramsel_record) == 16 ? 0 : 1; }\n')
    run(
        [
            *compiler(),
            f"-std={standard}",
            "-pedantic-errors",
            *WARNINGS,
            f"-I{HEADERS}",
            "-o",
            tmp_path / "user",
            source,
        ]
    )
    run([tmp_path / "user"])
