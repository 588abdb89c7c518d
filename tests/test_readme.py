"""The README's examples run, and print what their comments say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_first_example_has_twelve_lines() -> None:
    assert len([line for line in EXAMPLES[0].splitlines() if line.strip()]) == 12


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples(number: int, capsys: pytest.CaptureFixture) -> None:
    text = EXAMPLES[number]
    exec(compile(text, f"README example {number}", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^\s*print\(.*\)  # (\w+)", text, re.MULTILINE)
    assert printed, "an example that prints nothing shows nothing"
    assert not promised or printed == promised


def test_both_commands_are_there() -> None:
    commands = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(commands) == 2
    assert "vramsel pick cuda:0=2GiB cpu=2GiB" in commands[0]
    assert ".venv/bin/pytest" in commands[1]
