"""The command line: ``vramsel status`` and ``vramsel pick``.

Exit status: 0 done; 1 the answer is no (nothing fits); 2 wrong use, or the answer could not be written, told in
one line; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from shutil import get_terminal_size
from typing import Any, NoReturn, TextIO

from .decision import Decision, Verdict, explain
from .errors import one_line
from .fit import FitStatus, Reason
from .monitor import watch
from .records import AlternativeSet, Candidate
from .table import MemoryTable
from .units import format_bytes, parse_bytes

__all__ = ["main"]


@dataclass
class Answer:
    """What a command has to say. All of it is known before any of it is printed."""

    status: int
    out: str = ""
    err: str = ""


class _Parser(argparse.ArgumentParser):
    """Raises what it would print, so that it is printed as everything else is."""

    def error(self, message: str) -> NoReturn:
        raise _Stop(Answer(2, err=f"{self.prog}: {one_line(message)}\n"))  # one line; --help has the rest

    def print_help(self, file: Any = None) -> None:
        raise _Stop(Answer(0, out=self.format_help()))


class _Stop(Exception):  # noqa: N818  it is no error
    """The answer is known before a command was run."""

    @property
    def answer(self) -> Answer:
        answer: Answer = self.args[0]
        return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        try:
            answer = _answer(arguments)
        except _Stop as stop:
            answer = stop.answer
        # The order in which a person should read them where both are one terminal.
        _print(sys.stderr, answer.err)
        try:
            _print(sys.stdout, answer.out)
        except OSError as error:
            _print(sys.stderr, f"vramsel: cannot write the answer: {one_line(error)}\n")
            return 2
    except KeyboardInterrupt:
        return 130
    return answer.status


def _print(stream: TextIO | None, text: str) -> None:
    """Write a text whole, or raise OSError; a reader that has left is none of our business."""
    if not text:
        return
    if stream is None or stream.closed:
        if stream is sys.stderr:
            return
        raise OSError("standard output is closed")
    try:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names come in every script
        stream.write(text)
        stream.flush()
    except OSError as error:
        # What is left in the buffer must not fail once more at exit.
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            raise


def _answer(arguments: Sequence[str] | None) -> Answer:
    parser = _Parser(
        prog="vramsel", description="Where does this fit? Free memory of this machine's devices.", allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    status = commands.add_parser("status", help="free and total memory of every node", allow_abbrev=False)
    status.add_argument("--json", action="store_true", help="print JSON")

    pick = commands.add_parser(
        "pick",
        help="the first candidate whose memory can take it",
        description="Print the first candidate, in the order given, whose memory can take it now or is not known; one"
        " that would leave its memory nearly full is a last resort. What was passed over, and why, goes to standard"
        " error. Exit status 1 when nothing fits.",
        allow_abbrev=False,
    )
    pick.add_argument(
        "candidates", nargs="+", metavar="PLACEMENT=SIZE", help="such as cuda:0=2GiB (2^30) or cpu=2GB (10^9)"
    )
    pick.add_argument("--explain", action="store_true", help="print a line for each candidate")
    pick.add_argument("--json", action="store_true", help="print JSON")

    options = parser.parse_args(arguments)
    if options.version:
        from . import __version__

        return Answer(0, out=f"vramsel {__version__}\n")
    if options.command is None:
        parser.error("no command; try 'vramsel status', 'vramsel pick cuda:0=2GiB cpu=2GiB' or --help")
    return _status(options) if options.command == "status" else _pick(options)


# -- status ---------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> Answer:
    with watch() as monitor:
        rows = _node_rows(monitor.table)
        notes = dict(monitor.errors)
    if options.json:
        out = json.dumps({"nodes": rows}, indent=2) + "\n"
    else:
        out = _table(
            ["node", "placements", "name", "state", "free", "total", "source", "age", "reason"],
            [
                [
                    row["node"],
                    " ".join(row["placements"]),
                    row["name"] or "",
                    row["state"],
                    format_bytes(row["free"]),
                    format_bytes(row["total"]),
                    row["source"],
                    _age(row["age_s"]),
                    row["reason"] or "",
                ]
                for row in rows
            ],
        )
    return Answer(0, out, _lines(notes))


def _node_rows(table: MemoryTable) -> list[dict[str, Any]]:
    """The documented JSON form of every node."""
    book = table._book
    now = time.monotonic()
    with book.lock:
        columns = [column.tolist() for column in table._columns()]
        placements: list[list[str]] = [[] for _ in book.nodes]
        for placement, index in book.placements.items():
            placements[index].append(str(placement))
        return [
            {
                "node": node.name,
                "placements": lives,
                "name": node.device_name,
                "uuid": node.uuid,
                "state": "ok" if known else "lost" if lost else "unknown",
                "free": free if known else None,
                "total": total or None,
                "reserved": reserved,
                "source": node.source,
                "age_s": None if node.sampled_at is None else max(now - node.sampled_at, 0.0),
                "reason": node.reason,
            }
            for node, lives, free, total, reserved, known, lost in zip(book.nodes, placements, *columns, strict=True)
        ]


# -- pick -----------------------------------------------------------------------------------------


def _pick(options: argparse.Namespace) -> Answer:
    try:
        alternatives = AlternativeSet([_candidate(text) for text in options.candidates])
    except (TypeError, ValueError) as error:
        return Answer(2, err=f"vramsel pick: {one_line(error)}\n")
    with watch() as monitor:
        decision = explain(monitor.table, alternatives)
    answer = Answer(1 if decision.fallback else 0)
    if options.json:
        answer.out = json.dumps(decision.as_dict(), indent=2) + "\n"
    elif options.explain:
        answer.out = _table(
            ["candidate", "status", "bytes", "available", "total", "short by", "source", "age", "reason"],
            [_verdict_cells(verdict) for verdict in decision.verdicts],
        )
    answer.err = "" if options.explain and not options.json else _passed_over(decision)
    if decision.fallback:
        answer.err += "nothing fits\n"
    elif not options.json:
        answer.out += f"{decision.placement}\n"
    return answer


def _candidate(text: str) -> Candidate:
    placement, equals, size = text.rpartition("=")
    if not equals:
        raise ValueError(f"{text!r} is not PLACEMENT=SIZE; write for example cuda:0=2GiB")
    try:
        return Candidate(placement.strip(), parse_bytes(size))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r}: {error}") from None


def _passed_over(decision: Decision) -> str:
    """A line for each candidate that was looked at and does not fit comfortably."""
    assert decision.index is not None  # the parser wants at least one candidate
    looked_at = decision.verdicts if decision.fallback else decision.verdicts[: decision.index + 1]
    return "".join(
        f"{verdict.placement}: {_because(verdict)}\n"
        for verdict in looked_at
        if verdict.status is not FitStatus.COMFORTABLE
    )


def _because(verdict: Verdict) -> str:
    text = verdict.reason.value
    if verdict.reason in (Reason.EXCEEDS_FREE, Reason.EXCEEDS_TOTAL):
        text += (
            f": {format_bytes(verdict.bytes)} asked, {format_bytes(verdict.available)} available of"
            f" {format_bytes(verdict.total)}, short by {format_bytes(verdict.short_by)}"
        )
    elif verdict.reason is Reason.OVER_FRACTION:
        text += (
            f": {format_bytes(verdict.bytes)} asked, {format_bytes(verdict.available)} available of"
            f" {format_bytes(verdict.total)}"
        )
    return f"{text} ({_detail(verdict)})" if _detail(verdict) else text


def _detail(verdict: Verdict) -> str | None:
    if verdict.detail is None and verdict.node is None:
        return "no source reports it"
    return verdict.detail


def _verdict_cells(verdict: Verdict) -> list[str]:
    return [
        str(verdict.placement),
        verdict.status.name,
        format_bytes(verdict.bytes),
        format_bytes(verdict.available),
        format_bytes(verdict.total),
        format_bytes(verdict.short_by) if verdict.short_by else "",
        verdict.source or "",
        _age(verdict.age_s),
        f"{verdict.reason.value} ({_detail(verdict)})" if _detail(verdict) else verdict.reason.value,
    ]


# -- printing -------------------------------------------------------------------------------------


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"


def _lines(notes: dict[str, str]) -> str:
    return "".join(f"{source}: {note}\n" for source, note in notes.items())


def _table(header: list[str], rows: list[list[str]]) -> str:
    """A table: of rich on a terminal that is wide enough for it, else plain, a line for each row."""
    used = [i for i in range(len(header)) if any(row[i] for row in rows)]
    header = [header[i] for i in used]
    rows = [[row[i] for i in used] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    # The last column, the reason, may be folded; numbers and names are shown whole or not in a table.
    least = sum(widths[:-1]) + 2 * (len(widths) - 1) + 24
    if sys.stdout is not None and sys.stdout.isatty() and least <= get_terminal_size().columns:
        with suppress(ImportError):  # the extra is not installed; plain text says the same
            return _rich_table(header, rows)
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows])
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _rich_table(header: list[str], rows: list[list[str]]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in header:
        table.add_column(name, no_wrap=name != header[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    # The texts are data: "[red]" and ":smile:" in a device's name mean themselves.
    console = Console(highlight=False, markup=False, emoji=False, width=get_terminal_size().columns)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
