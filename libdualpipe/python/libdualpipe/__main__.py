# SPDX-License-Identifier: Apache-2.0
"""python -m libdualpipe: print the versions of the parts, and what of this machine they found."""
import importlib
import os
import sys

from . import _dp, version
from ._native import ffi, lib, text_of


@ffi.def_extern()
def dpy_log(_user: object, _level: int, _line: object) -> None:
    """What is missing is said below, once."""


def main() -> int:
    lib.dp_log_set(lib.dpy_log, ffi.NULL, lib.DP_LOG_ERROR)
    here = os.path.dirname(_dp.__file__)
    print(f"libdualpipe  {version()}, {here}")
    print(f"Python       {sys.version.split()[0]}")
    for name in ("torch", "cffi"):
        try:
            print(f"{name:12} {importlib.import_module(name).__version__}")
        except ImportError as error:
            print(f"{name:12} not found: {error}")
    for name, what in (("cuda:0", "CUDA"), ("host", "host")):
        device = ffi.new("struct dp_device **")
        if lib.dp_device_open(name.encode(), device) == 0:
            print(f"{what:12} found")
            lib.dp_device_close(device[0])
        else:
            print(f"{what:12} not found: {text_of(lib.dp_last_error())}")
    lib.dp_log_set(ffi.NULL, ffi.NULL, lib.DP_LOG_DEFAULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
