# SPDX-License-Identifier: Apache-2.0
"""Work on a GPU: the library's device with torch's allocator, and links from GPU to GPU."""
import os
import socket
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from itertools import chain
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, Optional

import torch

from ._group import Comm
from ._native import check, ffi, keep_from_handler, lib, new_object, owned, then
from ._tensor import address

HOST = torch.device("cpu")


def place_of(modules: Iterable[Any], tensors: Iterable[Any] = ()) -> torch.device:
    """The GPU where a parameter, a buffer or a tensor is, or the host."""
    for module in modules:
        for found in chain(module.parameters(), module.buffers()):
            if found.is_cuda:
                return torch.device(found.device)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            return tensor.device
    return HOST


@ffi.def_extern(error=lib.DP_ENOMEM, onerror=lambda *_: None)  # then the device itself is asked
def dpy_device_alloc(user: Any, count: int, out: Any) -> int:
    """Free as it is in torch's stream, the memory may still be used by what that has to do: the
    library's other streams must not begin before."""
    index = address(user)
    out[0] = ffi.cast("void *", torch.cuda.caching_allocator_alloc(count, index))
    torch.cuda.current_stream(index).synchronize()
    return 0


@ffi.def_extern(onerror=keep_from_handler)
def dpy_device_free(_user: Any, pointer: Any) -> None:
    torch.cuda.caching_allocator_delete(address(pointer))


class Device:
    """A CUDA device of the library, whose buffers are from torch's caching allocator."""
    def __init__(self, index: int) -> None:
        self.index = index
        self.pointer = new_object(lib.dp_device_cuda_open, "struct dp_device", index)
        lib.dp_device_set_allocator(
            self.pointer,
            ffi.new("struct dp_device_allocator *",
                    [lib.dpy_device_alloc, lib.dpy_device_free, ffi.cast("void *", index)]))
        self.close = owned(self, lib.dp_device_close, self.pointer, at_exit=False)


class Stream:
    """A stream of torch's, for the library."""
    def __init__(self, device: Device, stream: Any) -> None:
        native = ffi.cast("void *", stream.cuda_stream)
        self.pointer = new_object(lib.dp_device_stream_wrap, "struct dp_device_stream",
                                  device.pointer, native)
        self.close = owned(self, lib.dp_device_stream_free, self.pointer, device, stream,
                           at_exit=False)


_ON_HOST = nullcontext()


def in_stream(stream: Any) -> ContextManager[None]:
    """Have torch queue in a stream of its own, behind what the current one has been given, which
    goes on behind that. None: on the host."""
    return _ON_HOST if stream is None else _in_stream(stream)


@contextmanager
def _in_stream(stream: Any) -> Iterator[None]:
    current = torch.cuda.current_stream(stream.device)
    if current != stream:
        stream.wait_stream(current)
    with then(lambda: current == stream or current.wait_stream(stream)), torch.cuda.stream(stream):
        yield


_devices: Dict[int, Device] = {}


def device_of(place: torch.device) -> Optional[Device]:
    """None for the host. Raises DualpipeError where the library cannot use the GPU."""
    if place.type != "cuda":
        return None
    index = place.index if place.index is not None else torch.cuda.current_device()
    if index not in _devices:
        torch.cuda.init()
        _devices[index] = Device(index)
    return _devices[index]


class Links:
    """NCCL communicators for messages from GPU to GPU. Collective. list_peers: writes a struct
    dp_nccl_peer for each rank that this one has messages for, and returns how many."""
    def __init__(self, comm: Comm, device: Any, list_peers: Callable[[Any], int]) -> None:
        peers = ffi.new("struct dp_nccl_peer[]", comm.size)
        count = check(list_peers(peers))
        config = ffi.new("struct dp_nccl_config *", [device.pointer, peers, count])
        self.pointer = new_object(lib.dp_comm_nccl_open, "struct dp_comm", comm.pointer, config,
                                  comm=comm.pointer)
        lib.dp_comm_set_poll(self.pointer, lib.dpy_poll, ffi.NULL)
        self.close = owned(self, lib.dp_comm_close, self.pointer, comm, device, lock=comm.lock)


NO_GPU = bytes(32)


def _identity(device: Optional[Device]) -> bytes:
    """Of this rank's GPU, if NCCL can be used."""
    version, file = ffi.new("int *"), ffi.new("const char **")
    if device is None or lib.dp_nccl_version(version, file):
        return NO_GPU
    about = torch.cuda.get_device_properties(device.index)
    host = os.environ.get("NCCL_HOSTID") or socket.gethostname()
    return sha256(f"{host}/{getattr(about, 'uuid', device.index)}".encode()).digest()


def have_links(comm: Comm, device: Optional[Device]) -> bool:
    """Whether messages can go from GPU to GPU: torch's group has NCCL, and each rank a GPU of its
    own. Collective."""
    if comm.size < 2 or not comm.has_nccl:
        return False
    every = ffi.new("char[]", 32 * comm.size)
    comm.check(lib.dp_comm_allgather(comm.pointer, _identity(device), every, 32))
    found = {bytes(ffi.buffer(every + 32 * rank, 32)) for rank in range(comm.size)}
    return len(found) == comm.size and NO_GPU not in found
