"""The command line: ``vramsel status`` and ``vramsel pick``.

Exit status: 0 done; 1 the answer is no (nothing fits, or too few devices do); 2 wrong use, or the answer could not be
written, told in one line; 130 interrupted, except ``status --watch``, which is left by Ctrl-C: 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, NoReturn

from .decision import Decision, Verdict, explain
from .display import Table, bar, formatted, screen, write
from .errors import one_line
from .fit import FitStatus, Reason
from .monitor import Monitor, watch
from .placement import backend_code
from .records import AlternativeSet, Candidate
from .shell import Choice, NodeView, Room, choose, node_views
from .units import format_bytes, parse_bytes

__all__ = ["main"]

_SHORTEST = 0.01  # seconds between two shows, for --watch
_SAMPLING = 0.5  # seconds between two samples at most, for --watch
_LONGEST_SLEEP = 1e6  # seconds; more than it can be asked for is no error
_MASK = "CUDA_VISIBLE_DEVICES"


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
        _tell(answer.err)
        try:
            write(sys.stdout, answer.out)
        except BrokenPipeError:
            pass  # a reader that has left is none of our business
        except OSError as error:
            return _unwritten(error)
    except KeyboardInterrupt:
        return 130
    return answer.status


def _tell(text: str) -> None:
    """Write to standard error, if somebody is there."""
    with suppress(OSError):
        write(sys.stderr, text)


def _unwritten(error: OSError) -> int:
    _tell(f"vramsel: cannot write the answer: {one_line(error)}\n")
    return 2


# -- what can be asked ----------------------------------------------------------------------------

_STATUS = """\
One row for each memory node: how much of it is free, and how it would be judged. Pressure is the part that is in use,
and comfortable, tight (whatever is put there is a last resort), full (nothing is available), unknown or lost.
Ctrl-C ends --watch, with exit status 0.
"""
_STATUS_MORE = """\
--json: {"nodes": [{"node", "placements", "name", "uuid", "state", "free", "total", "reserved", "source", "age_s",
"reason"}]}; state is ok, unknown or lost; bytes are integers, null is unknown. With --watch, one such object a line.
"""
_PICK = """\
With candidates: print the first, in the order given, whose memory can take it now or is not known; one that would
leave its memory nearly full is a last resort. What was passed over, and why, goes to standard error.

Without: print the N devices of a backend that have the most room, most room first, as CUDA_VISIBLE_DEVICES takes
them: as ordinals, or as UUIDs. Only devices count whose free memory is known and, less the headroom of their policy,
at least SIZE.

Exit status 1 when nothing fits, or too few devices qualify; then standard output stays empty (JSON apart).
"""
_PICK_MORE = """\
examples:
  vramsel pick cuda:0=2GiB cpu=2GiB
  gpus=$(vramsel pick -n 2 --min-free 8GiB --uuid --sep ,) && CUDA_VISIBLE_DEVICES=$gpus python train.py

--json, with candidates: {"index", "placement", "fallback", "verdicts": [{"placement", "node", "status", "reason",
"bytes", "available", "total", "short_by", "source", "age_s"}]}
--json, without: {"devices": [{"placement", "uuid", "node", "available", "total"}], "asked", "missing"}; devices are
those that qualify, as many as were asked or fewer.
"""


def _parser() -> _Parser:
    parser = _Parser(
        prog="vramsel", description="Where does this fit? Free memory of this machine's devices.", allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    status = commands.add_parser(
        "status",
        help="free and total memory of every node",
        description=_STATUS,
        epilog=_STATUS_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    status.add_argument("--watch", action="store_true", help="show it again and again, in place, until Ctrl-C")
    status.add_argument("--interval", metavar="SECONDS", type=_seconds, help="between two, with --watch (default 1.0)")
    status.add_argument("--json", action="store_true", help="print JSON")

    pick = commands.add_parser(
        "pick",
        help="the first candidate whose memory can take it, or the devices with the most room",
        usage="vramsel pick PLACEMENT=SIZE [PLACEMENT=SIZE ...] [--explain] [--json]\n"
        "       vramsel pick [-n N] [--min-free SIZE] [--backend NAME] [--uuid] [--sep TEXT | --json]",
        description=_PICK,
        epilog=_PICK_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    pick.add_argument("--json", action="store_true", help="print JSON")
    candidates = pick.add_argument_group("candidates, in cost order")
    candidates.add_argument(
        "candidates", nargs="*", metavar="PLACEMENT=SIZE", help="such as cuda:0=2GiB (2^30) or cpu=2GB (10^9)"
    )
    candidates.add_argument("--explain", action="store_true", help="print a line for each candidate")
    devices = pick.add_argument_group("devices, by room")
    devices.add_argument("-n", dest="count", metavar="N", type=_count, help="how many (default 1)")
    devices.add_argument(
        "--min-free", metavar="SIZE", type=_size, help="what each must have available, such as 8GiB (default 0)"
    )
    devices.add_argument("--backend", metavar="NAME", type=_backend, help="whose devices (default cuda)")
    devices.add_argument(
        "--uuid",
        action="store_true",
        default=None,
        help="print UUIDs instead of ordinals, which suits MIG instances too",
    )
    devices.add_argument("--sep", metavar="TEXT", help="between two devices, such as , (default: one a line)")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and seconds >= _SHORTEST):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds of at least {_SHORTEST}")
    return seconds


def _count(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices, such as 2")
    return int(digits)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _backend(text: str) -> str:
    try:
        backend_code(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _answer(arguments: Sequence[str] | None) -> Answer:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.version:
        from . import __version__

        return Answer(0, out=f"vramsel {__version__}\n")
    if options.command is None:
        parser.error("no command; try 'vramsel status', 'vramsel pick cuda:0=2GiB cpu=2GiB' or --help")
    return _status(options) if options.command == "status" else _pick(options)


def _wrong_use(command: str, what: object) -> _Stop:
    return _Stop(Answer(2, err=f"vramsel {command}: {one_line(what)}\n"))


# -- status ---------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> Answer:
    if options.watch:
        return _watch(options)
    if options.interval is not None:
        raise _wrong_use("status", "--interval goes with --watch")
    with closing(watch()) as monitor:
        nodes = node_views(monitor.table)
        notes = _notes(monitor)
    out = _json(nodes, indent=2) if options.json else formatted(_status_table(nodes))
    return Answer(0, out, "".join(f"{note}\n" for note in notes))


def _watch(options: argparse.Namespace) -> Answer:
    """Print the status again and again, until an interrupt or until nobody reads it."""
    interval = 1.0 if options.interval is None else options.interval
    # The cursor is to be seen again.
    previous = (
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number)) if _in_main_thread() else None
    )
    try:
        with watch(interval=min(interval, _SAMPLING)) as monitor:
            if options.json:
                _watch_json(monitor, interval)
            with screen() as show:
                while True:
                    show(_status_table(node_views(monitor.table)), _notes(monitor))
                    time.sleep(min(interval, _LONGEST_SLEEP))
    except (KeyboardInterrupt, BrokenPipeError):
        return Answer(0)
    except OSError as error:
        return Answer(_unwritten(error))
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _watch_json(monitor: Monitor, interval: float) -> NoReturn:
    told: list[str] = []
    while True:
        notes = _notes(monitor)
        _tell("".join(f"{note}\n" for note in notes if note not in told))
        told = notes
        write(sys.stdout, _json(node_views(monitor.table)))
        time.sleep(min(interval, _LONGEST_SLEEP))


def _notes(monitor: Monitor) -> list[str]:
    return [f"{source}: {note}" for source, note in monitor.errors.items()]


def _json(nodes: list[NodeView], indent: int | None = None) -> str:
    return json.dumps({"nodes": [node.as_dict() for node in nodes]}, indent=indent) + "\n"


_COLOURS = {"comfortable": "green", "tight": "yellow", "full": "red", "lost": "red", "unknown": "dim"}


def _status_table(nodes: list[NodeView]) -> Table:
    return Table(
        ["node", "placements", "name", "state", "free", "total", "in use", "pressure", "source", "age", "reason"],
        [_status_cells(node) for node in nodes],
        styles=[_COLOURS[node.pressure] for node in nodes],
        styled=("in use", "pressure"),
    )


def _status_cells(node: NodeView) -> list[str]:
    in_use, pressure = "", node.pressure
    if node.free is not None and node.total is not None:
        used = max(node.total - node.free, 0)
        in_use = bar(used, node.total)
        pressure = f"{used * 100 // node.total}% {pressure}"  # 100% only where all of it is
    return [
        node.name,
        " ".join(node.placements),
        node.device_name or "",
        node.state,
        format_bytes(node.free),
        format_bytes(node.total),
        in_use,
        pressure,
        node.source,
        _age(node.age_s),
        node.reason or "",
    ]


# -- pick -----------------------------------------------------------------------------------------


def _pick(options: argparse.Namespace) -> Answer:
    wanted = {"-n": "count", "--min-free": "min_free", "--backend": "backend", "--uuid": "uuid", "--sep": "sep"}
    given = [option for option, name in wanted.items() if getattr(options, name) is not None]
    if options.candidates and given:
        raise _wrong_use("pick", f"{given[0]} does not go with candidates: it asks for the devices with the most room")
    if given:
        return _pick_devices(options)
    if not options.candidates:
        raise _wrong_use("pick", "name candidates as PLACEMENT=SIZE, or ask for devices by -n, --min-free or --backend")
    try:
        alternatives = AlternativeSet([_candidate(text) for text in options.candidates])
    except (TypeError, ValueError) as error:
        raise _wrong_use("pick", error) from None
    with closing(watch()) as monitor:
        decision = explain(monitor.table, alternatives)
    answer = Answer(1 if decision.fallback else 0)
    if options.json:
        answer.out = json.dumps(decision.as_dict(), indent=2) + "\n"
    elif options.explain:
        answer.out = formatted(
            Table(
                ["candidate", "status", "bytes", "available", "total", "short by", "source", "age", "reason"],
                [_verdict_cells(verdict) for verdict in decision.verdicts],
            )
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


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"


# -- pick: devices by room ------------------------------------------------------------------------


def _pick_devices(options: argparse.Namespace) -> Answer:
    if options.explain:
        raise _wrong_use("pick", "--explain goes with candidates, PLACEMENT=SIZE")
    if options.json and options.sep is not None:
        raise _wrong_use("pick", "--sep does not go with --json")
    backend = options.backend or "cuda"
    least = options.min_free or 0
    with closing(watch()) as monitor:
        choice = choose(monitor.table, backend, options.count or 1, least, by_uuid=bool(options.uuid))
    answer = Answer(1 if choice.missing else 0)
    if options.json:
        answer.out = json.dumps(choice.as_dict(), indent=2) + "\n"
    elif not choice.missing:
        separator = "\n" if options.sep is None else options.sep
        answer.out = separator.join(_device_name(room, options.uuid) for room in choice.devices) + "\n"
    masked = backend == "cuda" and _MASK in os.environ
    if choice.missing:
        hidden = f"; {_MASK} is set and may hide others" if masked else ""
        answer.err = f"{_too_few(choice, backend, least)}{hidden}\n"
    elif masked and not options.uuid and not options.json:
        answer.err = f"{_MASK} is set: these ordinals count within that mask, and UUIDs (--uuid) do not\n"
    return answer


def _device_name(room: Room, by_uuid: bool | None) -> str:
    return str(room.uuid) if by_uuid else str(room.placement.device)


def _too_few(choice: Choice, backend: str, least: int) -> str:
    """One line on how many devices are missing, and by how much each of the others is short."""
    found, listed = len(choice.devices), len(choice.devices) + len(choice.refused)
    devices = "device" if choice.asked == 1 else "devices"
    if least:
        have = f"{'has' if found < 2 else 'have'} {format_bytes(least)} free"
    else:
        have = "qualifies" if found < 2 else "qualify"
    parts = [f"{choice.asked} {backend} {devices} asked, {found or 'none'} {have}, {choice.missing} missing"]
    if not listed:
        parts.append(f"no {backend} device is listed ({choice.note or 'no source reports any'})")
    elif listed < choice.asked:
        parts.append(f"there {'is' if listed == 1 else 'are'} {listed} in all")
    return "; ".join([*parts, *map(_refusal, choice.refused)])


def _refusal(room: Room) -> str:
    verdict = room.verdict
    if verdict.short_by:
        return f"{verdict.placement} is short by {format_bytes(verdict.short_by)}"
    if room.is_enough:
        return f"{verdict.placement}: its UUID is not known"
    return f"{verdict.placement}: {_because(verdict)}"
