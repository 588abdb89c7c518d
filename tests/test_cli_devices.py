"""``vramsel pick -n 2 --min-free 8GiB``: devices for ``CUDA_VISIBLE_DEVICES``, as a user types it."""

from __future__ import annotations

import json

import pytest
from cuda_stub import CudaStub

from vramsel import cli
from vramsel.fit import FitPolicy
from vramsel.monitor import watch
from vramsel.sources import Reading, Sample, Source

GIB = 1 << 30


class Devices(Source):
    """Six devices, of which one is lost, one unknown, and one has the host's memory."""

    name = "devices"
    backends = ("cpu", "cuda", "rocm")

    def sample(self) -> Sample:
        return Sample(
            (
                Reading("cpu", 30 * GIB, 64 * GIB, device_name="host RAM"),
                Reading("cuda:10", 9 * GIB, 24 * GIB, uuid="MIG-10"),
                Reading("cuda:0", 8 * GIB, 24 * GIB, uuid="GPU-0"),
                Reading("cuda:1", 5 * GIB, 24 * GIB, uuid="GPU-1"),
                Reading("cuda:2", reason="no context", uuid="GPU-2"),
                Reading("cuda:3", lost=True, reason="Xid 79", uuid="GPU-3"),
                Reading("cuda:4", shares="cpu", headroom=2 * GIB, device_name="NVIDIA GB10", uuid="GPU-4"),
                Reading("cuda:9", 9 * GIB, None),
            ),
            frozenset({"cpu", "cuda", "rocm"}),
            "all is not well",
        )


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "watch", lambda: watch([Devices()]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def pick(capsys: pytest.CaptureFixture, arguments: str) -> tuple[int, str, str]:
    code = cli.main(["pick", *arguments.split()])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("-n 1", "4\n"),
        ("--backend cuda", "4\n"),
        ("--min-free 1", "4\n"),
        ("--uuid", "GPU-4\n"),
        ("--sep ,", "4\n"),
        ("-n 5", "4\n9\n10\n0\n1\n"),
        ("-n 4 --sep ,", "4,9,10,0\n"),
        ("-n 4 --min-free 8GiB --backend cuda --sep ,", "4,9,10,0\n"),
        ("-n 3 --uuid --sep ,", "GPU-4,MIG-10,GPU-0\n"),
        ("-n 1 --min-free 28GiB", "4\n"),
        ("--backend cpu", "0\n"),
    ],
)
def test_the_devices_with_the_most_room(capsys: pytest.CaptureFixture, arguments: str, printed: str) -> None:
    assert pick(capsys, arguments) == (0, printed, "")


REST = "cuda:2: no signal (no context); cuda:3: device lost (Xid 79)"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("-n 6", f"6 cuda devices asked, 5 qualify, 1 missing; {REST}"),
        ("-n 8", f"8 cuda devices asked, 5 qualify, 3 missing; there are 7 in all; {REST}"),
        (
            "-n 5 --min-free 8GiB",
            f"5 cuda devices asked, 4 have 8.0 GiB free, 1 missing; cuda:1 is short by 3.0 GiB; {REST}",
        ),
        (
            "-n 2 --min-free 10GiB",
            "2 cuda devices asked, 1 has 10.0 GiB free, 1 missing; cuda:0 is short by 2.0 GiB;"
            f" cuda:1 is short by 5.0 GiB; {REST}; cuda:9 is short by 1.0 GiB; cuda:10 is short by 1.0 GiB",
        ),
        (
            "--min-free 29GiB",  # the host has 30, of which 2 stay free
            "1 cuda device asked, none has 29.0 GiB free, 1 missing; cuda:0 is short by 21.0 GiB;"
            f" cuda:1 is short by 24.0 GiB; {REST}; cuda:4 is short by 1.0 GiB; cuda:9 is short by 20.0 GiB;"
            " cuda:10 is short by 20.0 GiB",
        ),
        (
            "-n 5 --uuid",
            f"5 cuda devices asked, 4 qualify, 1 missing; {REST}; cuda:9: its UUID is not known",
        ),
        ("--backend cpu --uuid", "1 cpu device asked, none qualifies, 1 missing; cpu: its UUID is not known"),
        (
            "--backend cpu -n 2",
            "2 cpu devices asked, 1 qualifies, 1 missing; there is 1 in all",
        ),
        (
            "--backend rocm",
            "1 rocm device asked, none qualifies, 1 missing; no rocm device is listed (all is not well)",
        ),
        (
            "--backend metal",
            "1 metal device asked, none qualifies, 1 missing; no metal device is listed (no source reports any)",
        ),
    ],
)
def test_too_few(capsys: pytest.CaptureFixture, arguments: str, told: str) -> None:
    assert pick(capsys, arguments) == (1, "", f"{told}\n")


def test_json(capsys: pytest.CaptureFixture) -> None:
    code, out, err = pick(capsys, "-n 2 --json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "devices": [
            {"placement": "cuda:4", "uuid": "GPU-4", "node": "cpu", "available": 28 * GIB, "total": 64 * GIB},
            {"placement": "cuda:9", "uuid": None, "node": "cuda:9", "available": 9 * GIB, "total": None},
        ],
        "asked": 2,
        "missing": 0,
    }
    code, out, err = pick(capsys, "-n 3 --min-free 9GiB --uuid --json")
    assert (code, err.count("\n")) == (1, 1)
    answer = json.loads(out)
    assert [device["placement"] for device in answer.pop("devices")] == ["cuda:4", "cuda:10"]
    assert answer == {"asked": 3, "missing": 1}


def test_what_is_available_is_for_the_policy_to_say(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = {"cuda:9": FitPolicy(headroom=GIB), "cuda:10": FitPolicy(tight_fraction=0.0, tight_margin=None)}
    monkeypatch.setattr(cli, "watch", lambda: watch([Devices()], policy=policies))
    assert pick(capsys, "-n 4 --sep ,")[1] == "4,10,0,9\n", "tight is no reason to be left out"


@pytest.mark.parametrize("mask", ["", "1,0"])
def test_ordinals_within_a_mask(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, mask: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    code, out, err = pick(capsys, "-n 1")
    assert (code, out, err.count("\n")) == (0, "4\n", 1)
    assert err.startswith("CUDA_VISIBLE_DEVICES is set")
    assert "--uuid" in err
    for arguments in ("--uuid", "-n 1 --json", "--backend cpu", "cpu=1"):
        assert pick(capsys, arguments)[2] == ""
    code, out, err = pick(capsys, "-n 9")
    assert (code, out) == (1, "")
    assert err.endswith("; CUDA_VISIBLE_DEVICES is set and may hide others\n")
    assert "hide" not in pick(capsys, "-n 9 --backend cpu")[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-n 0", "'0' is not a number of devices"),
        ("-n -1", "'-1' is not a number of devices"),
        ("-n 1.5", "-n"),
        ("-n \u0663", "-n"),
        ("-n 99999999999", "-n"),
        ("-n", "-n"),
        ("--min-free 2G", "ambiguous"),
        ("--min-free much", "'much' is not a size"),
        ("--min-free=-2GiB", "negative"),
        ("--min-free -2GiB", "--min-free"),
        ("--backend npx", "unknown backend 'npx'"),
        ("--backend cuda:0", "unknown backend 'cuda:0'"),
        ("cpu=1 -n 1", "-n does not go with candidates"),
        ("-n 1 cpu=1", "-n does not go with candidates"),
        ("cpu=1 --min-free 0", "--min-free does not go"),
        ("cpu=1 --backend cuda", "--backend does not go"),
        ("cpu=1 --uuid", "--uuid does not go"),
        ("cpu=1 --sep ,", "--sep does not go"),
        ("-n 1 --explain", "--explain"),
        ("-n 1 --sep , --json", "--sep"),
        ("--json", "PLACEMENT=SIZE"),
        ("--explain", "PLACEMENT=SIZE"),
    ],
)
def test_wrong_use_is_told_in_one_line(capsys: pytest.CaptureFixture, arguments: str, words: str) -> None:
    code, out, err = pick(capsys, arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("vramsel pick: ")
    assert err.count("\n") == 1


# ---- CUDA, from a driver and an NVML that need no GPU -------------------------------------------

# The machine: what it has is said to the stubs by every process that starts, before all else.
MACHINE = """
from stub_controls import load_cuda, nv
GIB = 1 << 30
stub = load_cuda()
stub.stub_devices(5)
nv.nv_devices(5)
for device, free in enumerate((8000, 6000, 7, 9000)):
    total = 10 if device == 2 else 10000
    stub.stub_memory(device, free * GIB, total * GIB)
    stub.stub_total_mem(device, total * GIB)
    nv.nv_memory(device, total * GIB, 0, free * GIB, (total - free) * GIB)
stub.stub_name(0, b"NVIDIA H100 80GB HBM3")
nv.nv_fault(b"nvmlDeviceGetMemoryInfo_v2", 1, 15)  # GPU is lost
stub.stub_name(2, b"NVIDIA H100 80GB HBM3 MIG 1g.10gb")
stub.stub_mig(2, bytes(range(16)))
nv.nv_mig(2, 1)
nv.nv_mig_uuid(2, 0, b"MIG-00000000-0000-0000-0000-000000000003")
nv.nv_mig_memory(2, 0, 10 * GIB, 0, 7 * GIB, 3 * GIB)
stub.stub_name(4, b"NVIDIA GB10")
stub.stub_attribute(4, 18, 1)  # integrated
"""

SCRIPT = """
import json, os, subprocess, sys

environment = {**os.environ, "PYTHONPATH": os.getcwd() + os.pathsep + os.environ["PYTHONPATH"], "PY": sys.executable}

def shell(command, **more):
    done = subprocess.run(["sh", "-c", command], env={**environment, **more}, capture_output=True, text=True)
    return [done.returncode, done.stdout, done.stderr]

status = '"$PY" -P -m vramsel status --json'
pick = '"$PY" -P -m vramsel pick'
print(json.dumps({
    "status": shell(status),
    "chosen by uuid": shell(
        f"CUDA_VISIBLE_DEVICES=$({pick} -n 2 --min-free 8GiB --backend cuda --sep , --uuid) {status}"
    ),
    "chosen by ordinal": shell(f"CUDA_VISIBLE_DEVICES=$({pick} -n 2 --min-free 8GiB --sep ,) {status}"),
    "a slice": shell(f"{pick} -n 4 --min-free 7GiB --uuid --json"),
    "within a mask": shell(f"{pick} --min-free 8GiB && {pick} --min-free 8GiB --uuid", CUDA_VISIBLE_DEVICES="2,0"),
    "too few": shell(f"{pick} -n 4 --min-free 5TiB"),
    "all hidden": shell(pick + " -n 1", CUDA_VISIBLE_DEVICES=""),
}))
"""

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(1, 6)]
SLICE = UUIDS[2].replace("GPU", "MIG")


def test_on_a_machine_with_gpus(cuda_stub: CudaStub) -> None:
    seen = cuda_stub.run(SCRIPT, files={"sitecustomize.py": MACHINE})
    code, out, err = seen["status"]
    assert (code, err) == (0, "")
    rows = {row["node"]: row for row in json.loads(out)["nodes"]}
    assert list(rows) == ["cpu", "cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert rows["cpu"]["placements"] == ["cpu", "cuda:4"]
    assert (rows["cpu"]["name"], rows["cpu"]["uuid"]) == ("host RAM, NVIDIA GB10", UUIDS[4])
    assert [rows[node]["state"] for node in rows] == ["ok", "ok", "lost", "ok", "ok"]
    assert [rows[node]["uuid"] for node in rows] == [UUIDS[4], UUIDS[0], UUIDS[1], SLICE, UUIDS[3]]
    assert (rows["cuda:2"]["free"], rows["cuda:2"]["total"]) == (7 * GIB, 10 * GIB)
    assert rows["cuda:3"]["source"] == "nvml"

    for how in ("chosen by uuid", "chosen by ordinal"):
        code, out, err = seen[how]
        assert (code, err) == (0, ""), how
        inside = {row["node"]: row["uuid"] for row in json.loads(out)["nodes"]}
        assert inside == {"cpu": None, "cuda:0": UUIDS[3], "cuda:1": UUIDS[0]}, how

    code, out, err = seen["within a mask"]
    assert (code, out.splitlines()) == (0, ["1", UUIDS[0]])
    assert err.startswith("CUDA_VISIBLE_DEVICES is set")
    assert err.count("\n") == 1

    code, out, err = seen["a slice"]  # the host may or may not have as much
    found = [device["uuid"] for device in json.loads(out)["devices"]]
    assert [uuid for uuid in found if uuid != UUIDS[4]] == [UUIDS[3], UUIDS[0], SLICE]
    assert code == (0 if UUIDS[4] in found else 1)

    code, out, err = seen["too few"]
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("4 cuda devices asked, 2 have 5.0 TiB free, 2 missing; cuda:1: device lost (")
    assert "; cuda:2 is short by 5.0 TiB; " in err

    code, out, err = seen["all hidden"]
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "no cuda device is listed (the NVIDIA driver lists no device" in err
    assert err.endswith("CUDA_VISIBLE_DEVICES is set and may hide others\n")
