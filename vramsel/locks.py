"""Locks that are in order in a forked child, where the thread that held one does not exist."""

from __future__ import annotations

import os
import threading
import time
import weakref

__all__ = ["Locked"]


class Locked:
    """Base of what has a `lock`.

    Attributes
    ----------
    lock : threading.RLock
        Free in every forked child.
    held_at_fork : bool
        Whether a fork waits for it (not for ever), so that a child does not see what it guards
        half changed.
        Not for a lock that is held for long.
    """

    __slots__ = ("__weakref__", "lock")
    lock: threading.RLock
    held_at_fork = True

    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _listing:
            _all.add(self)

    def renew(self) -> None:
        """Start anew in a forked child."""
        self.lock = threading.RLock()

    def forked(self) -> None:
        """Do what else there is to do in a forked child, where all locks are in order by now."""


_all: weakref.WeakSet[Locked] = weakref.WeakSet()
_listing = threading.Lock()
_held: list[Locked] = []
_PATIENCE = 0.5  # seconds that a fork waits; these locks are held for microseconds


def _before_fork() -> None:
    _listing.acquire()
    deadline = time.monotonic() + _PATIENCE
    waited_for = (owner for owner in _all if owner.held_at_fork)
    _held.extend(o for o in waited_for if o.lock.acquire(timeout=max(deadline - time.monotonic(), 0)))


def _after_in_parent() -> None:
    while _held:
        _held.pop().lock.release()
    _listing.release()


def _after_in_child() -> None:
    global _listing
    _held.clear()
    _listing = threading.Lock()
    owners = list(_all)
    for owner in owners:
        owner.renew()
    for owner in owners:
        owner.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
