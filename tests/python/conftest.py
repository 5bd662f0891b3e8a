# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package. Bodies run on ranks that are started once and used by many tests.

    def body(rank, size, what): ...                a function of the module, with its assertions
    def test_what_is_so(ranks): ranks(4, body, what)
"""
import importlib
import multiprocessing
import os
import sys
import time
import traceback
from datetime import timedelta

import pytest

LIMIT_S = 200 * float(os.environ.get("DP_TEST_SCALE",
                                    "1"))  # of one body; a sign that something hangs


def serve(rank, size, store, pipe):
    """A rank: run what comes through the pipe, and say how it ended."""
    import faulthandler

    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo",
                            store=dist.FileStore(store, size),
                            rank=rank,
                            world_size=size,
                            timeout=timedelta(seconds=LIMIT_S))
    while True:
        job = pipe.recv()
        if job is None:
            break
        module, name, args = job
        faulthandler.dump_traceback_later(LIMIT_S)
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(rank, size, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()


class Pool:
    """The ranks of one group of processes."""
    def __init__(self, size, folder):
        # Ranks are forked from a process that has imported torch and begun no thread.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.pipelining", "libdualpipe"])
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve,
                                      args=(rank, size, str(folder / f"store{size}"), theirs),
                                      daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, body, args):
        for pipe in self.pipes:
            pipe.send((body.__module__, body.__name__, args))
        results, wrong, end = [], [], time.monotonic() + 1.5 * LIMIT_S
        for rank, pipe in enumerate(self.pipes):
            try:
                good, result = pipe.recv() if pipe.poll(max(
                    0, end - time.monotonic())) else (False, "it does not end")
            except EOFError:
                good, result = False, f"it died, status {self.processes[rank].exitcode}"
            results.append(result)
            if not good:
                wrong.append(f"rank {rank}: {result}")
        return results, "\n".join(wrong)

    def end(self, kill):
        for pipe, process in zip(self.pipes, self.processes):
            if kill:
                process.kill()
            elif process.is_alive():
                pipe.send(None)
        for process in self.processes:
            process.join(LIMIT_S)
        return [process.exitcode for process in self.processes]


@pytest.fixture(scope="session")
def pools(tmp_path_factory):
    made = {}
    yield made
    codes = {size: pool.end(False) for size, pool in made.items()}
    assert all(code == 0 for some in codes.values() for code in some), f"ranks end with {codes}"


@pytest.fixture
def ranks(pools, tmp_path):
    def run(size, body, *args):
        if size not in pools:
            pools[size] = Pool(size, tmp_path)
        results, wrong = pools[size].run(body, args)
        if wrong:
            pools.pop(size).end(True)
            pytest.fail(wrong, pytrace=False)
        return results

    return run


def pytest_terminal_summary(terminalreporter):
    """The lines that tests/totals.awk adds up."""
    stats = terminalreporter.stats
    wrong, skipped = stats.get("failed", []) + stats.get("error", []), stats.get("skipped", [])
    for report in wrong:
        terminalreporter.write_line(f"FAILED: {report.nodeid}")
    for report in skipped:
        terminalreporter.write_line(
            f"skipped: {report.nodeid}: {report.longrepr[2].replace('Skipped: ', '')}")
    terminalreporter.write_line(
        f"{len(stats.get('passed', []))} passed, {len(wrong)} failed, {len(skipped)} skipped")


os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.dirname(__file__))
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
