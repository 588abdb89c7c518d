"""How the command line shows things: tables as wide as where they go, bars, and a table that is redrawn in place."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["Line", "Show", "Table", "bar", "formatted", "screen", "write"]

Line = list[tuple[str, str]]
"""A line of output: pieces of text, each with the style that rich gives it."""

Show = Callable[["Table", Sequence[str]], None]
"""Shows a table with notes below it, in the place of what it showed before."""

_GAP = 2  # blanks between two columns
_INDENT = 4  # blanks before the rest of a row that needs several lines
_FOLDED = 40  # characters that are enough for the last column, which may be folded

_FULL, _EMPTY = "\u2588", "\u2591"  # full block, light shade
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor
_HOME, _CLEAR, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"


# -- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header. Columns without any text are left out.

    Parameters
    ----------
    header : list of str
    rows : list of list of str
    styles : list of str
        What rich gives to a row's cells in the columns `styled`.
    styled : tuple of str
    """

    header: list[str]
    rows: list[list[str]]
    styles: Sequence[str] = ()
    styled: tuple[str, ...] = ()

    def lines(self, columns: int | None = None) -> list[Line]:
        """Lay the table out.

        Where it is wider than `columns`, all rows go on in further lines, the header too, broken
        before the same column. Cells are whole, but for those of the last column, which are folded.
        None is a width without end.
        """
        used = [i for i in range(len(self.header)) if any(row[i] for row in self.rows)]
        cells = [[row[i] for i in used] for row in (self.header, *self.rows)]
        widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
        groups, room = _broken(widths, sys.maxsize if columns is None else columns)
        coloured = [self.header[i] in self.styled for i in used]
        styles = self.styles or [""] * len(self.rows)
        lines = _row(cells[0], ["bold"] * len(used), widths, groups, room)
        for row, style in zip(cells[1:], styles, strict=True):
            lines += _row(row, [style if colour else "" for colour in coloured], widths, groups, room)
        return lines


def _broken(widths: list[int], columns: int) -> tuple[list[list[int]], int]:
    """Which cells share a line; and the width that is left for the last."""
    groups: list[list[int]] = [[]]
    left = room = columns
    for i, width in enumerate(widths):
        if groups[-1] and left < (min(width, _FOLDED) if i == len(widths) - 1 else width):
            groups.append([])
            left = columns - _INDENT
        groups[-1].append(i)
        room = max(left, _FOLDED)
        left -= width + _GAP
    return groups, room


def _row(cells: list[str], styles: list[str], widths: list[int], groups: list[list[int]], room: int) -> list[Line]:
    lines = []
    for number, group in enumerate(groups):
        line: Line = [(" " * _INDENT if number else "", "")]
        rest: list[str] = []
        for i in group:
            text = cells[i]
            if i == len(cells) - 1 and _width(text) > room:
                text, *rest = textwrap.wrap(text, room)
            line += [(text, styles[i]), (" " * (widths[i] - _width(text) + _GAP), "")]
        while line and not line[-1][0].strip():
            line.pop()
        if line or not number:  # a row that ends early needs no line for the rest of it
            lines.append(line)
        margin = (_INDENT if number else 0) + sum(widths[i] + _GAP for i in group[:-1])
        lines += [[(" " * margin, ""), (text, styles[-1])] for text in rest]
    return lines


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def bar(used: int, total: int) -> str:
    """A bar of ten characters that shows how much of `total` is used; in ASCII where standard output has no blocks."""
    blocks = _encodes(_FULL + _EMPTY)
    length = 10 if blocks else 8
    full = min((2 * used * length + total) // (2 * total), length)
    if blocks:
        return _FULL * full + _EMPTY * (length - full)
    return f"[{'#' * full}{'-' * (length - full)}]"


def _encodes(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# -- printing once --------------------------------------------------------------------------------


def formatted(table: Table) -> str:
    """A table as text for standard output: a line for each row, or as a terminal has room for it."""
    if not _is_terminal():
        return _plain(table.lines())
    size = get_terminal_size()
    lines = table.lines(size.columns)
    with suppress(ImportError):  # the extra is not installed; plain text says the same
        console = _console(size)
        with console.capture() as capture:
            console.print(_text(lines), soft_wrap=True)
        return capture.get()
    return _plain(lines)


def write(stream: TextIO | None, text: str) -> None:
    """Write a text whole, or raise OSError."""
    if not text:
        return
    _open(stream)
    assert stream is not None
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        _abandon(stream)
        raise


def _open(stream: TextIO | None) -> None:
    if stream is None or stream.closed:
        raise OSError("the stream is closed")
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # names come in every script


def _abandon(stream: TextIO) -> None:
    """See to it that what is left in the buffer does not fail once more at exit."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


def _is_terminal() -> bool:
    return sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()


def _plain(lines: list[Line]) -> str:
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _console(size: os.terminal_size) -> Console:
    """Raises ImportError where there is no rich."""
    from rich.console import Console

    # The texts are data: "[red]" and ":smile:" in a device's name mean themselves.
    return Console(highlight=False, markup=False, emoji=False, width=size.columns, height=size.lines)


def _text(lines: list[Line]) -> Text:
    from rich.text import Text

    return Text("\n").join(Text.assemble(*line) for line in lines)


# -- printing again and again ---------------------------------------------------------------------


@contextmanager
def screen() -> Iterator[Show]:
    """Redraw in place on a terminal that can; elsewhere one table follows another, after an empty line.

    Yields
    ------
    Show
        Raises OSError where it cannot be written.
    """
    if not _is_terminal() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield _one_after_another()
        return
    _open(sys.stdout)
    try:
        console = _console(get_terminal_size())
        from rich.live import Live
    except ImportError:
        with _redrawn() as show:
            yield show
        return
    if not console.is_terminal:  # the environment can tell rich so
        yield _one_after_another()
        return
    try:
        with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
            yield lambda table, notes: _update(live, table, notes)
    except OSError:
        _abandon(sys.stdout)
        raise


def _one_after_another() -> Show:
    before = ""

    def show(table: Table, notes: Sequence[str]) -> None:
        nonlocal before
        write(sys.stdout, before + _plain(_frame(table, notes, None)))
        before = "\n"

    return show


def _update(live: Any, table: Table, notes: Sequence[str]) -> None:
    live.console.size = size = get_terminal_size()  # it may have been resized
    live.update(_text(_frame(table, notes, size.columns)), refresh=True)


@contextmanager
def _redrawn() -> Iterator[Show]:
    """The same without rich: from the upper left corner of the terminal."""

    def show(table: Table, notes: Sequence[str]) -> None:
        size = get_terminal_size()
        lines = _plain(_frame(table, notes, size.columns)).splitlines()
        if len(lines) >= size.lines > 2:
            lines[size.lines - 2 :] = ["..."]
        write(sys.stdout, _HOME + "".join(f"{line}{_TO_END_OF_LINE}\n" for line in lines) + _TO_END)

    try:
        write(sys.stdout, _HIDE + _CLEAR)
        yield show
    finally:
        with suppress(OSError):  # there is no terminal any more
            write(sys.stdout, _SHOW)


def _frame(table: Table, notes: Sequence[str], columns: int | None) -> list[Line]:
    lines = table.lines(columns)
    for note in notes:
        folded = [note] if columns is None else textwrap.wrap(note, columns, subsequent_indent=" " * _INDENT)
        lines += [[(text, "dim")] for text in folded]
    return lines
