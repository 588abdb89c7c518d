"""The command line: ``vramsel status`` and ``vramsel pick``.

Exit status: 0 done; 1 the answer is no (nothing fits); 2 wrong use, told in one line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from .decision import Decision, Verdict, explain
from .fit import FitStatus, Reason
from .monitor import watch
from .records import AlternativeSet, Candidate
from .table import MemoryTable
from .units import format_bytes, parse_bytes

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # One line; --help has the rest.
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _Parser(prog="vramsel", description="Where does this fit? Free memory of this machine's devices.")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    status = commands.add_parser("status", help="free and total memory of every node")
    status.add_argument("--json", action="store_true", help="print JSON")

    pick = commands.add_parser(
        "pick",
        help="the first candidate whose memory can take it",
        description="Print the first candidate, in the order given, whose memory can take it now. What was "
        "passed over, and why, goes to standard error. Exit status 1 when nothing fits.",
    )
    pick.add_argument(
        "candidates", nargs="+", metavar="PLACEMENT=SIZE", help="such as cuda:0=2GiB (2^30) or cpu=2GB (10^9)"
    )
    pick.add_argument("--explain", action="store_true", help="print a line for each candidate")
    pick.add_argument("--json", action="store_true", help="print JSON")

    options = parser.parse_args(arguments)
    if options.version:
        from . import __version__

        print(f"vramsel {__version__}")
        return 0
    if options.command is None:
        parser.error("no command; try 'vramsel status', 'vramsel pick cuda:0=2GiB cpu=2GiB' or --help")
    try:
        return _status(options) if options.command == "status" else _pick(options)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; nothing is left to be told.
        sys.stderr.close()
        return 0


# -- status ---------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    with watch() as monitor:
        rows = _node_rows(monitor.table)
        notes = dict(monitor.errors)
    if options.json:
        print(json.dumps({"nodes": rows}, indent=2))
    else:
        _print_table(
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
    _print_notes(notes)
    return 0


def _node_rows(table: MemoryTable) -> list[dict[str, Any]]:
    """The documented JSON form of every node."""
    book = table._book
    with book.lock:
        columns = [column.tolist() for column in table._columns()]
    now = time.monotonic()
    placements: list[list[str]] = [[] for _ in book.nodes]
    for placement, index in book.placements.items():
        placements[index].append(str(placement))
    rows = []
    for index, node in enumerate(book.nodes):
        free, total, known, lost = (column[index] for column in columns)
        rows.append(
            {
                "node": node.name,
                "placements": placements[index],
                "name": node.device_name,
                "uuid": node.uuid,
                "state": "ok" if known else "lost" if lost else "unknown",
                "free": free if known else None,
                "total": total or None,
                "reserved": 0,
                "source": node.source,
                "age_s": None if node.sampled_at is None else max(now - node.sampled_at, 0.0),
                "reason": node.reason,
            }
        )
    return rows


# -- pick -----------------------------------------------------------------------------------------


def _pick(options: argparse.Namespace) -> int:
    try:
        alternatives = AlternativeSet([_candidate(text) for text in options.candidates])
    except (TypeError, ValueError) as error:
        print(f"vramsel pick: {error}", file=sys.stderr)
        return 2
    with watch() as monitor:
        decision = explain(monitor.table, alternatives)
        notes = dict(monitor.errors)
    if options.json:
        print(json.dumps(decision.as_dict(), indent=2))
    elif options.explain:
        _print_table(
            ["candidate", "status", "bytes", "available", "total", "short by", "source", "age", "reason"],
            [_verdict_cells(verdict) for verdict in decision.verdicts],
        )
    if not options.json:
        _print_answer(decision, notes, explained=options.explain)
    return 1 if decision.fallback else 0


def _candidate(text: str) -> Candidate:
    placement, equals, size = text.rpartition("=")
    if not equals:
        raise ValueError(f"{text!r} is not PLACEMENT=SIZE; write for example cuda:0=2GiB")
    try:
        return Candidate(placement.strip(), parse_bytes(size))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r}: {error}") from None


def _print_answer(decision: Decision, notes: dict[str, str], *, explained: bool) -> None:
    assert decision.index is not None  # the parser wants at least one candidate
    if not explained:
        passed_over = decision.verdicts if decision.fallback else decision.verdicts[: decision.index + 1]
        for verdict in passed_over:
            if verdict.status is not FitStatus.COMFORTABLE:
                print(f"{verdict.placement}: {_because(verdict)}", file=sys.stderr)
    if any(verdict.node is None and verdict.detail is None for verdict in decision.verdicts):
        _print_notes(notes)
    if decision.fallback:
        print("nothing fits", file=sys.stderr)
    else:
        print(decision.placement)


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
    return f"{text} ({verdict.detail})" if verdict.detail else text


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
        f"{verdict.reason.value} ({verdict.detail})" if verdict.detail else verdict.reason.value,
    ]


# -- printing -------------------------------------------------------------------------------------


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"


def _print_notes(notes: dict[str, str]) -> None:
    for source, note in notes.items():
        print(f"{source}: {note}", file=sys.stderr)


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass  # the extra is not installed; plain text says the same
        else:
            table = Table(*header, box=None, pad_edge=False, header_style="bold")
            for row in rows:
                table.add_row(*row)
            Console(highlight=False, markup=False).print(table)
            return
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
