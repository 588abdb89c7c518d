"""The command line, as a user types it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from vramsel import cli
from vramsel.monitor import watch
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
    assert header.split() == ["node", "placements", "name", "state", "free", "total", "source", "age", "reason"]
    assert [row.split()[0] for row in rows] == ["cpu", "cuda:0", "cuda:1", "cuda:2"]
    assert "3.0 GiB" in rows[1]
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
    table = cli._rich_table(["name", "reason"], [["[red]A:100:", "m:x:"]])
    assert "[red]A:100:" in table
    assert "m:x:" in table


def test_names_that_the_terminal_cannot_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "watch", lambda: watch([OddNames()]))
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii", write_through=True))
    assert cli.main(["status"]) == 0
    assert b"\\xfcber" in buffer.getvalue()


@pytest.mark.parametrize("columns", ["40", "60", "80", "110", "200", "0"])
def test_a_terminal_of_any_width_shows_numbers_whole(columns: str) -> None:
    output = on_a_terminal(columns, "pick", "metal:0=3GiB", "cpu=12345B", "--explain")
    for text in (b"metal:0", b"UNKNOWN", b"3.0 GiB", b"COMFORTABLE", b"12.1 KiB"):
        assert text in output


@pytest.mark.usefixtures("machine")
def test_what_ranks_below_the_pick_is_not_spoken_of(capsys: pytest.CaptureFixture) -> None:
    assert run(capsys, "pick", "cpu=1", "cuda:0=25GiB") == (0, "cpu\n", "")
    assert run(capsys, "pick", "metal:0=1") == (0, "metal:0\n", "metal:0: no signal (no source reports it)\n")


def test_options_are_not_abbreviated(capsys: pytest.CaptureFixture) -> None:
    assert run(capsys, "status", "--js")[0] == 2
    assert run(capsys, "pick", "cpu=1", "--exp")[0] == 2


def on_a_terminal(columns: str, *arguments: str) -> bytes:
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this platform")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": columns, "NO_COLOR": ""}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "vramsel", *arguments],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                break
            if not chunk:
                break
            output += chunk
    os.close(ours)
    assert process.returncode == 0
    return output


def test_a_terminal_gets_a_table() -> None:
    pytest.importorskip("rich", reason="rich (the cli extra) is not installed")
    output = on_a_terminal("150", "status")
    assert b"host RAM" in output
    assert b"\x1b[1m" in output, "rich prints the header in bold"
