# SPDX-License-Identifier: Apache-2.0
"""Pipelines on CUDA: torch itself on the simulated GPU (tests/simcuda), one for each rank. A rank is a
process of this file, with the simulation loaded before torch; with the real NCCL messages go from GPU to
GPU."""
import copy
import gc
import os
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from unittest import mock

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
    meet(rank)
    for _ in range(2):  # the first one ends the links
        with pytest.raises(AssertionError if rank == 0 else libdualpipe.DualpipeError):
            pipe.step(ins, num_chunks=COUNT, criterion=models.criterion if rank else None,
                      labels=(labels, ))
    for has_links in (False, uses_nccl):
        loss, _ = pipe.step(ins, num_chunks=COUNT, criterion=models.criterion, labels=(labels, ))
        assert (made._links is not None) == has_links
        assert ins is None or torch.equal(loss.cpu(), losses[rows])


def meet(rank, met=[]):
    """What a rank does wrong from here on ends no step of before."""
    import torch.distributed as dist
    store = dist.distributed_c10d._get_default_store()
    met.append(f"met/{len(met)}")
    store.set(f"{met[-1]}/{rank}", "")
    store.wait([f"{met[-1]}/{other}" for other in range(2)])


def layer():
    from torch import nn
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def near(modules, others):
    import models
    import torch
    for a, b in zip(models.grads(*modules), models.grads(*others)):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)


def torchs_steps(rank, name):
    import models
    import torch
    from torch.distributed.pipelining import PipelineStage

    from libdualpipe.compat import pipelining
    indices = {"1F1B": [rank], "InterleavedZeroBubble": [rank, rank + 2],
               "ZBVZeroBubble": [rank, 3 - rank]}[name]
    torch.manual_seed(3)
    full = [layer() for _ in range(2 * len(indices))]
    x, target = torch.randn(2, COUNT * ROWS, WIDTH)
    losses, outputs = models.plain(full, x, target, COUNT)
    mine, there = [copy.deepcopy(full[i]).cuda() for i in indices], torch.device("cuda", 0)
    stages = [PipelineStage(module, i, len(full), there) for module, i in zip(mine, indices)]
    schedule = getattr(pipelining, "Schedule" + name)(
        stages if len(stages) > 1 else stages[0], n_microbatches=COUNT, loss_fn=models.criterion,
        scale_grads=False)
    is_last = len(full) - 1 in indices
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        for module in mine:
            module.zero_grad()
        found = []
        with torch.cuda.stream(stream):  # inputs and results are of this one
            given = [x.cuda() + 0] if rank == 0 else []
            told = {"target": target.cuda() + 0, "losses": found} if is_last else {}
            out = schedule.step(*given, **told)
            if is_last:
                assert torch.equal(torch.stack(found).cpu(), losses)
                assert torch.equal(out.cpu(), outputs)
    torch.cuda.synchronize()
    near(mine, [full[i] for i in indices])


def async_pipe_steps(rank, uses_nccl):
    """By the host, then by links."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from libdualpipe.compat.fairscale import AsyncPipe
    torch.manual_seed(5)
    whole = nn.Sequential(*layer(), *layer())
    x, target = torch.randn(2, COUNT * ROWS, WIDTH)
    expected = whole(x)
    F.mse_loss(expected, target).backward()
    pipe = AsyncPipe(copy.deepcopy(whole).cuda(), [3, 3], worker_map={0: "first", 1: "second"},
                     chunks=4, checkpoint="except_last")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        pipe.zero_grad()
        with torch.cuda.stream(stream):
            out = pipe(x.cuda() + 0)
            if pipe.final_stage:
                F.mse_loss(out, target.cuda() + 0).backward()
                torch.testing.assert_close(out.detach().cpu(), expected, rtol=1e-6, atol=1e-7)
        torch.cuda.synchronize()
        near([pipe], [whole[3 * rank:3 * rank + 3]])
    made, = pipe.pipeline.values()
    assert (made._links is not None) == uses_nccl


def offload_steps():
    """Parameters and gradients stay on the host; inputs and outputs are on the GPU."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from libdualpipe.compat.fairscale import OffloadModel
    with pytest.raises(TypeError, match="a device of type cuda, expected cpu"):
        OffloadModel(nn.Sequential(layer()), torch.device("cuda"), torch.device("cuda"))
    for checkpoint, count in ((False, 1), (True, 4)):
        torch.manual_seed(6)
        whole = nn.Sequential(*layer(), *layer())
        whole[0].register_buffer("seen", torch.zeros(3))
        ours = OffloadModel(copy.deepcopy(whole), torch.device("cuda"), num_slices=3,
                            checkpoint_activation=checkpoint, num_microbatches=count)
        taken, alloc = [], torch.cuda.caching_allocator_alloc
        torch.cuda.caching_allocator_alloc = lambda size, at: taken.append(size) or alloc(size, at)
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (whole, ours)]
        streams, seen = [torch.cuda.current_stream(), torch.cuda.Stream()], set()
        ours.model_slices[0].register_forward_hook(
            lambda *_: seen.add(torch.cuda.current_stream().cuda_stream))
        for step in range(4):
            x, target = torch.randn(2, COUNT * ROWS, WIDTH)
            inputs = x.clone().requires_grad_(), x.cuda().requires_grad_()
            for optimizer in optimizers:
                if step != 1:  # once gradients add up
                    optimizer.zero_grad(set_to_none=step % 2 == 0)
            F.mse_loss(whole(inputs[0]), target).backward()
            with torch.cuda.stream(streams[step % 2]):
                out = ours(inputs[1] + 0)
                assert out.is_cuda
                F.mse_loss(out, target.cuda() + 0).backward()
            torch.cuda.synchronize()
            assert not any(p.is_cuda or p.grad.is_cuda for p in ours.parameters())
            near([ours], [whole])
            torch.testing.assert_close(inputs[1].grad.cpu(), inputs[0].grad, rtol=1e-5, atol=1e-6)
            for optimizer in optimizers:
                optimizer.step()
        torch.cuda.caching_allocator_alloc = alloc
        assert taken and seen == {streams[0].cuda_stream}
        assert all(buffer.is_cuda for buffer in ours.buffers())
        with torch.no_grad():
            torch.testing.assert_close(ours(x).cpu(), whole(x), rtol=1e-5, atol=1e-6)


def decent_dp_steps(rank, uses_nccl):
    """Values after each iteration beside those on the host."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import libdualpipe
    from libdualpipe.compat import decent_dp

    class Turns(decent_dp.Topology):
        def _get_topo_edges(self):
            return [[decent_dp.Edge([0, 1], 0.5 + number / 16)] for number in range(5)]

    def sgd(params, kind=torch.optim.SGD):
        return kind([p for _, p in params], lr=0.05, momentum=0.9, foreach=False)

    class Hooked(torch.optim.SGD):
        def pre_average_hook(self, edge, weight):
            pass

    class Still(torch.optim.Optimizer):
        def step(self):
            pass

    decent_dp.TopologyReg.registry["turns"] = Turns
    torch.manual_seed(20 + rank)
    base = layer()
    base.register_buffer("seen", torch.full((3, ), float(rank)))
    there = copy.deepcopy(base).cuda()
    if not uses_nccl:
        with pytest.raises(RuntimeError, match="parameters on cuda:0 in a process group of gloo, "
                           "expected one with NCCL"):
            decent_dp.DecentralizedDataParallel(there, sgd)
        return
    options = {"topology": "turns", "grad_clip_norm": 0.0, "sync_buffer_in_global_avg": True}
    host, gpu = [decent_dp.DecentralizedDataParallel(m, sgd, **options) for m in (base, there)]

    def same(step):
        for p, q in zip(base.parameters(), there.parameters()):
            assert torch.equal(p, q.cpu()), step

    same(-1)  # as rank 0's
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for step in range(8):
        x, y = torch.randn(2, ROWS, WIDTH)
        for model in (host, gpu):
            model.set_adaptive_factor(1.0 if step < 4 else 0.5)
            model.set_accumulate_grad(step == 5)
        F.mse_loss(host(x), y).backward()
        with torch.cuda.stream(streams[step % 2]):
            F.mse_loss(gpu(x.cuda() + 0), y.cuda() + 0).backward()
            if step:  # the host keeps its first update until there are buckets
                same(step)
        if step == 6:
            far = [model.global_avg(return_d2c=True) for model in (host, gpu)]
            assert far[0] == pytest.approx(far[1], rel=1e-5) and far[0] > 0
            for p, q in zip(base.parameters(), there.parameters()):
                torch.testing.assert_close(p, q.cpu(), rtol=1e-6, atol=1e-7)
            assert torch.equal(there.seen.cpu(), torch.full((3, ), 0.5))
            for model in (host, gpu):
                model.revert_global_avg()
            same(step)
        if step == 7:  # as on the host, for good: the backup stays
            for model in (host, gpu):
                model.global_avg(will_revert=False)
                model.revert_global_avg()
            same(6)
    if rank == 0:
        there[0].weight.data = there[0].weight.data.clone()
    error, said = (RuntimeError, "parameter '0.weight' has other memory") if rank == 0 else \
        (libdualpipe.DualpipeError, "")
    with pytest.raises(error, match=said):
        for _ in range(3):  # nothing comes from rank 0 any more, but that it has failed
            loss = gpu(x.cuda()).sum()
            loss.backward()
            loss.item()
    words = nn.Embedding(WIDTH, WIDTH, sparse=True).cuda()
    sparse = decent_dp.DecentralizedDataParallel(words, lambda params: Still([words.weight], {}))
    sparse(torch.arange(3).cuda()).sum().backward()
    last = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
    hooked = decent_dp.DecentralizedDataParallel(last, lambda params: sgd(params, Hooked))
    with pytest.raises(RuntimeError, match="Hooked has a pre_average_hook, expected one without"):
        hooked(x.cuda()).sum().backward()
    torch.cuda.synchronize()


def normed():
    from torch import nn
    return nn.Sequential(layer(), nn.BatchNorm1d(WIDTH), layer(), nn.Linear(WIDTH, WIDTH))


def trained(layers, there, steps, group, how):
    """Losses and norms of steps, the loss of an evaluation, and the whole state."""
    import torch
    import torch.nn.functional as F

    from libdualpipe.torch import Trainer
    layers = copy.deepcopy(layers).to(there)
    options = {"rows": 24, "rate": 0.05, "microbatches": 8, "fixed_order": True, "order_blocks": 4,
               "clip": 0.5, "group": group, "mixing": {"graph": "complete"}, **how}
    begun = torch.cuda.current_stream().cuda_stream
    seen = set()
    batch = torch.randn(2, 24, WIDTH, generator=torch.Generator().manual_seed(8))
    trainer = Trainer(layers, F.mse_loss, tuple(batch.to(there)), **options)
    layers[0].register_forward_hook(lambda *_: seen.add(torch.cuda.current_stream().cuda_stream))
    found = []
    for step in range(steps):
        rows = 24 - 3 * (trainer.next_step % 2)
        x, y = batch[:, :rows] * (1 + trainer.next_step)
        with torch.cuda.stream(torch.cuda.Stream()):  # of a caller's own; once from the host's memory
            found += trainer.step(x if step == 1 else x.to(there) + 0, y.to(there) + 0)[:2]
    found.append(trainer.evaluate(*batch.to(there)))
    if "folder" in how:
        trainer.save()
    if how.get("sums") == "mixing":
        trainer.finish()
    whole = trainer.gather(0)
    assert there == "cpu" or seen <= {begun}
    assert all(p.device.type == there for p in layers.parameters())
    mine = [(p, p.detach().cpu()) for p in trainer._model.bound]
    assert mine
    trainer.close()
    assert all(torch.equal(p.detach().cpu(), value) and p.grad is None for p, value in mine)
    return found, whole


def trainer_steps(rank, folder, uses_nccl, alone):
    """The same as on the host: one rank, pipelines, replicas, replicas that mix, and on from
    a checkpoint under another layout."""
    import torch
    torch.backends.cudnn.enabled = False
    torch.manual_seed(9)
    layers = normed()
    layouts = [(alone, {}), (None, {"schedule": "dualpipe"}), (None, {"schedule": "1f1b"}),
               (None, {"replicas": 2}), (None, {"replicas": 2, "sums": "mixing", "clip": 0.0})]
    for group, how in layouts if uses_nccl else layouts[:2] + layouts[3:4]:
        host, gpu = [trained(layers, there, 3, group, how) for there in ("cpu", "cuda")]
        assert gpu[0] == pytest.approx(host[0], rel=1e-6), how
        assert (host[1] is None) == (gpu[1] is None)
        for name, value in (host[1] or {}).items():
            torch.testing.assert_close(gpu[1][name], value, rtol=1e-6, atol=1e-7)
    folder += "/gpu"
    expected = trained(layers, "cpu", 4, None, {"schedule": "dualpipe"})
    trained(layers, "cuda", 2, None, {"schedule": "1f1b", "folder": folder})
    found = trained(layers, "cuda", 2, None, {"replicas": 2, "folder": folder, "resume": True})
    assert found[0] == pytest.approx(expected[0][4:], rel=1e-6)


def trainer_errors(rank):
    import torch
    import torch.nn.functional as F
    from torch import nn

    import libdualpipe
    from libdualpipe import _cuda as cuda
    from libdualpipe.compat.fairscale import AsyncPipe
    from libdualpipe.torch import Trainer
    x = torch.randn(4, WIDTH).cuda()
    options = {"rows": 4, "rate": 0.1, "schedule": "1f1b"}
    buffered = layer().cuda()
    buffered.register_buffer("seen", torch.zeros(1))
    with pytest.raises(ValueError, match=r"layer 1 \(Sequential\): 1.0.weight is on cpu, "
                       "expected cuda:0, where 0.0.weight is"):
        Trainer([layer().cuda(), layer()], F.mse_loss, (x, x), **options)
    with pytest.raises(ValueError, match="0.seen is on cpu, expected cuda:0, where 0.0.weight is"):
        Trainer([buffered], F.mse_loss, (x, x), **options)
    with pytest.raises(ValueError, match="an input is on cuda:0, expected the host"):
        Trainer([layer(), layer()], F.mse_loss, (x, x), **options)
    for more, said in (({"survive": True}, "survive: with layers on cuda:0, expected the host"),
                       ({"optimizer": "accum-adamw"}, "accum")):
        with pytest.raises((ValueError, libdualpipe.DualpipeError), match=said):
            Trainer([layer().cuda(), layer().cuda()], F.mse_loss, (x, x), **{**options, **more})
    opened, own = cuda._devices.pop(0), MemoryError if rank == 1 else libdualpipe.DualpipeError
    for make in (lambda: Trainer([layer().cuda(), layer().cuda()], F.mse_loss, (x, x), **options),
                 lambda: AsyncPipe(layer().cuda(), [2, 1], worker_map={0: "first", 1: "second"})(x)):
        with mock.patch.object(cuda, "Device", side_effect=MemoryError("of this GPU")) \
                if rank == 1 else nullcontext():
            with pytest.raises(own, match="of this GPU"):
                make()
        meet(rank)
    cuda._devices[0] = opened
    layers = nn.Sequential(layer(), layer()).cuda()
    before = [(p, p.data_ptr(), p.detach().cpu()) for p in layers.parameters()]
    trainer = Trainer(layers, F.mse_loss, (x, x), **options)
    assert all(p.data_ptr() == at and torch.equal(p.detach().cpu(), value) for p, at, value in before)
    trainer.step(x, x)

    def fails(*_):
        raise KeyError("of ours")

    def broken(*_):
        raise RuntimeError("of CUDA")

    if rank == 1:
        layers[1].register_forward_hook(fails)
        trainer._model.settle = broken
    meet(rank)
    with pytest.raises(KeyError if rank == 1 else libdualpipe.DualpipeError,
                       match="of ours") as caught:
        trainer.step(x, x)
    if rank == 1:
        assert str(caught.value.__context__) == "of CUDA"
        del trainer._model.settle
    trainer.close()
    trainer = Trainer(nn.Sequential(layer(), layer()).cuda(), F.mse_loss, (x, x), **options)
    meet(rank)
    own = ValueError if rank == 1 else libdualpipe.DualpipeError
    with pytest.raises(own, match="a label is on meta"):
        trainer.step(x, x.to("meta") if rank == 1 else x)


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
    uses_nccl = backend == "nccl"
    deepseek_steps(rank, "DualPipe", uses_nccl)
    deepseek_steps(rank, "DualPipeV", uses_nccl)
    for name in ("1F1B", "InterleavedZeroBubble", "ZBVZeroBubble") if uses_nccl else ("1F1B", ):
        torchs_steps(rank, name)
    async_pipe_steps(rank, uses_nccl)
    meet(rank)
    decent_dp_steps(rank, uses_nccl)
    alone = [dist.new_group([one]) for one in range(2)][rank]
    trainer_steps(rank, os.path.dirname(store), uses_nccl, alone)
    meet(rank)
    trainer_errors(rank)
    meet(rank)
    if uses_nccl and rank == 0:
        offload_steps()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
