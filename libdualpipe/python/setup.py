# SPDX-License-Identifier: Apache-2.0
"""Compile the package: the extension out of the public headers, and the library into the wheel.

`make wheel` names its build directory in DUALPIPE_BUILD. Without it the tarball of `make
wheel-sdist`, where this file is beside configure, is configured and built here first.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
IS_TARBALL = (HERE / "configure").exists()
TOP = HERE if IS_TARBALL else Path(os.environ.get("DUALPIPE_SOURCE", HERE.parent.parent))
PACKAGE = HERE / "libdualpipe" / "python" if IS_TARBALL else HERE
INCLUDES = [TOP / "libdualpipe" / "include", TOP / "offload" / "include"]

sys.path.insert(0, str(PACKAGE))
import declarations  # noqa: E402


def version() -> str:
    text = (INCLUDES[0] / "dualpipe" / "dualpipe.h").read_text()
    return ".".join(re.findall(r"#define DP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def built_library(temporary: str) -> Path:
    """The directory that has libdualpipe.so, made here unless DUALPIPE_BUILD has it."""
    given = os.environ.get("DUALPIPE_BUILD")
    build = Path(given) if given else Path(temporary).resolve() / "library"
    if not given:
        if not IS_TARBALL:
            sys.exit("setup.py: build it by 'make wheel', or the tarball of 'make wheel-sdist'")
        build.mkdir(parents=True, exist_ok=True)
        subprocess.check_call([str(TOP / "configure"), "--without-python", "NVCC=no"], cwd=build)
        subprocess.check_call(
            ["make", "-j", str(os.cpu_count() or 1), "libdualpipe/libdualpipe.la"], cwd=build)
    return build / "libdualpipe" / ".libs"


class BuildExtension(build_ext):
    """Writes the extension's source, compiles it, and puts the library beside it."""
    def run(self) -> None:
        libraries = built_library(self.build_temp)
        extension = self.extensions[0]
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        source = Path(self.build_temp) / "_dp.c"
        declarations.write_source(source, INCLUDES, self.build_temp)
        extension.sources = [str(source)]
        extension.include_dirs = [str(path) for path in INCLUDES]
        extension.library_dirs = [str(libraries)]
        super().run()
        beside = Path(self.get_ext_fullpath(extension.name)).parent
        for library in libraries.glob("libdualpipe.so.?"):
            shutil.copy(library, beside)


setup(
    version=version(),
    package_dir={"": str(PACKAGE.relative_to(HERE))},
    packages=["libdualpipe", "libdualpipe.compat", "libdualpipe.torch"],
    package_data={"libdualpipe": ["py.typed", "libdualpipe.so.*"]},
    ext_modules=[
        Extension("libdualpipe._dp", [],
                  libraries=["dualpipe"],
                  py_limited_api=True,
                  define_macros=[("Py_LIMITED_API", "0x03090000")],
                  extra_compile_args=["-O1", "-Wno-deprecated-declarations"],
                  extra_link_args=["-Wl,-rpath,$ORIGIN"])
    ],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp39"}},
)
