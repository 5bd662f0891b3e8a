# SPDX-License-Identifier: Apache-2.0
"""The library: its functions, its errors as exceptions, and objects that are freed in the right
order.

Every call releases the interpreter's lock for as long as it lasts (cffi does so), and callbacks
take it again. An exception of a callback cannot pass through C: it is kept for the thread, the
callback returns an error number if it returns anything, and `check`, where the call comes back,
raises the kept exception itself.
"""
import os
import re
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Deque, Dict, Iterator, Mapping, Optional, Tuple

from ._dp import ffi as ffi
from ._dp import lib as lib

EAGAIN, EINTR, ECALLBACK = lib.DP_EAGAIN, lib.DP_EINTERRUPTED, lib.DP_ECALLBACK


def version() -> str:
    """The version of the library that is loaded, "0.1.0"."""
    return text_of(lib.dp_version())


def text_of(pointer: Any) -> str:
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode(errors="replace")


# ---- errors ----

DOING = re.compile(
    r"(?P<op>.+?) of micro-batch (?P<mb>\d+) in stage (?P<stage>\d+)(?:, step (?P<step>\d+))?")


class DualpipeError(RuntimeError):
    """A call of the library failed, or another rank did.

    errno        negative, as in dualpipe.h; name: "DP_EABORTED"
    text         the sentence that says what was wrong and what was expected
    rank         the rank that failed, of the process group; None where it is not known
    op, micro_batch, stage, step    what that rank was doing: "forward", 3, 1, 7; None outside of
                                    a step. Steps are counted from the last failure on
    """
    def __init__(self, errno: int, text: str, rank: Optional[int] = None, doing: str = "") -> None:
        self.errno, self.text, self.rank = errno, text, rank
        self.name = text_of(lib.dp_strerror(errno))
        found = DOING.search(doing) or DOING.search(text)
        number = (lambda name: int(found[name]) if found and found[name] else None)
        self.op = found["op"] if found else None
        self.micro_batch, self.stage, self.step = number("mb"), number("stage"), number("step")
        super().__init__(f"{self.name}: {text}")

    def __reduce__(self) -> Any:
        return (_unpickled, (self.__class__, self.__dict__, self.args))


def _unpickled(cls: Any, members: Any, args: Any) -> Any:
    error = cls.__new__(cls, *args)
    error.__dict__.update(members)
    error.args = args
    return error


class _Kept(threading.local):
    """The exception of a callback of this thread, on its way past the library."""

    error: Optional[BaseException] = None


_kept = _Kept()


def forget() -> None:
    """Nothing is to be raised of a call that is not checked."""
    _kept.error = None


def keep(error: BaseException) -> None:
    """Note what `check` is going to raise. The first one counts: what follows is its
    consequence."""
    if _kept.error is None:
        _kept.error = error


def keep_from_handler(_type: Any, error: BaseException, traceback: Any) -> None:
    """For cffi's onerror: it sees an interrupt at the entry of a callback, too, where most are."""
    keep(error.with_traceback(traceback))


def failure(err: int, comm: Any = None) -> BaseException:
    """What has to be raised for a negative result."""
    text = text_of(lib.dp_last_error())
    error, _kept.error = _kept.error, None
    if error is not None:
        return error
    rank, doing = None, ""
    if comm:
        why = ffi.new("struct dp_abort *")
        if lib.dp_comm_aborted(comm, why):
            rank = why.rank if why.rank >= 0 else None
            room = ffi.new("char[256]")
            doing = text_of(lib.dp_pipeline_doing_text(why.doing, room, 256))
    return DualpipeError(err, text, rank, doing)


def check(err: int, comm: Any = None) -> int:
    """Return `err`, or raise what it stands for. comm: the communicator, if it can say which rank
    failed."""
    if err < 0 or _kept.error is not None:
        raise failure(err, comm)
    return err


def said(error: BaseException) -> bytes:
    """An exception as the one line that other ranks get to read."""
    return " ".join(f"{type(error).__name__}: {error}".split()).encode()[:4000]


def callback(name: str) -> Callable[[Callable[..., None]], None]:
    """A decorator of the function that the library calls by that name: its exceptions end the call
    that it is part of, and the library is told their text."""
    def failed(_type: Any, error: BaseException, traceback: Any) -> None:
        keep(error.with_traceback(traceback))
        lib.dp_callback_error_text(ECALLBACK, said(error))

    def add(function: Callable[..., None]) -> None:
        def called(*args: Any) -> int:
            function(*args)
            return 0

        ffi.def_extern(name=name, error=ECALLBACK, onerror=failed)(called)

    return add


@contextmanager
def then(function: Callable[[], Any]) -> Iterator[None]:
    """Call it at the end, too, of what fails: what it raises then is that one's context."""
    try:
        yield
    except BaseException as error:
        try:
            function()
        except BaseException as later:
            later.__context__, error.__context__ = error.__context__, later
        raise
    function()


# ---- objects ----


class Lock:
    """Of what one thread at a time may use: taken by `with`, also again by the thread that has it.
    What is collected while another thread has it is freed when that one lets go of it: a collection
    must not wait for a thread that may wait for this one."""
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: Deque[Tuple[Callable[..., None], Any, Any]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()
        if self._waiting:
            self._free_waiting()

    def free(self, function: Callable[..., None], pointer: Any, needs: Any) -> None:
        self._waiting.append((function, pointer, needs))
        self._free_waiting()

    def _free_waiting(self) -> None:
        while self._waiting and self._lock.acquire(blocking=False):
            try:
                function, pointer, _needs = self._waiting.popleft()
                function(pointer)
            except IndexError:  # another thread was faster
                pass
            finally:
                self._lock.release()


def owned(owner: Any,
          free: Callable[..., None],
          pointer: Any,
          *needs: Any,
          lock: Optional[Lock] = None,
          at_exit: bool = True) -> "weakref.finalize[..., Any]":
    """Free `pointer` when `owner` is collected, or at exit, in this process only. `needs` is kept
    until then: objects in the memory of which it works. They must not refer to `owner`, or it is
    never collected. lock: of what it uses. at_exit: of what others need it is False, as a thread of
    torch's may be freeing one of those then. Returns the function that frees now; it may be called
    again."""
    frees = weakref.finalize(owner, _free, free, pointer, os.getpid(), needs, lock)
    frees.atexit = at_exit
    return frees


def _free(free: Callable[..., None], pointer: Any, process: int, needs: Any,
          lock: Optional[Lock]) -> None:
    error = _kept.error  # of a callback that a collection came into
    if os.getpid() == process and lock is not None:
        lock.free(free, pointer, needs)
    elif os.getpid() == process:
        free(pointer)
    _kept.error = error


def new_object(function: Any, kind: str, *args: Any, comm: Any = None) -> Any:
    """*out of a function that makes an object, kind "struct dp_comm"."""
    out = ffi.new(kind + " **")
    check(function(*args, out), comm)
    return out[0]


# ---- texts, names and numbers ----


def made_text(function: Any, *args: Any) -> str:
    """*text of a function whose last arguments are a text that is made and its length."""
    out, length = ffi.new("char **"), ffi.new("size_t *")
    check(function(*args, out, length))
    try:
        return ffi.buffer(out[0], length[0])[:].decode()
    finally:
        lib.free(out[0])


def parse(function: Any, kind: str, name: str) -> int:
    """A name of the library's as its number."""
    out = ffi.new(f"enum {kind} *")
    check(function(name.encode(), out))
    return int(out[0])


def number_of(what: str, name: str, numbers: Mapping[str, int]) -> int:
    """One of a table of names. Raises ValueError with all of them."""
    if name not in numbers:
        raise ValueError(f"{what}: {name!r}, expected one of {', '.join(numbers)}")
    return numbers[name]


def names_of(names: int, count: int) -> Dict[str, int]:
    """Such a table, of one of dp_names."""
    return {text_of(lib.dp_name(names, i)): i for i in range(count)}


def set_members(struct: Any, members: Mapping[str, Any], what: str) -> None:
    """Members of a struct by name. Raises TypeError for one that it has not."""
    for name, value in members.items():
        if name not in dir(struct):
            raise TypeError(
                f"{what}: no member {name!r}, expected some of {', '.join(dir(struct))}")
        setattr(struct, name, value)


@ffi.def_extern(error=EINTR, onerror=keep_from_handler)
def dpy_poll(_user: Any) -> int:
    """Called in waits: that Python code runs is enough for a signal's handler to be called, and
    what it raises ends the wait, or has raised in a callback that returns nothing."""
    return 0 if _kept.error is None else EINTR


def _check_structs() -> None:
    """Compiled against the headers of another release, nothing would be where it is looked for."""
    for name in ffi.list_types()[1]:
        if not name.startswith("dp_"):
            continue
        try:
            size = ffi.sizeof("struct " + name)
        except ffi.error:  # has no members here
            continue
        if lib.dp_check_struct(name.encode(), size):
            raise ImportError("libdualpipe: " + text_of(lib.dp_last_error()))


_check_structs()
