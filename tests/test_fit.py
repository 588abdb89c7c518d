"""The plain rule and its policy."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import vramsel as vs
from vramsel.fit import FitPolicy, FitStatus, Reason, would_fit
from vramsel.units import MAX_BYTES


def test_status_values_are_fixed() -> None:
    assert [(s.name, int(s)) for s in FitStatus] == [("COMFORTABLE", 0), ("TIGHT", 1), ("WONT_FIT", 2), ("UNKNOWN", 3)]
    assert vs.FitStatus is FitStatus
    assert vs.Reason is Reason
    assert str(Reason.LOST) == "device lost"


@pytest.mark.parametrize(
    ("size", "free", "total", "more", "want"),
    [
        (85, 100, 100, {}, 0),
        (86, 100, 100, {}, 1),
        (101, 100, 100, {}, 2),
        (1, 0, 0, {"idle": 100}, 3),
        (1, 0, 16, {}, 2),
        (0, 0, 16, {}, 1),
        (1, None, 16, {}, 3),
        (1, None, None, {}, 3),
        (11, 10, None, {}, 2),
        (1, 0, None, {}, 2),
        (0, 0, None, {}, 3),
        (11, 0, None, {"idle": 10}, 2),
        (10, 10, None, {}, 3),
        (10, 10, 0, {}, 3),
        (11, 10, 0, {}, 2),
        (11, 10, 100, {"idle": 1}, 1),
        (11, 10, 100, {"idle": 1, "reserved": 1}, 2),
        (10, 10, 100, {"reserved": MAX_BYTES}, 2),
        (0, 10, 100, {"reserved": MAX_BYTES}, 1),
        (90, 100, 100, {"policy": FitPolicy(headroom=11)}, 2),
        (90, 100, 100, {"policy": FitPolicy(tight_margin=10)}, 0),
        (91, 100, 100, {"policy": FitPolicy(tight_margin=10)}, 1),
        (50, 100, 100, {"policy": FitPolicy(tight_margin=100)}, 0),
        (MAX_BYTES, MAX_BYTES, 1, {"idle": MAX_BYTES}, 1),
        (2**53 + 1, 2**53, 2**60, {}, 2),
    ],
)
def test_rule(size: int, free: int | None, total: int | None, more: dict, want: int) -> None:
    status = would_fit(size, free, total, **more)
    assert status == want
    assert isinstance(status, FitStatus)


def test_the_boundary_is_that_of_doubles() -> None:
    """Where the quotient of real numbers is over the fraction and that of doubles is not."""
    total = 2**64 - 1
    left = total - int(total * 0.85)
    for step in range(-3000, 3000, 7):
        post_used = total - (left + step)
        want = FitStatus.TIGHT if float(post_used) / float(total) > 0.85 else FitStatus.COMFORTABLE
        assert would_fit(0, left + step, total) is want


def test_numpy_integers_are_integers() -> None:
    assert would_fit(np.uint64(85), np.int32(100), np.uint8(100)) is FitStatus.COMFORTABLE


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: would_fit(-1, 1, 1), ValueError, "size"),
        (lambda: would_fit(1.0, 1, 1), TypeError, "size"),
        (lambda: would_fit(1, 2**64, 1), ValueError, "free"),
        (lambda: would_fit(1, 1, "x"), ValueError, "total"),
        (lambda: would_fit(1, 1, 1, idle=-1), ValueError, "idle"),
        (lambda: would_fit(1, 1, 1, reserved=None), TypeError, "reserved"),
        (lambda: FitPolicy(tight_fraction=1.01), ValueError, "tight_fraction"),
        (lambda: FitPolicy(tight_fraction=-0.01), ValueError, "tight_fraction"),
        (lambda: FitPolicy(tight_fraction=math.nan), ValueError, "tight_fraction"),
        (lambda: FitPolicy(tight_fraction="most"), TypeError, "tight_fraction"),
        (lambda: FitPolicy(tight_fraction="0.5"), TypeError, "tight_fraction"),
        (lambda: FitPolicy(tight_fraction=10**400), ValueError, "tight_fraction"),
        (lambda: FitPolicy(tight_fraction=np.zeros((9, 9))), TypeError, "tight_fraction"),
        (lambda: would_fit(True, 1, 1), TypeError, "size"),
        (lambda: would_fit(1, 1, 1, policy=None), TypeError, "policy"),
        (lambda: would_fit(10**5000, 1, 1), ValueError, "size"),
        (lambda: FitPolicy(tight_fraction=None), TypeError, "tight_fraction"),
        (lambda: FitPolicy(tight_margin=-1), ValueError, "tight_margin"),
        (lambda: FitPolicy(headroom=1.5), TypeError, "headroom"),
        (lambda: FitPolicy(headroom=2**64), ValueError, "headroom"),
    ],
)
def test_bad_input(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_policies_are_values() -> None:
    policy = FitPolicy(tight_fraction=1, tight_margin="4GiB", headroom="1 KiB")
    assert policy == FitPolicy(1.0, 4 << 30, 1024)
    assert hash(policy) == hash(FitPolicy(1.0, 4 << 30, 1024))
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(AttributeError):
        policy.headroom = 3  # type: ignore[misc]
