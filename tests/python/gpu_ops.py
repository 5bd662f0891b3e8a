# SPDX-License-Identifier: Apache-2.0
"""Torch's operations on the simulated GPU (tests/simcuda), which has torch's memory, copies, streams and
events, but cannot carry out its kernels: each operation is queued in the current stream as a call of the
CPU, over the same memory. So nothing that the host does not wait for is there too early."""
import ctypes
import itertools

import torch
from torch.utils._pytree import tree_map

OPS = """add.Tensor add_.Tensor addmm cat fill_.Scalar gelu gelu_backward mm mse_loss mse_loss_backward mul.Tensor
mul_.Tensor native_batch_norm native_batch_norm_backward sub.Tensor sum sum.dim_IntList""".split()

driver = ctypes.CDLL("libcuda.so.1")
_calls, _numbers = {}, itertools.count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _carry_out(number):
    _calls.pop(number)()


def _queue(call):
    number = next(_numbers)
    _calls[number] = call
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert driver.cuLaunchHostFunc(stream, _carry_out, ctypes.c_void_p(number)) == 0


def _on_host(value):
    """A tensor over the same memory, which it does not keep: as a kernel's argument."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    if not value.numel():
        return torch.empty(value.shape, dtype=value.dtype)
    memory = value.untyped_storage()
    bytes_of = (ctypes.c_char * memory.nbytes()).from_address(memory.data_ptr())
    return torch.frombuffer(bytes_of, dtype=value.dtype).as_strided(value.shape, value.stride(),
                                                                    value.storage_offset())


def _meta(value):
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _kernel(op, is_in_place):
    def queued(*args, **kwargs):
        if is_in_place:
            out = args[0]
        else:
            out = tree_map(_like, op(*tree_map(_meta, args), **tree_map(_meta, kwargs)))
        given, named, there = [tree_map(_on_host, all) for all in (args, kwargs, out)]

        def call():
            with torch.no_grad():
                made = op(*given, **named)
                if not is_in_place:
                    tree_map(_fill, there, made)

        _queue(call)
        return out

    return queued


def _like(value):
    return value if value is None else torch.empty_strided(value.shape, value.stride(),
                                                           dtype=value.dtype, device="cuda")


def _fill(to, value):
    """What an evaluation of a batch norm does not save is empty on the host."""
    if to is not None and value.numel():
        to.copy_(value)


def _copy(to, value, non_blocking=False):
    """From a GPU to the host and back it waits, as a copy of memory that is not pinned does."""
    there, given = _on_host(to), _on_host(value)
    _queue(lambda: there.copy_(given))
    if not (to.is_cuda and value.is_cuda):
        torch.cuda.current_stream().synchronize()
    return to


_library = torch.library.Library("aten", "IMPL")
for _name in OPS:
    _base, _, _overload = _name.partition(".")
    _op = getattr(getattr(torch.ops.aten, _base), _overload or "default")
    _library.impl(_name, _kernel(_op, _base.endswith("_")), "CUDA")
_library.impl("copy_", _copy, "CUDA")
