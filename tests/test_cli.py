"""The command line, as a user types it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

import vramsel as vs
from vramsel import cli
from vramsel.display import Table, bar, formatted
from vramsel.monitor import Monitor, watch
from vramsel.sources import FixedSource, Reading, Sample, Source

GIB = 1 << 30


class Machine(Source):
    name = "machine"
    backends = ("cpu", "cuda")

    def sample(self) -> Sample:
        return Sample(
            (
                Reading("cpu", 60 * GIB, 64 * GIB, device_name="host RAM"),
                Reading("cuda:0", 3 * GIB, 24 * GIB, device_name="A card", uuid="GPU-1"),
                Reading("cuda:1", reason="no context"),
                Reading("cuda:2", lost=True, reason="Xid 79"),
            ),
            frozenset({"cpu", "cuda"}),
            "all is not well",
        )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "watch", lambda: watch([Machine()]))


def run(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("machine")
def test_pick(capsys: pytest.CaptureFixture) -> None:
    assert run(capsys, "pick", "cuda:0=2GiB", "cpu=2GiB") == (
        0,
        "cpu\n",
        ("cuda:0: over the tight fraction: 2.0 GiB asked, 3.0 GiB available of 24.0 GiB\n"),
    )
    assert run(capsys, "pick", "cpu=1GB") == (0, "cpu\n", "")
    assert run(capsys, "pick", "cuda:0=4GiB", "cuda:2=1", "cuda:7=1", "cpu=1") == (
        0,
        "cpu\n",
        (
            "cuda:0: exceeds free: 4.0 GiB asked, 3.0 GiB available of 24.0 GiB, short by 1.0 GiB\n"
            "cuda:2: device lost (Xid 79)\n"
            "cuda:7: not present (all is not well)\n"
        ),
    )
    assert run(capsys, "pick", "cuda:1=4GiB", "cpu=1") == (0, "cuda:1\n", "cuda:1: no signal (no context)\n")
    code, out, err = run(capsys, "pick", "cuda:0=25GiB", "cpu=61GiB")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "cuda:0: exceeds total, never fits: 25.0 GiB asked, 3.0 GiB available of 24.0 GiB, short by 22.0 GiB",
        "cpu: exceeds free: 61.0 GiB asked, 60.0 GiB available of 64.0 GiB, short by 1.0 GiB",
        "nothing fits",
    ]


@pytest.mark.usefixtures("machine")
def test_pick_explain(capsys: pytest.CaptureFixture) -> None:
    code, out, err = run(capsys, "pick", "cuda:0=4GiB", "cuda:1=1", "cpu=1", "--explain")
    assert (code, err) == (0, "")
    header, *rows, pick = out.splitlines()
    assert " ".join(header.split()) == "candidate status bytes available total short by source age reason"
    assert len(rows) == 3
    assert rows[0].startswith("cuda:0     WONT_FIT     4.0 GiB  3.0 GiB    24.0 GiB  1.0 GiB   machine  0.0")
    assert rows[0].endswith("exceeds free")
    assert rows[1].endswith("no signal (no context)")
    assert pick == "cuda:1"


@pytest.mark.usefixtures("machine")
def test_pick_json(capsys: pytest.CaptureFixture) -> None:
    code, out, err = run(capsys, "pick", "cuda:0=4GiB", "cuda:7=1", "cpu=1", "--json")
    assert (code, err.splitlines()[1]) == (0, "cuda:7: not present (all is not well)")
    answer = json.loads(out)
    verdicts = answer.pop("verdicts")
    assert answer == {"index": 2, "placement": "cpu", "fallback": False}
    assert 0 <= verdicts[0].pop("age_s") < 60
    assert verdicts[0] == {
        "placement": "cuda:0",
        "node": "cuda:0",
        "status": "WONT_FIT",
        "reason": "exceeds free",
        "bytes": 4 * GIB,
        "available": 3 * GIB,
        "total": 24 * GIB,
        "short_by": GIB,
        "source": "machine",
    }
    assert verdicts[1] == {
        "placement": "cuda:7",
        "node": None,
        "status": "WONT_FIT",
        "reason": "not present",
        "bytes": 1,
        "available": None,
        "total": None,
        "short_by": 0,
        "source": None,
        "age_s": None,
    }
    code, out, _ = run(capsys, "pick", "cuda:7=1", "cuda:0=4GiB", "--json")
    answer = json.loads(out)
    assert (code, answer["index"], answer["placement"], answer["fallback"]) == (1, 1, "cuda:0", True)


@pytest.mark.usefixtures("machine")
def test_status(capsys: pytest.CaptureFixture) -> None:
    code, out, err = run(capsys, "status")
    assert (code, err) == (0, "machine: all is not well\n")
    header, *rows = out.splitlines()
    assert " ".join(header.split()) == "node placements name state free total in use pressure source age reason"
    assert [row.split()[0] for row in rows] == ["cpu", "cuda:0", "cuda:1", "cuda:2"]
    assert "3.0 GiB" in rows[1]
    assert [row[header.index("in use") : header.index("source")].strip() for row in rows] == [
        "\u2588" + 9 * "\u2591" + "  6% comfortable",
        9 * "\u2588" + "\u2591" + "  87% tight",
        "unknown",
        "lost",
    ]
    assert rows[2].endswith("no context")


@pytest.mark.usefixtures("machine")
def test_status_json(capsys: pytest.CaptureFixture) -> None:
    code, out, _ = run(capsys, "status", "--json")
    rows = json.loads(out)["nodes"]
    assert code == 0
    for row in rows:
        assert 0 <= row.pop("age_s") < 60
    assert rows[1] == {
        "node": "cuda:0",
        "placements": ["cuda:0"],
        "name": "A card",
        "uuid": "GPU-1",
        "state": "ok",
        "free": 3 * GIB,
        "total": 24 * GIB,
        "reserved": 0,
        "source": "machine",
        "reason": None,
    }
    assert rows[2] == {
        "node": "cuda:1",
        "placements": ["cuda:1"],
        "name": None,
        "uuid": None,
        "state": "unknown",
        "free": None,
        "total": None,
        "reserved": 0,
        "source": "machine",
        "reason": "no context",
    }
    assert rows[3]["state"] == "lost"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no command"),
        (["what"], "what"),
        (["pick"], "PLACEMENT=SIZE"),
        (["pick", "cpu"], "PLACEMENT=SIZE"),
        (["pick", "cuda:x=1GiB"], "cuda:x"),
        (["pick", "npx:0=1GiB"], "unknown backend 'npx'"),
        (["pick", "cpu=2G"], "ambiguous"),
        (["pick", "cpu=-1"], "negative"),
        (["pick", "cpu=1e32"], "1e32"),
        (["pick", "cpu=" + "9" * 33], "above"),
        (["pick", "cpu="], "''"),
        (["pick", "=1"], "unknown backend ''"),
        (["pick", "cpu=1", "--what"], "--what"),
        (["status", "cpu"], "cpu"),
        (["status", "--interval", "1"], "--watch"),
        (["status", "--watch", "--interval", "0"], "seconds of at least"),
        (["status", "--watch", "--interval", "-1"], "seconds of at least"),
        (["status", "--watch", "--interval", "nan"], "seconds of at least"),
        (["status", "--watch", "--interval", "inf"], "seconds of at least"),
        (["status", "--watch", "--interval", "1s"], "seconds of at least"),
    ],
)
def test_wrong_use_is_told_in_one_line(capsys: pytest.CaptureFixture, arguments: list[str], words: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_sizes_are_forgiving(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "watch", lambda: watch([FixedSource({"cpu": (2 * 10**9, 10**12)})]))
    assert run(capsys, "pick", "cpu=2GB ", "--json")[0] == 0
    assert run(capsys, "pick", "cpu=2 gib", "--json")[0] == 1


def vramsel(*arguments: str) -> subprocess.CompletedProcess:
    # -P: not the sources in the current folder, which have no compiled core.
    command = [sys.executable, "-P", "-m", "vramsel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_this_machine() -> None:
    """The main job, on real memory: no device can be cuda:65535."""
    done = vramsel("pick", "cpu=1MiB")
    assert (done.returncode, done.stdout, done.stderr) == (0, "cpu\n", "")
    done = vramsel("status", "--json")
    (cpu,) = [row for row in json.loads(done.stdout)["nodes"] if row["node"] == "cpu"]
    assert cpu["state"] == "ok"
    assert 0 < cpu["free"] <= cpu["total"]


def test_a_machine_without_cuda() -> None:
    if any(row["node"].startswith("cuda") for row in json.loads(vramsel("status", "--json").stdout)["nodes"]):
        pytest.skip("this machine has a CUDA device")
    done = vramsel("pick", "cuda:0=1MiB", "cpu=1MiB")
    assert (done.returncode, done.stdout) == (0, "cpu\n")
    assert done.stderr.startswith("cuda:0: not present (")
    assert done.stderr.count("\n") == 1


def test_version_and_help() -> None:
    from importlib.metadata import version

    assert vramsel("--version").stdout == f"vramsel {version('vramsel')}\n"
    for command in ([], ["pick"], ["status"]):
        assert "usage: vramsel" in vramsel(*command, "--help").stdout


BUFFERING = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


def with_streams(unbuffered: str, *arguments: str, out: object, err: object, **more: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, **more}
    command = [sys.executable, "-P", "-m", "vramsel", *arguments]
    return subprocess.Popen(command, stdout=out, stderr=err, env=environment)


@BUFFERING
@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["pick", "cpu=1"], ["--help"], ["--version"]])
def test_a_reader_that_has_left(unbuffered: str, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = with_streams(unbuffered, *arguments, out=writer, err=subprocess.PIPE)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Exception" not in err
    assert b"Traceback" not in err


@BUFFERING
def test_a_reader_of_the_notes_that_has_left(unbuffered: str) -> None:
    for arguments, status in ((["pick", "metal:0=1", "cpu=1"], 0), (["pick", "cpu=1EiB"], 1), (["pick", "x"], 2)):
        reader, writer = os.pipe()
        os.close(reader)
        process = with_streams(unbuffered, *arguments, out=subprocess.PIPE, err=writer)
        os.close(writer)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (status, b"metal:0\n" if status == 0 else b"")


@BUFFERING
def test_streams_that_cannot_be_written(unbuffered: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this platform")
    with open("/dev/full", "wb") as full:
        process = with_streams(unbuffered, "pick", "cpu=1", out=full, err=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2, "an answer that nobody got is not a yes, and not a no"
        assert err.count(b"\n") == 1
        process = with_streams(unbuffered, "pick", "metal:0=1", out=subprocess.PIPE, err=full)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, b"metal:0\n")


@pytest.mark.parametrize("closed", ["1", "2"])
def test_closed_streams(closed: str) -> None:
    for arguments in ("status", "pick metal:0=1 --explain", "pick metal:0=1"):
        command = f"{sys.executable} -P -m vramsel {arguments} {closed}>&-"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == (2 if closed == "1" else 0), "an answer that nobody got is no yes"
        assert "Traceback" not in done.stderr
        if closed == "2" and arguments.endswith("=1"):
            assert done.stdout == "metal:0\n", "a note must not end up among the answers"


@pytest.mark.usefixtures("machine")
def test_what_the_monitor_logs_is_not_printed_twice(capsys: pytest.CaptureFixture) -> None:
    # With no handler, as in a process that has not set up logging; pytest has one.
    handlers = logging.root.handlers[:]
    logging.root.handlers.clear()
    try:
        assert run(capsys, "status")[2] == "machine: all is not well\n"
    finally:
        logging.root.handlers[:] = handlers


def test_an_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "watch", interrupted)
    assert run(capsys, "status") == (130, "", "")


class OddNames(Source):
    name = "a:x: source"

    def sample(self) -> list[Reading]:
        return [Reading("cpu", 1, 9, device_name="[red]A:100:\n\x1b[31m \u00fcber", reason="two\nlines")]


def test_names_are_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(cli, "watch", lambda: watch([OddNames()]))
    code, out, _ = run(capsys, "status")
    assert (code, out.count("\n")) == (0, 2)
    assert "[red]A:100: ?[31m \u00fcber" in out
    assert "two lines" in out


def test_names_that_the_terminal_cannot_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "watch", lambda: watch([OddNames()]))
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii", write_through=True))
    assert cli.main(["status"]) == 0
    assert b"\\xfcber" in buffer.getvalue()


@pytest.mark.usefixtures("machine")
def test_what_ranks_below_the_pick_is_not_spoken_of(capsys: pytest.CaptureFixture) -> None:
    assert run(capsys, "pick", "cpu=1", "cuda:0=25GiB") == (0, "cpu\n", "")
    assert run(capsys, "pick", "metal:0=1") == (0, "metal:0\n", "metal:0: no signal (no source reports it)\n")


def test_options_are_not_abbreviated(capsys: pytest.CaptureFixture) -> None:
    assert run(capsys, "status", "--js")[0] == 2
    assert run(capsys, "pick", "cpu=1", "--exp")[0] == 2


# ---- tables ---------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


REASON = (
    "limited to 64.0 GiB by cgroup /user.slice/user-1000.slice; free is what cgroup /user.slice has left of 96.0 GiB"
)
TABLE = Table(
    ["node", "name", "free", "nothing", "pressure", "reason"],
    [
        ["cpu", "host RAM, \u8a18\u61b6", "40.0 GiB", "", "37% comfortable", REASON],
        ["cuda:0", "[red]A:100:", "3.0 GiB", "", "87% tight", ""],
    ],
    styles=["green", "yellow"],
    styled=("pressure",),
)


@pytest.fixture(params=["rich", "plain"])
def rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With rich, and without."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "rich":
        pytest.importorskip("rich", reason="rich (the cli extra) is not installed")
        return True
    for name in ("rich", "rich.console", "rich.live", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    return False


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch, rich: bool, columns: int) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    text = formatted(TABLE)
    assert text.startswith("\x1b[1mnode" if rich else "node")
    assert ("\x1b[33m87% tight\x1b[0m" if rich else "87% tight") in text
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert (
        lines
        == {
            30: [
                "node    name",
                "    free      pressure",
                "    reason",
                "cpu     host RAM, \u8a18\u61b6",
                "    40.0 GiB  37% comfortable",
                *[f"    {line}" for line in textwrap.wrap(REASON, 40)],
                "cuda:0  [red]A:100:",
                "    3.0 GiB   87% tight",
            ],
            80: [
                "node    name            free      pressure",
                "    reason",
                "cpu     host RAM, \u8a18\u61b6  40.0 GiB  37% comfortable",
                *[f"    {line}" for line in textwrap.wrap(REASON, 76)],
                "cuda:0  [red]A:100:     3.0 GiB   87% tight",
            ],
            200: [
                "node    name            free      pressure         reason",
                f"cpu     host RAM, \u8a18\u61b6  40.0 GiB  37% comfortable  {REASON}",
                "cuda:0  [red]A:100:     3.0 GiB   87% tight",
            ],
        }[columns]
    )


def test_a_reason_is_folded_beside_the_row_where_there_is_room(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "100")
    header, first, second, third, last = re.sub(r"\x1b\[[0-9;]*m", "", formatted(TABLE)).splitlines()
    assert header.index("reason") == 51
    assert f"{first[49:]} {second[51:]} {third[51:]}" == REASON  # two characters take two columns each
    assert second[:51] == " " * 51
    assert last.startswith("cuda:0")


def test_elsewhere_a_row_is_a_line() -> None:
    class File(io.StringIO):
        encoding = "utf-8"

    with contextlib.redirect_stdout(File()):
        lines = formatted(TABLE).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith(REASON)
    assert "nothing" not in lines[0], "a column without text is left out"


@pytest.mark.parametrize(
    ("used", "total", "blocks", "ascii"),
    [
        (0, 7, 0, 0),
        (1, 10, 1, 1),
        (49, 1000, 0, 0),
        (5, 10, 5, 4),
        (94, 100, 9, 8),
        (7, 7, 10, 8),
        (2**64 - 1, 2**64 - 1, 10, 8),
        (9, 7, 10, 8),
    ],
)
def test_bars(monkeypatch: pytest.MonkeyPatch, used: int, total: int, blocks: int, ascii: int) -> None:
    bars = []
    for encoding in ("utf-8", "cp437", "ascii", "latin-1", None):
        stream = io.StringIO() if encoding is None else io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        bars.append(bar(used, total))
    in_blocks = blocks * "\u2588" + (10 - blocks) * "\u2591"
    in_ascii = f"[{ascii * '#'}{(8 - ascii) * '-'}]"
    assert bars == [in_blocks, in_blocks, in_ascii, in_ascii, in_ascii]


@pytest.mark.parametrize(
    ("free", "total", "policy", "shown"),
    [
        (15, 100, vs.FitPolicy(), "85% comfortable"),
        (14, 100, vs.FitPolicy(), "86% tight"),
        (14, 100, vs.FitPolicy(tight_fraction=0.9), "86% comfortable"),
        (14, 100, vs.FitPolicy(tight_margin=14), "86% comfortable"),
        (14, 100, vs.FitPolicy(tight_margin=15), "86% tight"),
        (50, 100, vs.FitPolicy(headroom=40), "50% tight"),
        (50, 100, vs.FitPolicy(headroom=50), "50% full"),
        (1, 10**6, vs.FitPolicy(), "99% tight"),
        (0, 100, vs.FitPolicy(), "100% full"),
        (100, 100, vs.FitPolicy(), "0% comfortable"),
        (None, 100, vs.FitPolicy(), "unknown"),
        (7, None, vs.FitPolicy(), "unknown"),
        (0, None, vs.FitPolicy(), "full"),
        (0, 0, vs.FitPolicy(), "unknown"),
    ],
)
def test_pressure_is_what_the_table_says_of_no_bytes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    free: int | None,
    total: int | None,
    policy: vs.FitPolicy,
    shown: str,
) -> None:
    machine = FixedSource({"cpu": (free, total)})
    monkeypatch.setattr(cli, "watch", lambda: watch([machine], policy={"cpu": policy}))
    header, row = run(capsys, "status")[1].splitlines()
    assert row[header.index("pressure") : header.index("source")].strip() == shown
    word = shown.split()[-1]
    if word != "full":
        assert watch([machine], policy=policy).table.would_fit("cpu", 0).name.lower() == word
    state = json.loads(run(capsys, "status", "--json")[1])["nodes"][0]["state"]
    assert state == ("unknown" if free is None or total == 0 else "ok")


class Unified(Source):
    name = "unified"

    def sample(self) -> list[Reading]:
        shared = {"shares": "cpu", "total": 100 * GIB, "headroom": 2 * GIB}
        return [
            Reading("cpu", 60 * GIB, 64 * GIB, device_name="host RAM"),
            Reading("cuda:0", **shared, device_name="NVIDIA GB10", uuid="GPU-10"),
            Reading("vulkan:0", **shared, device_name="NVIDIA GB10"),
        ]


def test_a_node_that_a_device_shares(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(cli, "watch", lambda: watch([Unified()]))
    (row,) = json.loads(run(capsys, "status", "--json")[1])["nodes"]
    assert row["placements"] == ["cpu", "cuda:0", "vulkan:0"]
    assert (row["name"], row["uuid"]) == ("host RAM, NVIDIA GB10", "GPU-10")
    _, line = run(capsys, "status")[1].splitlines()
    assert line.startswith("cpu   cpu cuda:0 vulkan:0  host RAM, NVIDIA GB10  ok")


# ---- status --watch -------------------------------------------------------------------------


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A monitor of `Machine`; a user who presses Ctrl-C after three tables; what was slept and asked for."""
    seen: list[float] = []

    def sleep(seconds: float) -> None:
        seen.append(seconds)
        if len(seen) == 4:
            raise KeyboardInterrupt

    def monitor(interval: float) -> Monitor:
        seen.append(interval)
        return watch([Machine()], interval=interval)

    monkeypatch.setattr(cli, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(cli, "watch", monitor)
    return seen


def test_watching_prints_one_table_after_another(watching: list[float], capsys: pytest.CaptureFixture) -> None:
    code, out, err = run(capsys, "status", "--watch")
    assert (code, err) == (0, "")
    tables = [text.splitlines() for text in out.split("\n\n")]
    assert [len(lines) for lines in tables] == [6, 6, 6]
    assert all(lines[0].startswith("node") for lines in tables)
    assert all(lines[-1] == "machine: all is not well" for lines in tables)
    assert watching == [0.5, 1.0, 1.0, 1.0]


def test_watching_in_json(watching: list[float], capsys: pytest.CaptureFixture) -> None:
    code, out, err = run(capsys, "status", "--watch", "--json", "--interval", "0.01")
    assert (code, err) == (0, "machine: all is not well\n"), "told once"
    lines = [json.loads(line) for line in out.splitlines()]
    assert [list(line) for line in lines] == [["nodes"]] * 3
    assert lines[0]["nodes"][1]["uuid"] == "GPU-1"
    assert watching == [0.01] * 4


@pytest.mark.usefixtures("watching")
def test_watching_for_ages(watching: list[float], capsys: pytest.CaptureFixture) -> None:
    assert run(capsys, "status", "--watch", "--interval", "1e300")[0] == 0
    assert watching == [0.5, 1e6, 1e6, 1e6]


@pytest.mark.usefixtures("watching")
def test_watching_where_a_terminal_cannot_redraw(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    assert cli.main(["status", "--watch"]) == 0
    assert "\x1b" not in terminal.getvalue()
    assert terminal.getvalue().count("\n\nnode") == 2


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("height", [5, 24])
def test_watching_on_a_terminal(monkeypatch: pytest.MonkeyPatch, rich: bool, height: int) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("LINES", str(height))
    assert cli.main(["status", "--watch"]) == 0
    output = terminal.getvalue()
    assert output.startswith("\x1b[?25l")
    assert output.endswith("\x1b[?25h")
    at_work, _, at_the_end = output.rpartition("\x1b[?25h")
    assert at_the_end == ""
    lines = screen_after(at_work, height)
    if height == 24:
        assert [line.split()[0] for line in lines if line] == ["node", "cpu", "cuda:0", "cuda:1", "cuda:2", "machine:"]
    else:
        assert output.count("...") == 3, "what the terminal has no line for"


def screen_after(output: str, height: int) -> list[str]:
    """What a terminal shows after it got this."""
    lines, row, column = [""] * height, 0, 0
    for piece in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if piece == "\n":
            row, column = row + 1, 0  # the terminal's driver adds the carriage return
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[H":
            row = column = 0
        elif piece == "\x1b[2J":
            lines = [""] * height
        elif piece == "\x1b[J":
            lines[row:] = [lines[row][:column]] + [""] * (height - row - 1)
        elif piece == "\x1b[K":
            lines[row] = lines[row][:column]
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif piece.startswith("\x1b") and piece.endswith("A"):
            row -= int(piece[2:-1])
        elif not piece.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
            column += len(piece)
        else:
            assert piece[-1] in "mhl", piece
        while row >= height:
            lines, row = [*lines[1:], ""], row - 1
    return lines


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("error", [BrokenPipeError(32, "gone"), OSError(28, "full")])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_watching_with_nobody_to_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, error: OSError, arguments: list[str]
) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stdout", Broken())
    assert cli.main(["status", "--watch", *arguments]) == (0 if isinstance(error, BrokenPipeError) else 2)
    told = capsys.readouterr().err.replace("machine: all is not well\n", "")
    assert told == ("" if isinstance(error, BrokenPipeError) else "vramsel: cannot write the answer: [Errno 28] full\n")


# A shell without job control starts what runs beside it with interrupts ignored, and so may whoever runs the tests.
MAIN = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); import vramsel.cli as cli; "


def until_interrupted(output: int, process: subprocess.Popen, refreshes: int = 2) -> str:
    """What it printed: it is interrupted after so many tables, and read to the end."""
    printed, interrupted = b"", False
    while True:
        try:
            chunk = os.read(output, 65536)
        except OSError:  # what the end of a pseudo-terminal is on Linux
            chunk = b""
        if not chunk:
            return printed.decode()
        printed += chunk
        if not interrupted and printed.count(b"pressure") >= refreshes:
            process.send_signal(signal.SIGINT)
            interrupted = True


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C cannot be sent to one process")
def test_watching_through_a_pipe_until_an_interrupt() -> None:
    script = MAIN + "sys.exit(cli.main(['status', '--watch', '--interval', '0.05']))"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    ) as process:
        output = until_interrupted(process.stdout.fileno(), process)
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert len(output.split("\n\n")) >= 2
    assert re.search(r"^cpu +cpu .*\[#*-*\]  \d+% ", output, re.MULTILINE)


def on_a_terminal(columns: int, *command: str, interrupt: bool = False) -> str:
    """What a command prints on a pseudo-terminal: its standard input, output and error."""
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this platform")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": ""}
    with subprocess.Popen(
        [sys.executable, "-P", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        output = until_interrupted(ours, process, 2 if interrupt else sys.maxsize)
    os.close(ours)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("without", ["", "sys.modules['rich'] = None; "], ids=["rich", "plain"])
def test_watching_in_place_until_an_interrupt(without: str) -> None:
    if not without:
        pytest.importorskip("rich", reason="rich (the cli extra) is not installed")
    script = f"{MAIN}{without}sys.exit(cli.main(['status', '--watch', '--interval', '0.05']))"
    output = on_a_terminal(160, "-c", script, interrupt=True)
    assert "Traceback" not in output
    assert output.count("pressure") >= 2
    assert 0 <= output.rindex("\x1b[?25l") < output.rindex("\x1b[?25h"), "the cursor is there again"
    shown = "\n".join(screen_after(output, 24))
    assert shown.count("pressure") == shown.count("host RAM") == 1, "in place"


@pytest.mark.parametrize("columns", [40, 80, 200, 0])
def test_a_terminal_of_any_width_shows_numbers_whole(columns: int) -> None:
    output = on_a_terminal(columns, "-m", "vramsel", "pick", "metal:0=3GiB", "cpu=12345B", "--explain")
    for text in ("metal:0", "UNKNOWN", "3.0 GiB", "COMFORTABLE", "12.1 KiB"):
        assert text in output


def test_a_terminal_gets_a_table() -> None:
    pytest.importorskip("rich", reason="rich (the cli extra) is not installed")
    output = on_a_terminal(150, "-m", "vramsel", "status")
    assert "host RAM" in output
    assert "\x1b[1m" in output, "rich prints the header in bold"
