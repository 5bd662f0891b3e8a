# SPDX-License-Identifier: Apache-2.0
"""Pipelines on CUDA: torch itself on the simulated GPU (tests/simcuda), one for each rank. A rank is a
process of this file, with the simulation loaded before torch; with the real NCCL messages go from GPU to
GPU."""
import copy
import gc
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

SIMULATED = Path(os.environ.get("DP_TOP_BUILDDIR", "."), "tests/simcuda/.libs")
LIMIT_S = 240 * float(os.environ.get("DP_TEST_SCALE", "1"))
WIDTH, ROWS, COUNT = 8, 3, 8


def why_not():
    import torch
    if not (SIMULATED / "libsimcuda.so").exists():
        return "no simulated CUDA in this build"
    if not torch.version.cuda:
        return "a torch without CUDA"
    return ""


def nccl_of_torch():
    import importlib.util
    found = importlib.util.find_spec("nvidia.nccl")
    files = [Path(path, "lib/libnccl.so.2") for path in found.submodule_search_locations] \
        if found else []
    return next((str(file) for file in files if file.exists()), "")


def environment(folder, rank, backend):
    (folder / "libcuda.so.1").exists() or (folder / "libcuda.so.1").symlink_to(
        (SIMULATED / "libsimcuda.so").resolve())
    return {
        **os.environ, "LD_LIBRARY_PATH": f"{folder}:{SIMULATED.resolve()}",
        "LD_PRELOAD": str(folder / "libcuda.so.1"), "NCCL_HOSTID": f"host-{rank}",
        "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET_PLUGIN": "none", "NCCL_RAS_ENABLE": "0",
        "NCCL_MAX_NCHANNELS": "1", "NCCL_BUFFSIZE": "131072", "SIMCUDA_LOOKS": "1",
        **({"SIMCUDA_NCCL": nccl_of_torch()} if backend == "nccl" else {})
    }


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_steps_on_gpus_are_those_on_the_host(tmp_path, backend):
    if why_not():
        pytest.skip(why_not())
    if backend == "nccl" and not nccl_of_torch():
        pytest.skip("a torch without the package of NCCL")
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path / "store"), backend],
                         env=environment(tmp_path, rank, backend), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True) for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, text in zip(ranks, said):
        assert rank.returncode == 0, "\n".join(said)


# ---- a rank ----


def deepseek_steps(rank, kind, uses_nccl):
    """Three steps: by the host, with the making of links by NCCL, and with nothing but its work."""
    import gpu_ops
    import models
    import torch

    import libdualpipe
    from libdualpipe.compat import deepseek
    deepseek.set_p2p_tensor_shapes([(ROWS, WIDTH)])
    deepseek.set_p2p_tensor_dtype(torch.float32)
    torch.manual_seed(7)
    full = [models.Stage(WIDTH) for _ in range(2 if kind == "DualPipe" else 4)]
    x, target = torch.randn(2, COUNT * ROWS, WIDTH)
    losses, outputs = models.plain(full, x, target, COUNT)
    mine = [copy.deepcopy(full[rank]), copy.deepcopy(full[len(full) - 1 - rank])]
    for module in mine:
        module.zero_grad()
        module.cuda()
    half = slice(0, len(x) // 2), slice(len(x) // 2, None)
    ins, labels, which = (x, target, slice(None)) if kind == "DualPipeV" else \
        (x[half[rank]], target[half[1 - rank]], half[1 - rank])
    if kind == "DualPipeV" and rank:
        ins = labels = None
    else:
        ins, labels = ins.cuda(), labels.cuda()
    taken, alloc = [], torch.cuda.caching_allocator_alloc  # of the library's buffers
    torch.cuda.caching_allocator_alloc = lambda count, at: taken.append(count) or alloc(count, at)
    pipe, seen = getattr(deepseek, kind)(mine), set()
    mine[0].register_forward_hook(
        lambda *_: seen.add(torch.cuda.current_stream().cuda_stream))
    results, waits = pipe._results, []
    pipe._results = lambda batch: waits.append(gpu_ops.driver.sim_waits_inside()) or results(batch)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for step in range(3):
        for module in mine:
            module.zero_grad()
        gc.collect()  # pipelines that end wait for their streams
        gpu_ops.driver.sim_count_waits()
        torch.cuda.set_sync_debug_mode("error" if step == 2 else "default")
        with torch.cuda.stream(stream):
            loss, out = pipe.step(ins, num_chunks=COUNT, criterion=models.criterion,
                                  labels=(labels, ), return_outputs=True)
        torch.cuda.set_sync_debug_mode("default")
        if ins is not None:
            rows = slice(*(None if e is None else e // ROWS for e in (which.start, which.stop)))
            stream.synchronize()
            assert torch.equal(loss.cpu(), losses[rows]), (loss.cpu(), losses[rows])
            assert torch.equal(out.cpu(), outputs[which])
    assert seen == {stream.cuda_stream}
    made, = pipe._pipelines.values()
    assert (made._links is not None) == uses_nccl
    if uses_nccl:
        assert waits[-1] == 0, waits
    torch.cuda.caching_allocator_alloc = alloc
    assert taken
    if kind == "DualPipeV":
        for module, whole in zip(mine, (full[rank], full[3 - rank])):
            for a, b in zip(models.grads(module), models.grads(whole)):
                torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)
    for _ in range(2):  # the first one ends the links
        with pytest.raises(AssertionError if rank == 0 else libdualpipe.DualpipeError):
            pipe.step(ins, num_chunks=COUNT, criterion=models.criterion if rank else None,
                      labels=(labels, ))
    for has_links in (False, uses_nccl):
        loss, _ = pipe.step(ins, num_chunks=COUNT, criterion=models.criterion, labels=(labels, ))
        assert (made._links is not None) == has_links
        assert ins is None or torch.equal(loss.cpu(), losses[rows])


def torchs_1f1b_steps(rank):
    import models
    import torch
    from torch.distributed.pipelining import PipelineStage

    from libdualpipe.compat.pipelining import Schedule1F1B
    torch.manual_seed(3)
    full = [models.Stage(WIDTH) for _ in range(2)]
    x, target = torch.randn(2, COUNT * ROWS, WIDTH)
    losses, outputs = models.plain(full, x, target, COUNT)
    mine, there = copy.deepcopy(full[rank]).cuda(), torch.device("cuda", 0)
    mine.zero_grad()
    schedule = Schedule1F1B(PipelineStage(mine, rank, 2, there), n_microbatches=COUNT,
                            loss_fn=models.criterion, scale_grads=False)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        mine.zero_grad()
        found = []
        with torch.cuda.stream(stream):  # inputs and results are of this one
            given = (x if rank == 0 else target).cuda() + 0
            out = schedule.step(given) if rank == 0 else schedule.step(target=given, losses=found)
            if rank:
                assert torch.equal(torch.stack(found).cpu(), losses)
                assert torch.equal(out.cpu(), outputs)
    torch.cuda.synchronize()
    for a, b in zip(models.grads(mine), models.grads(full[rank])):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)


def main(rank, store, backend):
    import faulthandler
    faulthandler.dump_traceback_later(LIMIT_S - 20, exit=True)
    import torch
    import torch.distributed as dist

    import gpu_ops
    torch.set_num_threads(1)
    gpu_ops.driver.cuInit(0)  # NCCL is on the simulated CUDA from now on
    dist.init_process_group(backend, store=dist.FileStore(store, 2), rank=rank, world_size=2,
                            timeout=timedelta(seconds=LIMIT_S))
    deepseek_steps(rank, "DualPipe", backend == "nccl")
    deepseek_steps(rank, "DualPipeV", backend == "nccl")
    torchs_1f1b_steps(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
