"""vramsel on a real GPU: its numbers against the driver's, NVML's and the frameworks' own.

`measure.py` measures, in a process for each test; here it is judged. Where there is no GPU, or no
framework, the tests skip and name what is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# One at a time: they measure memory of the same device.
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

MIB, GIB = 1 << 20, 1 << 30

Measure = Callable[..., Any]
Figure = Callable[[str, str], None]


def shown(nbytes: float) -> str:
    return f"{nbytes / GIB:.3f} GiB" if abs(nbytes) >= GIB else f"{nbytes / MIB:.1f} MiB"


def allocation_slack(size: int) -> int:
    """Devices give memory in pieces of 2 MiB, and a large allocation needs page tables."""
    return 8 * MIB + size // 256


# ---- the driver and NVML -----------------------------------------------------------------------


def test_every_device_is_the_one_that_nvml_knows_by_its_uuid(measure: Measure, figure: Figure) -> None:
    for ordinal, seen in enumerate(measure("devices")["devices"]):
        node = f"cuda:{ordinal}"
        assert seen["uuid"] == seen["nvml_uuid"]
        if "MIG" not in seen["nvml_uuid"]:
            assert seen["name"] == seen["nvml_name"]
        figure(node, f"{seen['name']}, {seen['uuid']}{', integrated' if seen['integrated'] else ''}")
        if seen["integrated"]:
            continue
        for way, source in (("without", "nvml"), ("with", "cuda-driver")):
            read = seen[way]
            assert read["source"] == source, read["reason"]
            tolerance = max(read["nvml_total"] // 50, GIB)  # NVML counts what the driver keeps for itself
            for what in ("free", "total"):
                apart = read[what] - read[f"nvml_{what}"]
                figure(f"{node} {way} a context, {what}", f"{shown(read[what])}, apart from NVML's {shown(apart)}")
                assert abs(apart) <= tolerance


def test_watching_makes_no_context(measure: Measure, figure: Figure) -> None:
    seen = measure("contexts")
    before = seen["before"]
    devices = range(len(before["used"]))
    none = [False for _ in devices]
    for step in ("before", "watching", "watched", "closed"):
        assert seen[step]["active"] == none, step
    made = [not integrated for integrated in before["integrated"]]
    assert seen["with create_context"]["active"] == made
    for device in devices:
        grown = {step: now["used"][device] - before["used"][device] for step, now in seen.items()}
        figure(f"cuda:{device} memory in use, over before", ", ".join(f"{s} {shown(n)}" for s, n in grown.items()))
        counts = ", ".join(f"{step} {now['processes'][device]}" for step, now in seen.items())
        figure(f"cuda:{device} compute processes by NVML", counts)
        assert grown["watching"] < 64 * MIB
        assert grown["watched"] < 64 * MIB
        listed = [seen[step]["processes"][device] for step in ("before", "watching")]
        assert None in listed or listed[1] <= listed[0]
        if made[device]:
            assert seen["watching"]["sources"][device] == "nvml"
            assert seen["with create_context"]["sources"][device] == "cuda-driver"
            assert grown["closed"] < max(64 * MIB, grown["with create_context"] / 2)


def test_allocations_of_known_sizes_are_seen(measure: Measure, figure: Figure) -> None:
    seen = measure("allocations")
    for step in seen["steps"]:
        size = step["size"]
        over, back = step["fell"] - size, step["came_back"] - size
        figure(f"cuMemAlloc of {shown(size)}", f"free fell by that and {shown(over)}, came back {shown(back)} over it")
        assert abs(over) <= allocation_slack(size)
        assert abs(back) <= allocation_slack(size)
    assert seen["steps"]
    free, total = seen["free"], seen["total"]
    for size, status, by_rule in seen["judged"]:
        assert status == by_rule, (size, free, total)
        left = free - size
        assert (status == "WONT_FIT") == (left < 0)
        if left > total * 0.151:
            assert status == "COMFORTABLE"
        elif 0 <= left < total * 0.149:
            assert status == "TIGHT"
    figure("the rule", ", ".join(f"{size / total:.0%} of total {status}" for size, status, _ in seen["judged"]))
    for name, code in (("below", 0), ("above", 2)):
        at = seen["border"][name]
        figure(f"{shown(seen['margin'])} {name} free", f"{at['status']}, cuMemAlloc answers {at['code']}")
        assert (at["status"] == "WONT_FIT") == (name == "above")
        assert at["code"] == code


def test_another_process_is_followed_without_a_context(measure: Measure, figure: Figure) -> None:
    seen = measure("neighbour")
    start, context, allocated, freed, ended = seen["free"]
    size = seen["size"]
    lags = ", ".join(f"{lag * 1000:.0f} ms" for lag in seen["lag_s"])
    figure("another process's context", f"free fell by {shown(start - context)}")
    figure(f"another process's {shown(size)}", f"free fell by {shown(context - allocated)}; seen after {lags}")
    assert seen["source"] == "nvml"
    assert not seen["active"]
    assert abs(context - allocated - size) <= allocation_slack(size)
    assert abs(context - freed) <= allocation_slack(size)
    assert abs(start - ended) <= 64 * MIB


def test_what_a_running_monitor_costs(measure: Measure, figure: Figure) -> None:
    seen = measure("costs")
    calls = ("cuMemGetInfo", "nvmlDeviceGetMemoryInfo")
    figure("one call, median", ", ".join(f"{name} {seen[f'{name}_us']:.1f} us" for name in calls))
    for way, source in (("driver", "cuda-driver"), ("nvml", "nvml")):
        assert seen[f"{way}_source"] == source
        samples = seen[f"{way}_samples"]
        most = seen["seconds"] / seen["interval_s"]
        figure(f"one sample by {way}, median", f"{seen[f'{way}_sample_us']:.1f} us for {seen['devices']} device(s)")
        figure(f"samples by {way} in {seen['seconds']:g} s at 50 ms", f"{samples} of {most:.0f}")
        figure(f"select while sampled by {way}", f"{seen[f'{way}_select_ratio']:.2f} times without")
        assert 1 < samples <= most + 2


# ---- fork --------------------------------------------------------------------------------------


def test_a_child_decides_without_cuda(measure: Measure, figure: Figure) -> None:
    seen = measure("fork_after")
    child = seen["child"]
    figure("child of a process with CUDA", f"picks {child.get('picks')}, calls {child.get('called')}")
    assert child["ended"]
    assert (seen["here"], child["watched"], seen["here_after"]) == ("COMFORTABLE", "UNKNOWN", "COMFORTABLE")
    assert child["picks"] == [0, 0]
    assert child["called"] == []
    assert "forked" in child["errors"]["cuda-driver"]


def test_a_child_can_initialise_cuda_if_its_parent_did_not(measure: Measure, figure: Figure) -> None:
    seen = measure("fork_before")
    child = seen["child"]
    figure("child of watch(init_cuda=False)", f"cuInit, {child.get('devices')} device(s), {child.get('status')}")
    assert "cuda:0" not in seen["nodes"]
    assert "cuda-driver" in seen["told"]
    assert child["ended"]
    assert child["devices"] > 0
    assert child["status"] in ("COMFORTABLE", "TIGHT")


# ---- frameworks --------------------------------------------------------------------------------


def judge_border(border: dict[str, Any], what: str, figure: Figure) -> None:
    """What is judged to fit does, and what is judged not to does not."""
    for side, at in border.items():
        came = "allocated" if at["allocated"] else at["error"]
        figure(f"{what}, {side} the border", f"{shown(at['size'])}: {at['own']} (cuda:0 {at['device']}), {came}")
        assert (at["own"] == "WONT_FIT") == (side == "above")
        assert at["allocated"] == (side == "below"), f"{what}: {at}"


def judge_idle(now: dict[str, Any], idle: int) -> None:
    """What the framework has beyond what the device has is exactly what it holds and does not use."""
    assert now["own"] - now["device"] == idle


def test_torch(measure: Measure, figure: Figure) -> None:
    seen = measure("torch_pool", timeout=90)
    block = seen["block"]
    for step in ("start", "live", "idle", "given back", "split", "end"):
        now = seen[step]
        extra = ", ".join(f"{name} {shown(now[name])}" for name in ("reserved", "allocated", "split"))
        figure(f"torch {seen['version']}, {step}", f"{extra}; torch:0 over cuda:0 {shown(now['own'] - now['device'])}")
        judge_idle(now, now["reserved"] - now["allocated"] - now["split"])
    assert seen["idle"]["own"] - seen["idle"]["device"] >= block
    assert seen["split"]["split"] > 0
    for step in ("live", "idle"):
        assert abs(seen["start"]["device"] - seen[step]["device"] - block) <= allocation_slack(block)
    assert abs(seen["start"]["device"] - seen["end"]["device"]) <= allocation_slack(block)
    judge_border(seen["border"], "torch with an idle block", figure)
    assert seen["border"]["below"]["device"] == "WONT_FIT"
    if seen["fraction"] is None:
        figure("torch", "has no get_per_process_memory_fraction: its limit cannot be read")
        return
    judge_border(seen["fraction"], "torch within a fraction of 0.2", figure)
    assert seen["fraction"]["above"]["device"] != "WONT_FIT"


def test_cupy(measure: Measure, figure: Figure) -> None:
    seen = measure("cupy_pool", timeout=90)
    block = seen["block"]
    for step in ("start", "live", "idle", "given back", "end"):
        now = seen[step]
        extra = ", ".join(f"{name} {shown(now[name])}" for name in ("used", "idle"))
        figure(f"cupy {seen['version']}, {step}", f"{extra}; cupy:0 over cuda:0 {shown(now['own'] - now['device'])}")
        judge_idle(now, now["idle"])
    assert seen["idle"]["idle"] >= block
    assert abs(seen["start"]["device"] - seen["live"]["device"] - block) <= allocation_slack(block)
    judge_border(seen["border"], "cupy with an idle block", figure)
    assert seen["border"]["below"]["device"] == "WONT_FIT"
    judge_border(seen["limited"], f"cupy limited to {shown(seen['limit'])}", figure)
    assert seen["limited"]["above"]["total"] == seen["limit"]
    judge_border(seen["limited beside an idle block"], "cupy, limited and with an idle block", figure)


def test_rmm(measure: Measure, figure: Figure) -> None:
    seen = measure("rmm_pool")
    for step in ("start", "live"):
        now = seen[step]
        figure(f"rmm {seen['version']}, {step}", f"cuda:0 {shown(now['device'])}, rmm:0 {shown(now['own'])}")
    assert seen["live"]["own"] >= max(seen["live"]["device"], seen["block"] // 2)
    border = {side: seen[side] for side in ("below", "above")}
    judge_border(border, "rmm with an idle pool", figure)
