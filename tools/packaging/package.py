# SPDX-License-Identifier: Apache-2.0
#
# package.py - a recipe for Spack: put it in packages/dualpipe/ of a repository of your own, where
# `spack repo create` has made packages/, then `spack install dualpipe`.

from spack.package import *

try:
    from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
except ImportError:
    pass  # before Spack 1.0 it is part of spack.package


class Dualpipe(AutotoolsPackage):
    """Pipeline-parallel and decentralized training steps in C, and plugins for NCCL."""

    homepage = "https://github.com/dualpipe/dualpipe"
    git = "https://github.com/dualpipe/dualpipe.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("blas", default=True, description="dualpipe train, which computes with OpenBLAS")
    variant("verbs", default=True, description="RDMA in the net plugin")
    variant("mpi", default=True, description="ranks over MPI")

    depends_on("c", type="build")
    depends_on("autoconf", type="build")
    depends_on("automake", type="build")
    depends_on("libtool", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("dlpack")  # its header is included by those of the library
    depends_on("expat")
    depends_on("hwloc")
    depends_on("jansson")
    depends_on("liburing")
    depends_on("openblas", when="+blas")
    depends_on("rdma-core", when="+verbs")
    depends_on("mpi", when="+mpi")

    def autoreconf(self, spec, prefix):
        autoreconf("-fi")

    def configure_args(self):
        args = []
        for name in ("blas", "verbs", "mpi"):
            args += self.with_or_without(name)
        return args
