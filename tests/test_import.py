"""What importing vramsel does, and does not do. Each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

BEGIN = "import sys, json, threading; before = set(sys.modules);"


def fresh(code: str) -> object:
    done = subprocess.run([sys.executable, "-P", "-c", BEGIN + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_loads_no_driver_and_starts_no_thread() -> None:
    libraries, modules, threads = fresh(
        "import vramsel;"
        "maps = open('/proc/self/maps').read() if sys.platform == 'linux' else '';"
        "print(json.dumps([[n for n in ('libcuda', 'libnvidia-ml') if n in maps],"
        " sorted(m for m in set(sys.modules) - before if m.split('.')[0] in ('cuda', 'psutil', 'rich', 'torch')),"
        " threading.active_count()]))"
    )
    assert libraries == []
    assert modules == []
    assert threads == 1


def test_import_brings_little_beside_numpy() -> None:
    """No source, no monitor, no oracle, no command line before it is asked for."""
    loaded = fresh("import vramsel; print(json.dumps(sorted(m for m in sys.modules if m.split('.')[0] == 'vramsel')))")
    assert loaded == [
        "vramsel",
        "vramsel._core",
        "vramsel.book",
        "vramsel.errors",
        "vramsel.fit",
        "vramsel.locks",
        "vramsel.placement",
        "vramsel.records",
        "vramsel.selectors",
        "vramsel.table",
        "vramsel.units",
    ]


def test_every_public_name_is_there() -> None:
    missing = fresh(
        "import vramsel as vs; names = [*vs.__all__, '__version__'];"
        "print(json.dumps([n for n in names if not hasattr(vs, n) or n not in dir(vs)]))"
    )
    assert missing == []


def test_a_table_and_a_watch_without_cuda_load_no_driver() -> None:
    """watch(init_cuda=False) may import the bindings but never initialises the driver."""
    threads, nodes = fresh(
        "import vramsel as vs; m = vs.watch(init_cuda=False);"
        "print(json.dumps([threading.active_count(), m.table.nodes]))"
    )
    assert threads == 1
    assert nodes[0] == "cpu"


def test_unknown_attributes_are_errors() -> None:
    assert fresh(
        "import vramsel, vramsel.sources;"
        "print(json.dumps([hasattr(vramsel, 'nothing'), hasattr(vramsel.sources, 'nothing')]))"
    ) == [False, False]
