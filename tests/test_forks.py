"""Forks: what a child has of its parent's tables, monitors, CUDA and NVML."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest
from cuda_stub import CudaStub
from stand_ins import BEGIN

Run = Callable[..., Any]

# `in_child` runs a function in a forked child and gives what it returned, or says that it hung. The child
# ends as an interpreter does, with what is registered for that.
CHILD = """
import select, signal

def in_child(function, patience=20):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = function()
        except BaseException as error:
            import traceback
            answer = "".join(traceback.format_exception(error))
        os.write(write, json.dumps(answer).encode())
        os.close(write)
        if os.getpid() != first:
            import atexit
            atexit._run_exitfuncs()
            os._exit(0 if stub.stub_calls_after_fork() == after else 3)
    os.close(write)
    text = b""
    deadline = time.monotonic() + patience
    while True:
        ready, _, _ = select.select([read], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "the child hangs"
        piece = os.read(read, 65536)
        if not piece:
            break
        text += piece
    os.close(read)
    _, ended = os.waitpid(child, 0)
    return [json.loads(text), os.waitstatus_to_exitcode(ended)]

first = os.getpid()
after = 0  # calls of the driver that a child may make

def look(table, *more):
    "What a child can tell of a table without a source."
    wanted = vs.AlternativeSet([vs.Candidate("cuda:0", GIB), vs.Candidate("cpu", GIB)])
    return [
        numbers(table),
        [table.select(wanted), table.select_many(wanted.array, set_size=2).tolist()],
        [verdict(table, place)["status"] for place in ("cuda:0", "cuda:1", "cuda:9")],
        verdict(table, "cuda:0")["detail"],
        [stub.stub_calls_after_fork(), nv.nv_calls_after_fork(), threading.active_count()],
        *more,
    ]

def cards():
    stub.stub_devices(2)
    nv.nv_devices(2)
    card(0, 8, 16, active=True)
    card(1, 9, 16)
    gpu(1, 9, 16)  # read through NVML
"""


@pytest.fixture
def run(cuda_stub: CudaStub) -> Run:
    """Run a script in a process whose CUDA driver and NVML are the stubs."""
    return lambda script, **options: cuda_stub.run(BEGIN + CHILD + dedent(script), **options)


def test_a_child_can_initialise_cuda_if_its_parent_did_not(run: Run) -> None:
    seen = run("""
        cards()
        table = vs.MemoryTable({"cuda:0": (GIB, 2 * GIB), "cpu": (GIB, 2 * GIB)})
        table.select(vs.candidates([("cuda:0", 1)]))
        before = vs.watch(init_cuda=False)

        def child():
            answers = [stub.stub_calls(b"cuInit"), stub.cuInit(0), stub.stub_calls_after_fork()]
            with vs.watch([CudaDriverSource()]) as monitor:
                answers += [numbers(monitor.table), dict(monitor.errors)]
            with vs.watch(init_cuda=False) as monitor:
                answers += [numbers(monitor.table)["cuda:0"]]
            before.refresh()  # the parent's, in the child that has CUDA now
            return [*answers, numbers(before.table)["cuda:1"]]

        rows = [in_child(child)]
        with vs.watch(init_cuda=False, interval=0.01) as monitor:
            rows += [in_child(child), in_child(lambda: in_child(child))]
        rows.append([stub.stub_calls(b"cuInit"), nv.nv_inits(), stub.cuInit(0)])
        print(json.dumps(rows))
    """)
    both = {"cuda:0": [8, 16], "cuda:1": [9, 16]}
    child = [[0, 0, 0, both, {}, [8, 16], [9, 16]], 0]
    assert seen[0] == seen[1] == child
    assert seen[2] == [child, 0]
    assert seen[3] == [0, 0, 0]


def test_a_child_of_a_process_with_cuda_picks_without_it(run: Run) -> None:
    seen = run("""
        cards()
        mine = vs.MemoryTable({"cuda:0": (GIB, 2 * GIB), "cpu": (GIB, 2 * GIB)})
        rows = []
        with vs.watch([CudaDriverSource(), host(50, 64)], interval=0.01) as monitor:
            table = monitor.table
            table.add_node("vulkan:7", 3 * GIB, 4 * GIB)  # the caller's own number
            token = table.begin_sample()
            def child():
                late = table.publish(token, "vulkan:7", GIB, 2 * GIB)
                return look(table, late, dict(monitor.errors), numbers(mine), repr(monitor)[:8])
            rows.append(numbers(table))
            rows.append(in_child(child))
            rows.append(in_child(lambda: in_child(child)))  # a child's child
            # The parent's monitor goes on.
            stub.stub_memory(0, 5 * GIB, 16 * GIB)
            until(lambda: table.free[0] == 5 * GIB)
            rows.append([dict(monitor.errors), table.known.tolist()])
        rows.append(in_child(lambda: [numbers(table), verdict(table, "cuda:0")["status"]]))  # of one that is closed
        print(json.dumps(rows))
    """)
    before, child, grandchild, parent, closed = seen
    own = {"vulkan:7": [3, 4]}
    assert before == {"cuda:0": [8, 16], "cuda:1": [9, 16], "cpu": [50, 64], **own}
    assert child[1] == 0, "the end of the child called no driver either"
    nodes, picks, statuses, why, calls, late, errors, mine, text = child[0]
    assert nodes == {"cuda:0": None, "cuda:1": None, "cpu": None, **own}
    assert picks == [0, [0]], "unknown is no reason to leave the planned place"
    assert statuses == ["UNKNOWN", "UNKNOWN", "WONT_FIT"]
    assert "fork" in why
    assert "\n" not in why
    assert calls == [0, 0, 1]
    assert late is False, "what began before the fork means nothing"
    assert (errors, mine, text) == ({}, {"cuda:0": [1, 2], "cpu": [1, 2]}, "Monitor(")
    assert grandchild == [child, 0]
    assert parent == [{}, [True] * 4]
    assert closed == [[{"cuda:0": None, "cuda:1": None, "cpu": None, **own}, "UNKNOWN"], 0]


@pytest.mark.parametrize("held", ["every lock", "the driver", "NVML"])
def test_a_fork_while_something_is_held(run: Run, held: str) -> None:
    """By a thread that the child does not have: a lock of ours, or a call that waits in a library."""
    seen = run(f"""
        import contextlib
        from vramsel.sources import nvml

        cards()
        held = {held!r}
        monitor = vs.watch([CudaDriverSource(), host(50, 64)], interval=0.02)
        table = monitor.table
        monitor.start()
        let_go, taken = threading.Event(), threading.Event()
        if held == "every lock":
            def hold():
                with contextlib.ExitStack() as locks:
                    for lock in (monitor.lock, table._book.lock, nvml._library.lock):
                        locks.enter_context(lock)
                    taken.set()
                    let_go.wait(20)
            thread = threading.Thread(target=hold)
            thread.start()
            assert taken.wait(20)
        elif held == "the driver":
            calls = stub.stub_calls(b"cuMemGetInfo")
            stub.stub_delay_once(b"cuMemGetInfo", -1, 500_000, 1)
            until(lambda: stub.stub_calls(b"cuMemGetInfo") > calls)
        else:
            calls = nv.nv_calls(b"nvmlDeviceGetMemoryInfo_v2")
            nv.nv_delay_once(b"nvmlDeviceGetMemoryInfo_v2", -1, 500_000, 1)
            until(lambda: nv.nv_calls(b"nvmlDeviceGetMemoryInfo_v2") > calls)

        def child():
            row = look(table, dict(monitor.errors))
            table.update("cpu", GIB, 2 * GIB)
            table.set_policy("cpu", vs.FitPolicy(headroom=1))
            return [*row, numbers(table)["cpu"]]

        row = in_child(child)
        let_go.set()
        until(lambda: table.known.all())
        monitor.close()
        print(json.dumps([row, contexts(2), nv.nv_references()]))
    """)
    (child, ended), contexts, references = seen
    nodes, picks, statuses, why, calls, errors, cpu = child
    assert nodes == {"cuda:0": None, "cuda:1": None, "cpu": None}
    assert (picks, statuses) == ([0, [0]], ["UNKNOWN", "UNKNOWN", "WONT_FIT"])
    assert "fork" in why
    assert (calls, errors, cpu, ended) == ([0, 0, 1], {}, [1, 2], 0)
    assert (contexts, references) == ([0, 0, [1, 0], 0], 0), "the parent's, after all"


def test_a_child_starts_a_monitor_of_its_own(run: Run) -> None:
    """Of the host and NVML, that is: CUDA is its parent's, and it says so without asking the driver."""
    seen = run("""
        cards()
        sources = [host(50, 64), CudaDriverSource()]

        def own():
            with vs.watch([host(40, 64), CudaDriverSource(), NvmlSource()], interval=0.01) as mine:
                row = [numbers(mine.table), dict(mine.errors), verdict(mine.table, "cuda:0"), status(mine.table, "cpu")]
                before = nv.nv_calls(b"nvmlDeviceGetMemoryInfo_v2")
                until(lambda: nv.nv_calls(b"nvmlDeviceGetMemoryInfo_v2") >= before + 5)
                inner = in_child(lambda: look(mine.table)[0])
                again = numbers(mine.table)
            return [*row, inner, again, stub.stub_calls_after_fork(), nv.nv_references(), threading.active_count()]

        def restarted():
            with monitor:
                until(lambda: monitor.table.known[0])
                monitor.refresh()
                row = [numbers(monitor.table), dict(monitor.errors), verdict(monitor.table, "cuda:0")["status"]]
            return [*row, stub.stub_calls_after_fork(), threading.active_count()]

        def refreshed():
            monitor.refresh()
            return [numbers(monitor.table)["cpu"], stub.stub_calls_after_fork()]

        rows = []
        with vs.watch(sources, interval=0.01) as monitor:
            rows = [in_child(own), in_child(restarted), in_child(refreshed), in_child(lambda: in_child(own))]
            rows.append([monitor.table.known.tolist(), dict(monitor.errors)])
        rows.append([contexts(2), nv.nv_references()])
        print(json.dumps(rows))
    """)
    own, restarted, refreshed, in_a_childs_child, parent, after = seen
    assert own[1] == 0
    nodes, errors, verdict, cpu, inner, again, calls, references, threads = own[0]
    uuids = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (1, 2)]
    assert nodes == again == {"cpu": [40, 64], uuids[0]: [16, 16], uuids[1]: [9, 16]}
    assert list(errors) == ["cuda-driver"]
    assert "fork" in errors["cuda-driver"]
    assert (verdict["status"], verdict["detail"], cpu) == ("UNKNOWN", errors["cuda-driver"], "COMFORTABLE")
    assert inner == [dict.fromkeys(nodes), 0]
    assert (calls, threads) == (0, 1)
    assert references == 1, "what the parent has of it; the child's own is given back"
    nodes, errors, status, calls, threads = restarted[0]
    assert nodes == {"cpu": [50, 64], "cuda:0": None, "cuda:1": None}
    assert "fork" in errors["cuda-driver"]
    assert (status, calls, threads, restarted[1]) == ("UNKNOWN", 0, 1, 0)
    assert refreshed == [[[50, 64], 0], 0]
    assert in_a_childs_child == [own, 0]
    assert parent == [[True, True, True], {}]
    assert after == [[0, 0, [1, 0], 0], 0]


def test_contexts_of_the_parent_are_not_the_childs_to_give_back(run: Run) -> None:
    seen = run("""
        cards()
        source = CudaDriverSource(create_context=True)
        monitor = vs.watch([source])
        made = contexts(2)

        def child():
            source.close()
            monitor.close()
            source.close()
            return [contexts(2)[2], stub.stub_calls_after_fork(), nv.nv_calls_after_fork()]

        rows = [made, in_child(child), contexts(2)]
        monitor.close()
        print(json.dumps([*rows, contexts(2)[2]]))
    """)
    assert seen == [[1, 0, [1, 1], 0], [[[1, 1], 0, 0], 0], [1, 0, [1, 1], 0], [1, 0]]


def test_forks_of_a_running_monitor_at_any_moment(run: Run) -> None:
    """From the main thread and from another, while threads publish and read."""
    seen = run("""
        cards()
        bad = []
        with vs.watch([host(50, 64), CudaDriverSource()], interval=0.001) as monitor:
            table = monitor.table
            stop = threading.Event()
            def busy():
                while not stop.is_set():
                    table.update("cuda:9", 1, 2)
                    monitor.errors
            table.add_node("cuda:9", 1, 2)
            threads = [threading.Thread(target=busy) for _ in range(2)]
            for thread in threads:
                thread.start()
            expected = [{"cpu": None, "cuda:0": None, "cuda:1": None, "cuda:9": [1 / GIB, 2 / GIB]}, [0, 0, 1]]
            def child():
                row = look(table)
                return [row[0], row[4]]
            def fork_some():
                for _ in range(15):
                    answer = in_child(child)
                    if answer != [expected, 0]:
                        bad.append(answer)
            fork_some()
            other = threading.Thread(target=fork_some)
            other.start()
            other.join()
            stop.set()
            for thread in threads:
                thread.join()
            monitor.refresh()
            known = table.known.tolist()
        print(json.dumps([bad[:3], known, contexts(2), nv.nv_references()]))
    """)
    assert seen == [[], [True] * 4, [0, 0, [1, 0], 0], 0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing(run: Run, method: str) -> None:
    seen = run(f"""
        import multiprocessing

        def work(table, queue):
            wanted = vs.AlternativeSet([vs.Candidate("cuda:0", GIB), vs.Candidate("cpu", GIB)])
            queue.put([numbers(table), table.select(wanted), stub.stub_calls_after_fork()])

        if __name__ == "__main__":
            cards()
            with vs.watch([CudaDriverSource(), host(50, 64)], interval=0.01) as monitor:
                table = monitor.table
                context = multiprocessing.get_context({method!r})
                queue = context.SimpleQueue()
                worker = context.Process(target=work, args=(table, queue))
                worker.start()
                answer = queue.get()
                worker.join()
            print(json.dumps([answer, worker.exitcode]))
    """)
    # Forked, the table is the monitor's, which does not run here; spawned, it is a snapshot of its own.
    nodes = ("cuda:0", "cuda:1", "cpu")
    expected = dict.fromkeys(nodes) if method == "fork" else dict(zip(nodes, ([8, 16], [9, 16], [50, 64]), strict=True))
    assert seen == [[expected, 0, 0], 0]
