"""The host source: what the kernel says of memory and of the limits of control groups, as files in a folder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

import vramsel as vs
from vramsel.sources import HostSource, Reading, Sample

GIB = 1 << 30
MIB = 1 << 20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="files of /proc are looked at on Linux only")

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
NO_LIMIT = 9223372036854771712  # LONG_MAX rounded to a page


@dataclass
class Machine:
    """What a process sees of its machine. Sizes are GiB; the rest is what stands in the files."""

    cgroup: str | None = "0::/"
    mounts: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    meminfo: dict[str, float] | str | None = field(default_factory=lambda: {"MemTotal": 32, "MemAvailable": 28})

    def write(self, root: Path) -> Path:
        texts = dict(self.files)
        if self.meminfo is not None:
            lines = self.meminfo
            if isinstance(lines, dict):
                lines = "".join(f"{name}:{int(size * GIB) // 1024:>12} kB\n" for name, size in lines.items())
            texts["/proc/meminfo"] = lines
        if self.cgroup is not None:
            texts["/proc/self/cgroup"] = self.cgroup + "\n"
        rows = ["22 27 0:21 / /proc rw,relatime - proc proc rw", "23 27 0:22 / /sys rw - sysfs sysfs rw", *self.mounts]
        texts["/proc/self/mountinfo"] = "\n".join(rows) + "\n"
        for name, text in texts.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root


def mount1(point: str = V1, top: str = "/", options: str = "rw,memory") -> str:
    return f"35 31 0:32 {top} {point} rw,nosuid shared:9 master:3 - cgroup cgroup {options}"


def mount2(point: str = V2, top: str = "/") -> str:
    return f"41 31 0:38 {top} {point} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"


def count(size: float | str) -> str:
    return f"{size if isinstance(size, str) else int(size * GIB)}\n"


def level2(folder: str, limit: float | str, current: float | str, inactive: float | str = 0) -> dict[str, str]:
    stat = f"anon 4096\nfile 8192\ninactive_anon 77\nactive_file 4096\ninactive_file {count(inactive)}unevictable 0\n"
    texts = {"memory.max": count(limit), "memory.current": count(current), "memory.stat": stat}
    return {f"{folder}/{name}": text for name, text in texts.items()}


def level1(
    folder: str,
    limit: float | str,
    usage: float = 0,
    total_inactive: float | None = 0,
    hierarchy: str | None = "1",
    above: float | str = str(NO_LIMIT),
) -> dict[str, str]:
    stat = f"cache 8192\ninactive_file {count(1)}"
    if total_inactive is not None:
        stat += (
            f"hierarchical_memory_limit {count(above)}total_inactive_file {count(total_inactive)}total_active_file 5\n"
        )
    texts = {"memory.limit_in_bytes": count(limit), "memory.usage_in_bytes": count(usage), "memory.stat": stat}
    if hierarchy is not None:
        texts["memory.use_hierarchy"] = f"{hierarchy}\n"
    return {f"{folder}/{name}": text for name, text in texts.items()}


def without(files: dict[str, str], name: str) -> dict[str, str]:
    return {path: text for path, text in files.items() if not path.endswith(name)}


def only(sample: Sample) -> Reading:
    assert sample.enumerated == {"cpu"}
    (reading,) = sample.readings
    assert (reading.node, reading.device_name) == ("cpu", "host RAM")
    return reading


FREE = {"MemTotal": 32, "MemFree": 3, "Buffers": 1}
NESTED = (
    level2(f"{V2}/slice", 8, 6)
    | level2(f"{V2}/slice/leaf", "max", 1)
    | level2(f"{V2}/slice/leaf/below", 1, 1)
    | level2(f"{V2}/other", 1, 1)
)

# name: (machine, free, total, the reason, or None where no group binds)
CASES: dict[str, tuple[Machine, float, float, str | None]] = {
    # The rows of "Host memory" in shared/cases/README.md.
    "max": (Machine("0::/a", [mount2()], level2(f"{V2}/a", "max", 28)), 28, 32, None),
    "inactive cache is free": (
        Machine("0::/a", [mount2()], level2(f"{V2}/a", 16, 15, 12)),
        *(13, 16, "limited to 16.0 GiB by cgroup /a"),
    ),
    "every level": (Machine("0::/slice/leaf", [mount2()], NESTED), 2, 8, "limited to 8.0 GiB by cgroup /slice"),
    "v1 without limit": (Machine("4:memory:/a", [mount1()], level1(f"{V1}/a", str(NO_LIMIT), 28)), 28, 32, None),
    "no MemAvailable": (Machine(meminfo=FREE | {"Cached": 9, "SReclaimable": 2, "Shmem": 4}), 11, 32, None),
    # Of one's own.
    "no MemAvailable, mostly shared": (Machine(meminfo=FREE | {"Cached": 2, "Shmem": 5}), 4, 32, None),
    "more free than there is": (Machine(meminfo={"MemTotal": 32, "MemAvailable": 33}), 32, 32, None),
    "MemAvailable below": (
        Machine("0::/a", [mount2()], level2(f"{V2}/a", 31, 1)),
        *(28, 31, "limited to 31.0 GiB by cgroup /a"),
    ),
    "the tightest is not the fullest": (
        Machine("0::/a/b", [mount2()], level2(f"{V2}/a", 16, 15) | level2(f"{V2}/a/b", 8, 2)),
        *(1, 8, "limited to 8.0 GiB by cgroup /a/b; free is what cgroup /a has left of 16.0 GiB"),
    ),
    "all the memory, and full": (
        Machine("0::/a", [mount2()], level2(f"{V2}/a", 32, 31)),
        *(1, 32, "free is what cgroup /a has left of 32.0 GiB"),
    ),
    "above the memory": (Machine("0::/a", [mount2()], level2(f"{V2}/a", 33, 32)), 28, 32, None),
    "usage above limit": (
        Machine("0::/a", [mount2()], level2(f"{V2}/a", 4, 5)),
        *(0, 4, "limited to 4.0 GiB by cgroup /a"),
    ),
    "inactive above usage": (
        Machine("0::/a", [mount2()], level2(f"{V2}/a", 4, 1, 2)),
        *(4, 4, "limited to 4.0 GiB by cgroup /a"),
    ),
    "no usage": (
        Machine("0::/a", [mount2()], without(level2(f"{V2}/a", 4, 3), "memory.current")),
        *(4, 4, "limited to 4.0 GiB by cgroup /a"),
    ),
    "no stat": (
        Machine("0::/a", [mount2()], without(level2(f"{V2}/a", 4, 3, 2), "memory.stat")),
        *(1, 4, "limited to 4.0 GiB by cgroup /a"),
    ),
    "a level is gone": (
        Machine("0::/slice/leaf", [mount2()], level2(f"{V2}/slice", 8, 6)),
        *(2, 8, "limited to 8.0 GiB by cgroup /slice"),
    ),
    "v1": (
        Machine("9:name=systemd:/x\n4:cpu,memory:/a\n", [mount1()], level1(f"{V1}/a", 8, 6, 3)),
        *(5, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "v1, stat of one level only": (
        Machine("4:memory:/a", [mount1()], level1(f"{V1}/a", 8, 6, None)),
        *(3, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "v1, nested": (
        Machine(
            "4:memory:/a/b",
            [mount1()],
            level1(V1, str(NO_LIMIT), 31) | level1(f"{V1}/a", 8, 7, hierarchy=None) | level1(f"{V1}/a/b", 16, 1),
        ),
        *(1, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "v1, hierarchy off in the parent": (
        Machine(
            "4:memory:/a/b/c",
            [mount1()],
            level1(f"{V1}/a", 2, 2) | level1(f"{V1}/a/b", 4, 4, hierarchy="0") | level1(f"{V1}/a/b/c", 8, 1),
        ),
        *(7, 8, "limited to 8.0 GiB by cgroup /a/b/c"),
    ),
    "v1, hierarchy off in one's own": (
        Machine("4:memory:/a", [mount1()], level1(V1, str(NO_LIMIT)) | level1(f"{V1}/a", 8, 1, hierarchy="0")),
        *(7, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "v1 without memory": (
        Machine("4:cpu:/a", [mount1("/sys/fs/cgroup/cpu", options="rw,cpu")], level1("/sys/fs/cgroup/cpu/a", 1)),
        *(28, 32, None),
    ),
    "hybrid, v1 has memory": (
        Machine(
            "4:memory:/a\n0::/b",
            [mount2("/sys/fs/cgroup/unified"), mount1()],
            level1(f"{V1}/a", 8, 1) | {"/sys/fs/cgroup/unified/b/cgroup.procs": "1\n"},
        ),
        *(7, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "hybrid, both": (
        Machine(
            "4:memory:/a\n0::/b",
            [mount2("/sys/fs/cgroup/unified"), mount1()],
            level1(f"{V1}/a", 8, 7) | level2("/sys/fs/cgroup/unified/b", 6, 1),
        ),
        *(1, 6, "limited to 6.0 GiB by cgroup /b; free is what cgroup /a has left of 8.0 GiB"),
    ),
    "container, its group is the mount's root": (
        Machine("4:memory:/docker/abc", [mount1(top="/docker/abc")], level1(V1, 8, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /docker/abc"),
    ),
    "container, a lower limit above the mount": (
        Machine("4:memory:/pod/abc", [mount1(top="/pod/abc")], level1(V1, 8, 1, above=4)),
        *(4, 4, "limited to 4.0 GiB by cgroup above /pod/abc"),
    ),
    "container, the limit is only above the mount": (
        Machine(
            "4:memory:/pod/abc/x", [mount1(top="/pod/abc")], level1(V1, NO_LIMIT, 1, above=6) | level1(f"{V1}/x", 8)
        ),
        *(6, 6, "limited to 6.0 GiB by cgroup above /pod/abc"),
    ),
    "container, the lowest limit is the group's own": (
        Machine("4:memory:/pod/abc", [mount1(top="/pod/abc")], level1(V1, 8, 1, above=8)),
        *(7, 8, "limited to 8.0 GiB by cgroup /pod/abc"),
    ),
    "container, below the mount's root": (
        Machine("0::/docker/abc/x", [mount2(top="/docker/abc")], level2(V2, 8, 1) | level2(f"{V2}/x", 4, 2)),
        *(2, 4, "limited to 4.0 GiB by cgroup /docker/abc/x"),
    ),
    "a name that begins alike": (
        Machine("0::/docker/abcd", [mount2(top="/docker/abc")], level2(V2, 8, 1) | level2(f"{V2}/d", 4, 2)),
        *(7, 8, "limited to 8.0 GiB by cgroup /docker/abc"),
    ),
    "namespace": (
        Machine("0::/", [mount2()], level2(V2, 8, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /"),
    ),
    "outside of the namespace": (
        Machine("0::/../other", [mount2()], level2(V2, 8, 1) | level2("/sys/fs/other", 1, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /"),
    ),
    "mount from outside of the namespace": (
        Machine("0::/", [mount2(top="/../..")], level2(V2, 8, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /../.."),
    ),
    "mount and group outside of the namespace": (
        Machine("0::/../x", [mount2(top="/..")], level2(V2, 8, 1) | level2(f"{V2}/x", 4, 1)),
        *(3, 4, "limited to 4.0 GiB by cgroup /../x"),
    ),
    "escapes": (
        Machine(
            "0::/a b\\c",
            [mount2("/mnt/my\\040groups\\134", "/a\\040b\\134c")],
            level2("/mnt/my groups\\", 8, 1),
        ),
        *(7, 8, "limited to 8.0 GiB by cgroup /a b\\c"),
    ),
    "a mount without options, a group that is a file": (
        Machine(
            "0::/a/b",
            ["9 8 0:1 / /x rw - cgroup", "9 8 0:1 / /y rw - cgroup2", mount2()],
            level2(f"{V2}/a", 8, 1) | {f"{V2}/a/b": "a file"},
        ),
        *(7, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "no height that makes sense": (
        Machine("4:memory:/a", [mount1(top="/a")], level1(V1, 8, 1, above="9" * 5000)),
        *(7, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "a colon in a name": (
        Machine("0::/a:b", [mount2()], level2(f"{V2}/a:b", 8, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /a:b"),
    ),
    "a name of several lines": (
        Machine("0::/a\rb", [mount2()], level2(f"{V2}/a\rb", 8, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /a b"),
    ),
    "several mounts, part of it first": (
        Machine(
            "0::/a/b",
            [mount2("/part", "/a/b"), mount2(), mount2("/else", "/z")],
            level2("/part", 4, 1) | level2(f"{V2}/a", 16, 14) | level2(f"{V2}/a/b", 4, 1) | level2("/else", 1, 1),
        ),
        *(2, 4, "limited to 4.0 GiB by cgroup /a/b; free is what cgroup /a has left of 16.0 GiB"),
    ),
    "several mounts, one hidden": (
        Machine("0::/a", [mount2(), mount2("/copy")], level2("/copy/a", 8, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
    "mounted over": (
        Machine(
            "0::/a",
            [mount2(top="/z"), mount2(), "50 41 0:50 / /other rw - tmpfs cgroup2 rw,memory"],
            level2(V2, 1, 1) | level2(f"{V2}/a", 8, 1),
        ),
        *(0, 1, "limited to 1.0 GiB by cgroup /"),
    ),
    "mounted over by another kind": (
        Machine("0::/a", [mount2(), f"50 41 0:50 / {V2} rw - tmpfs tmpfs rw"], level2(f"{V2}/a", 8, 1)),
        *(28, 32, None),
    ),
    "no group": (Machine(None, [mount2()], level2(V2, 8, 1)), 28, 32, None),
    "no mount": (Machine("0::/a", [], level2(f"{V2}/a", 8, 1)), 28, 32, None),
    "lines that are none": (
        Machine("\n0\n0:\n0::\n::/\n0::/a", ["", "a b", "1 2 3 4 5 6", mount2(), "- cgroup2"], level2(f"{V2}/a", 8, 1)),
        *(7, 8, "limited to 8.0 GiB by cgroup /a"),
    ),
}


@LINUX
@pytest.mark.parametrize(("machine", "free", "total", "reason"), CASES.values(), ids=CASES)
def test_what_a_machine_has(tmp_path: Path, machine: Machine, free: float, total: float, reason: str | None) -> None:
    sample = HostSource(root=machine.write(tmp_path)).sample()
    reading = only(sample)
    assert (reading.free, reading.total) == (free * GIB, total * GIB)
    assert (reading.source, reading.reason) == ("meminfo+cgroup" if reason else "meminfo", reason)
    assert sample.note is None


@LINUX
@pytest.mark.parametrize("text", ["", "8G", "-1", "1_0", "8 9", "\u0663", "0x10", "nan"])
def test_a_number_that_is_none(tmp_path: Path, text: str) -> None:
    """What could be read binds, of the others too, and the note has a line that says so."""
    upper = level2(f"{V2}/a", 8, 1)
    for name, what, free, total in (
        ("memory.max", "memory.max", 7, 8),
        ("memory.current", "memory.current", 4, 4),
        ("memory.stat", "inactive_file of memory.stat", 2, 4),
    ):
        lower = level2(f"{V2}/a/b", 4, 2)
        lower[f"{V2}/a/b/{name}"] = f"inactive_file {text}\n" if name == "memory.stat" else f"{text}\n"
        sample = HostSource(root=Machine("0::/a/b", [mount2()], upper | lower).write(tmp_path)).sample()
        assert (only(sample).free, only(sample).total) == (free * GIB, total * GIB)
        assert sample.note == f"cgroup /a/b: {what} is no number: {text!r}"
    with vs.watch([HostSource(root=tmp_path)]) as monitor:
        assert "is no number" in monitor.errors["host"]
        assert monitor.table.free.tolist() == [2 * GIB]


@LINUX
def test_a_limit_of_nothing_is_a_full_memory(tmp_path: Path) -> None:
    for machine in (
        Machine("0::/a", [mount2()], level2(f"{V2}/a", 0, 1)),
        Machine("4:memory:/a", [mount1(top="/a")], level1(V1, 8, 1, above=0)),
    ):
        with vs.watch([HostSource(root=machine.write(tmp_path))]) as monitor:
            assert monitor.table.would_fit("cpu", 1).name == "WONT_FIT"


@LINUX
@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("name", ["memory.max", "memory.current", "memory.stat"])
@pytest.mark.parametrize("code", ["ENOENT", "EACCES", "EPERM", "ENODEV", "EMFILE", "EIO"])
def test_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str, code: str
) -> None:
    files = level2(f"{V2}/a", 8, 5) | level2(f"{V2}/a/b", 6, 5, 2)
    source = HostSource(root=Machine("0::/a/b", [mount2()], files).write(tmp_path))
    bad: set[int] = set()
    real_open, real_read = os.open, os.read

    def broken_open(path: str, flags: int) -> int:
        matches = path.endswith(f"/b/{name}")
        if matches and call == "open":
            raise OSError(getattr(errno, code), "planted")
        file = real_open(path, flags)
        (bad.add if matches else bad.discard)(file)
        return file

    def broken_read(file: int, size: int) -> bytes:
        if file in bad:
            raise OSError(getattr(errno, code), "planted")
        return real_read(file, size)

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", broken_open)
        patch.setattr(os, "read", broken_read)
        if code in ("EMFILE", "EIO"):  # no sign that there is no limit: better no number than a wrong one
            with pytest.raises(OSError, match="planted"):
                source.sample()
            reading = None
        else:
            sample = source.sample()
            assert sample.note is None
            reading = only(sample)
    assert len(os.listdir("/proc/self/fd")) == before
    if reading is not None:
        expected = {"memory.max": (3, 8), "memory.current": (3, 6), "memory.stat": (1, 6)}
        assert (reading.free, reading.total) == tuple(size * GIB for size in expected[name])


@LINUX
def test_a_file_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may answer with less than was asked for."""
    source = HostSource(root=Machine("0::/slice/leaf", [mount2()], NESTED).write(tmp_path))
    real_read = os.read
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda file, size: real_read(file, min(size, 7)))
        reading = only(source.sample())
    assert (reading.free, reading.total) == (2 * GIB, 8 * GIB)


@LINUX
def test_every_sample_reads_anew(tmp_path: Path) -> None:
    source = HostSource(root=Machine("0::/a", [mount2()], level2(f"{V2}/a", "max", 0)).write(tmp_path))
    assert only(source.sample()).total == 32 * GIB
    Machine("0::/a/b", [mount2()], level2(f"{V2}/a", 16, 4) | level2(f"{V2}/a/b", 8, 1)).write(tmp_path)
    assert (only(source.sample()).free, only(source.sample()).total) == (7 * GIB, 8 * GIB)
    Machine("0::/a", [mount2(top="/a")], meminfo={"MemTotal": 4, "MemAvailable": 3}).write(tmp_path)
    assert (only(source.sample()).free, only(source.sample()).total) == (3 * GIB, 4 * GIB)


class Memory:
    """What psutil would say; a little more available than there is."""

    available, total = 101, 100


@LINUX
@pytest.mark.parametrize(
    ("meminfo", "fault"),
    [
        (None, "cannot be read"),
        ("", "has no MemTotal"),
        ({"MemAvailable": 5}, "has no MemTotal"),
        ({"MemTotal": 0, "MemAvailable": 0}, "has no MemTotal"),
        ({"MemTotal": 5, "Cached": 1}, "nothing that is free"),
        ("MemTotal: many kB\nMemAvailable: 5 kB\n", "has no MemTotal"),
    ],
)
def test_psutil_in_place_of_meminfo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meminfo: dict[str, float] | str | None, fault: str
) -> None:
    source = HostSource(root=Machine("0::/", [mount2()], meminfo=meminfo).write(tmp_path))
    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    sample = source.sample()
    reading = only(sample)
    assert (reading.free, reading.total, reading.source) == (100, 100, "psutil"), "never more than there is"
    assert fault in sample.note
    assert "\n" not in sample.note


def test_psutil_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "freebsd14")
    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    sample = HostSource().sample()
    reading = only(sample)
    assert (reading.free, reading.total, reading.source, sample.note) == (100, 100, "psutil", None)


def test_the_real_memory() -> None:
    sample = HostSource().sample()
    reading = only(sample)
    memory = psutil.virtual_memory()
    assert sample.note is None
    assert 0 <= reading.free <= reading.total <= memory.total
    if reading.source != "meminfo+cgroup":
        assert reading.total == memory.total
        # Other processes come and go; the unit must be right.
        assert abs(reading.free - memory.available) < memory.total / 2


@LINUX
def test_without_limits_psutil_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert only(HostSource().sample()).source.startswith("meminfo")


@pytest.mark.parametrize("root", [None, 3, ["/"]])
def test_a_root_that_is_no_folder(root: object) -> None:
    with pytest.raises(TypeError):
        HostSource(root=root)  # type: ignore[arg-type]


INSIDE = """
import json, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")  # this process
from vramsel.sources import HostSource
source, seen = HostSource(), []
def look():
    (reading,) = source.sample().readings
    seen.append([reading.free, reading.total, reading.source, reading.reason])
look()
block = bytearray(64 << 20)
block[::4096] = b"x" * (len(block) // 4096)
look()
json.dump(seen, sys.stdout)
"""


@LINUX
def test_a_real_limit() -> None:
    """A child in a group of 256 MiB. Groups are somebody's business, so one to work in has to be named."""
    parent = os.environ.get("VRAMSEL_TEST_CGROUP")
    if not parent:
        pytest.skip("VRAMSEL_TEST_CGROUP names no memory cgroup in which to make another")
    group = Path(parent) / f"vramsel-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        files = [group / name for name in ("memory.max", "memory.limit_in_bytes") if (group / name).exists()]
        if not files:
            pytest.skip(f"groups below {parent} have neither memory.max nor memory.limit_in_bytes")
        files[0].write_text(str(256 * MIB))
        command = [sys.executable, "-P", "-c", INSIDE, str(group)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    finally:
        group.rmdir()
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    for _, total, source, reason in (before, after):
        assert (total, source) == (256 * MIB, "meminfo+cgroup")
        assert reason.startswith("limited to 256.0 MiB by cgroup /")
        assert reason.endswith(group.name)
    # The kernel counts pages in batches per processor.
    assert abs(before[0] - after[0] - 64 * MIB) < 8 * MIB
