"""Measures decisions against floors in the same run, and prints ratios.

    python bench/run.py [--quick] [GROUP ...]

Groups: single, batch, threads, growth, quiet, peers, import; by default all of them.
"""

from __future__ import annotations

import argparse
import platform
import sys

import batch
import importing
import numpy as np
import peers
import quiet
import single
from build_native import load_native
from measure import compare

from vramsel import _core

GROUPS = {
    "single": ("One decision / an empty method", lambda o: compare(single.cases(load_native()), o.rounds)),
    "batch": ("Batches / reading the same bytes, one thread", lambda o: compare(batch.cases(o.rows), o.rounds)),
    "threads": ("Two threads", lambda o: batch.threads_report(o.rows, o.rounds)),
    "growth": ("How the cost of a candidate grows", lambda o: batch.growth(max(o.rounds // 3, 3), o.largest)),
    "quiet": ("While another thread publishes", lambda o: quiet.quiet_report(o.rounds)),
    "peers": ("The same work by others, sets of 4", lambda o: peers.peers_report(max(o.rounds // 3, 3))),
    "import": ("Import", lambda o: compare([importing.case()], o.rounds)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and smaller growth")
    parser.add_argument("--rows", type=int, default=4_000_000, help="candidates of a batch")
    parser.add_argument("--kernel", choices=_core.kernels(), help="the batch kernel, by default the best")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    options = parser.parse_args()
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if options.kernel:
        _core.use_kernel(options.kernel)
    options.rounds = 5 if options.quick else 15
    options.largest = 10**7 if options.quick else 10**8
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, kernels {', '.join(_core.kernels())}")
    print("median ratio, its middle half, time of the case")
    good = True
    for name in options.groups or GROUPS:
        title, measure = GROUPS[name]
        print(f"{title} ({name})")
        good &= measure(options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
