# SPDX-License-Identifier: Apache-2.0
"""Communicators of torch's process groups: a group's ranks find each other by its own store."""
import os
import re
import secrets
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
import torch.distributed as dist

from . import _native
from ._native import EAGAIN, Lock, check, failure, ffi, keep_from_handler, lib, new_object, owned

DEFAULT_TIMEOUT = timedelta(minutes=30)  # of gloo and of this module, where a group tells none


class _Store:
    """A group's store with the names of one communicator."""
    def __init__(self, store: Any, prefix: str) -> None:
        self.store, self.prefix = store, prefix

    def set(self, key: str, value: bytes) -> None:
        self.store.set(f"{self.prefix}/{key}", value.hex())

    def get(self, key: str) -> Optional[bytes]:
        key = f"{self.prefix}/{key}"
        return bytes.fromhex(self.store.get(key).decode()) if self.store.check([key]) else None


@ffi.def_extern(error=lib.DP_EIO, onerror=keep_from_handler)
def dpy_store_put(user: Any, key: Any, value: Any, count: int) -> int:
    ffi.from_handle(user).set(ffi.string(key).decode(), bytes(ffi.buffer(value, count)))
    return 0


@ffi.def_extern(error=lib.DP_EIO, onerror=keep_from_handler)
def dpy_store_get(user: Any, key: Any, value: Any, count: Any) -> int:
    got = ffi.from_handle(user).get(ffi.string(key).decode())
    if got is None:
        return EAGAIN
    if len(got) > count[0]:
        return lib.DP_EINVAL
    ffi.memmove(value, got, len(got))
    count[0] = len(got)
    return 0


def _config_of(store: _Store, secret: str, timeout: timedelta, rank: int,
               size: int) -> Tuple[Any, Any]:
    """struct dp_comm_config * of processes that find each other by a store, and what it needs."""
    handle, prefix = ffi.new_handle(store), ffi.new("char[]", b"dualpipe")
    text = ffi.new("char[]", secret.encode())
    table = ffi.new(
        "struct dp_comm_store *",
        {"user": handle, "put": lib.dpy_store_put, "get": lib.dpy_store_get, "prefix": prefix})
    config = ffi.new(
        "struct dp_comm_config *", {
            "rank": rank, "size": size, "store": table, "secret": text, "poll": lib.dpy_poll,
            "timeout_ns": int(timeout.total_seconds() * 1e9)
        })
    return config, (handle, prefix, text, table)


def meeting_at(store: Any) -> Tuple[Any, Any]:
    """The same of ranks that live and processes that come, by a store of torch's."""
    secret = store.compare_set("dualpipe/meeting/secret", "", secrets.token_hex(16)).decode()
    return _config_of(_Store(store, "dualpipe/meeting"), secret, _timeout_of(store), 0, 0)


class Comm:
    """The communicator of a process group, or, of a process that comes to others, of their meeting
    at a store. One thread at a time may use it."""
    def __init__(self, group: Any, store: Any = None) -> None:
        self.process, self.lock = os.getpid(), Lock()
        self.has_nccl = group is not None and "nccl" in str(dist.get_backend_config(group))
        self._calls, self._in_call = 0, False
        self.resets = 0  # the same on all ranks
        if store is None:
            self.rank, self.size, name = group.rank(), group.size(), group.group_name
            count = _opened[name] = _opened.get(name, 0) + 1
            own = _Store(dist.distributed_c10d._world.pg_map[group][1], f"dualpipe/{count}")
            config, _needs = _config_of(own, self._secret(own), _timeout_of(group), self.rank,
                                        self.size)
            self.pointer = new_object(lib.dp_comm_open, "struct dp_comm", config)
        else:
            config, _needs = meeting_at(store)
            self.pointer = new_object(lib.dp_comm_join, "struct dp_comm", config)
            self.rank, self.size = lib.dp_comm_rank(self.pointer), lib.dp_comm_size(self.pointer)
        lib.dp_comm_set_poll(self.pointer, lib.dpy_poll, ffi.NULL)
        self.close = owned(self, lib.dp_comm_close, self.pointer, lock=self.lock)

    def _secret(self, store: _Store) -> str:
        """Rank 0's, so that processes of other jobs cannot join."""
        if self.rank == 0:
            store.set("secret", secrets.token_bytes(16))
        while True:  # the store has the group's timeout, and raises at its end
            store.store.wait([f"{store.prefix}/secret"])
            got = store.get("secret")
            if got is not None:
                return got.hex()

    def check(self, err: int) -> int:
        return check(err, self.pointer)

    @contextmanager
    def call(self, goes_on: bool = False) -> Iterator[None]:
        """Around what all ranks do together, such as a step: after a failure it begins anew, and
        what is wrong on this rank alone ends it on the others, too. goes_on: the second half of the
        last one, to which some ranks may not come."""
        with self.lock:
            if self._in_call:  # part of another one
                yield
                return
            if not goes_on:
                self._begin_call()
            self._in_call = True
            try:
                yield
            except BaseException as error:
                self.abort(error)
                raise
            finally:
                self._in_call = False

    def _begin_call(self) -> None:
        """A rank may fail before another one has begun the same call: there the communicator stays
        aborted, and what is asked of it raises. After a failure of an earlier call it begins
        anew."""
        self._calls += 1
        why = ffi.new("struct dp_abort *")
        if lib.dp_comm_aborted(self.pointer, why):
            of = re.search(rb"\[call (\d+)\]$", ffi.string(why.text))
            if not of or int(of[1]) < self._calls:
                self.reset()

    def reset(self) -> None:
        self.check(lib.dp_comm_reset(self.pointer))
        self.resets += 1

    def abort(self, error: BaseException) -> None:
        """End what the other ranks are doing: this rank cannot take part in it."""
        if not lib.dp_comm_aborted(self.pointer, ffi.NULL):
            text = _native.said(error) + b" [call %d]" % self._calls
            lib.dp_comm_abort(self.pointer, _native.ECALLBACK, text)

    def failure(self, err: int) -> BaseException:
        return failure(err, self.pointer)


_comms: Dict[Any, Comm] = {}
_opened: Dict[str, int] = {}  # of a group's name, so that each has a key of its own


def _timeout_of(group: Any) -> timedelta:
    """DUALPIPE_COMM_TIMEOUT_MS, or that of a group or store."""
    told = os.environ.get("DUALPIPE_COMM_TIMEOUT_MS")
    if told:
        return timedelta(milliseconds=int(told))
    if isinstance(group, dist.Store):
        return group.timeout
    for device in ("cpu", "cuda"):
        try:
            return group._get_backend(torch.device(device)).options._timeout
        except (AttributeError, RuntimeError):
            continue
    return DEFAULT_TIMEOUT


def is_fake(group: Any) -> bool:
    """Whether torch only plays the other ranks of a group."""
    return group.size() > 1 and str(dist.get_backend(group)) == "fake"


def comm_of(group: Any = None) -> Comm:
    """The communicator of a process group, the default one if it is None. It is opened when it is
    first asked for, by all ranks of the group together, and closed at exit, or when the group has
    been destroyed and the last object that works over it is gone.

    Raises RuntimeError in a forked child and for a group of backend "fake", and DualpipeError where
    a rank does not come."""
    group = group or dist.distributed_c10d._get_default_group()
    known = dist.distributed_c10d._world.pg_map
    for other in [other for other in _comms if other not in known]:
        del _comms[other]  # pipelines and mixers may still work over it
    comm = _comms.get(group)
    if comm is None:
        if is_fake(group):
            raise RuntimeError("a process group of backend 'fake' connects no ranks, expected "
                               "'gloo' or 'nccl'")
        comm = _comms[group] = Comm(group)
    if comm.process != os.getpid():
        raise RuntimeError(
            "a communicator belongs to the process that opened it, not to a forked child")
    return comm


def reset(group: Any = None) -> None:
    """Make a group usable after a failure on any of its ranks. Collective. Steps do so by
    themselves where this rank has heard of the failure, which the exception of its last step
    says."""
    comm_of(group).reset()
