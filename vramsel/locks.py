"""Locks that a forked child finds free: there, the thread that held one does not exist."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Locked"]


class Locked:
    """Base of what has a `lock`."""

    __slots__ = ("__weakref__", "lock")
    lock: threading.RLock

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _all.add(self)


_all: weakref.WeakSet[Locked] = weakref.WeakSet()


def _renew() -> None:
    for owner in list(_all):
        owner.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
