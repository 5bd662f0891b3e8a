# What configure asks and finds. Every DP_* below leaves a line of the closing summary.

# DP_NOTE(WHAT, STATE, WHY) - a line of the closing summary.
AC_DEFUN([DP_NOTE], [dp_summary="$dp_summary
  $(printf '%-14s %-4s %s' "$1" "$2" "$3")"])

# DP_YES_OR_NO(OPTION, VALUE) - stop unless the value of an option that takes none is yes or no.
AC_DEFUN([DP_YES_OR_NO], [AS_CASE([$2], [yes|no], [],
    [AC_MSG_ERROR([$1=$2: expected $1, or $1=no])])])

# DP_MISSING(WHAT, PACKAGE) - stop because a library that everybody needs is not there.
AC_DEFUN([DP_MISSING], [AC_MSG_ERROR([$1 not found (Debian, Ubuntu: $2); 'sh tools/quickstart.sh' installs all that is missing])])

# DP_CFLAG(FLAG) - add FLAG to DP_CFLAGS where the compiler knows it.
AC_DEFUN([DP_CFLAG], [
    AC_MSG_CHECKING([whether $CC knows $1])
    dp_saved_cflags=$CFLAGS
    CFLAGS="$CFLAGS -Werror $1"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM()],
        [AC_MSG_RESULT([yes]); DP_CFLAGS="$DP_CFLAGS $1"], [AC_MSG_RESULT([no])])
    CFLAGS=$dp_saved_cflags
])

# -ffp-contract=off: a*b+c is rounded twice on every machine, so that sums are the same bits
# wherever and in whatever function they are computed.
AC_DEFUN([DP_WARNINGS], [
    AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [warnings are errors])],
        [], [enable_werror=no])
    DP_YES_OR_NO([--enable-werror], [$enable_werror])
    DP_CFLAGS="-std=gnu11"
    m4_foreach_w([flag], [-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
        -Wpointer-arith -Wundef -Wformat=2 -Wno-missing-field-initializers -fvisibility=hidden -fno-common
        -ffp-contract=off -fopenmp-simd],
        [DP_CFLAG(flag)])
    AS_IF([test "x$enable_werror" = xyes],
        [DP_CFLAGS="$DP_CFLAGS -Werror"; DP_NOTE([werror], [on], [warnings are errors])],
        [DP_NOTE([werror], [off], [give --enable-werror])])
    AC_SUBST([DP_CFLAGS])
])

AC_DEFUN([DP_SANITIZERS], [
    AC_ARG_ENABLE([sanitizers], [AS_HELP_STRING([--enable-sanitizers=LIST],
        [build everything with address, undefined, both (address,undefined) or thread])],
        [], [enable_sanitizers=no])
    AS_CASE([$enable_sanitizers],
        [no], [DP_NOTE([sanitizers], [off], [give --enable-sanitizers=address,undefined or =thread])],
        [address|undefined|address,undefined|undefined,address|thread],
        [DP_SANITIZER_FLAGS([$enable_sanitizers])],
        [AC_MSG_ERROR([--enable-sanitizers=$enable_sanitizers: expected address, undefined, address,undefined or thread])])
    AC_SUBST([DP_SAN_FLAGS])
    AM_CONDITIONAL([SANITIZERS], [test "x$enable_sanitizers" != xno])
])

AC_DEFUN([DP_SANITIZER_FLAGS], [
    DP_SAN_FLAGS="-fsanitize=$1 -fno-omit-frame-pointer"
    AS_CASE([$1], [*undefined*], [DP_SAN_FLAGS="$DP_SAN_FLAGS -fno-sanitize-recover=undefined"])
    AC_MSG_CHECKING([whether $CC links with $DP_SAN_FLAGS])
    dp_saved_cflags=$CFLAGS
    CFLAGS="$CFLAGS $DP_SAN_FLAGS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no])
         AC_MSG_ERROR([--enable-sanitizers=$1: $CC cannot link with it; install the compiler's sanitizer runtime (Debian, Ubuntu: comes with gcc; for clang libclang-rt-dev)])])
    CFLAGS=$dp_saved_cflags
    dnl More takes the compiler two to three times as long, for code whose checks take most of the time
    dnl anyway. Reports name functions and lines, which -g1 has.
    AS_IF([test "x$dp_user_cflags" = x], [CFLAGS="-g1 -O1"])
    DP_NOTE([sanitizers], [on], [$1])
])

# Lines are reached or not as they are written only where nothing is optimised.
AC_DEFUN([DP_COVERAGE], [
    AC_ARG_ENABLE([coverage], [AS_HELP_STRING([--enable-coverage],
        [build for gcov; 'make coverage' runs the tests and prints what they reached])],
        [], [enable_coverage=no])
    DP_YES_OR_NO([--enable-coverage], [$enable_coverage])
    AC_CHECK_PROGS([GCOVR], [gcovr])
    AC_CHECK_PROGS([LCOV], [lcov])
    AS_CASE([$enable_coverage,$GCOVR,$LCOV],
        [no,*], [DP_NOTE([coverage], [off], [give --enable-coverage])],
        [yes,,], [AC_MSG_ERROR([--enable-coverage: neither gcovr nor lcov found (Debian, Ubuntu: gcovr)])],
        [DP_COV_FLAGS="--coverage -fprofile-update=atomic" # ranks are threads in many tests
         AS_IF([test "x$dp_user_cflags" = x], [CFLAGS="-g -O0"])
         DP_NOTE([coverage], [on], ['make coverage' prints a table with ${GCOVR:-$LCOV}])])
    AC_SUBST([DP_COV_FLAGS])
    AM_CONDITIONAL([COVERAGE], [test "x$enable_coverage" = xyes])
    AM_CONDITIONAL([HAVE_GCOVR], [test "x$GCOVR" != x])
])

# What is always needed. DLDevice came with DLPack 0.5; older headers call it DLContext.
AC_DEFUN([DP_LIBRARIES], [
    PKG_CHECK_MODULES([JANSSON], [jansson >= 2.12], [],
        [DP_MISSING([jansson >= 2.12], [libjansson-dev])])
    AC_CHECK_TYPE([DLDevice], [], [DP_MISSING([dlpack/dlpack.h of DLPack >= 0.5], [libdlpack-dev])],
        [[#include <dlpack/dlpack.h>]])
    # The public headers include it: programs must find it where this did.
    DLPACK_CFLAGS=
    dp_cppflags=$CPPFLAGS CPPFLAGS=
    AC_PREPROC_IFELSE([AC_LANG_SOURCE([[#include <dlpack/dlpack.h>]])], [],
        [for dp_word in $dp_cppflags $CFLAGS; do
            AS_CASE([$dp_word], [-I?*], [DLPACK_CFLAGS="$DLPACK_CFLAGS $dp_word"])
        done])
    CPPFLAGS=$dp_cppflags
    AC_SUBST([DLPACK_CFLAGS])
    AC_SEARCH_LIBS([dlopen], [dl])
    AC_SEARCH_LIBS([shm_open], [rt])
    AC_SEARCH_LIBS([pthread_create], [pthread])
    AC_SEARCH_LIBS([sqrt], [m])
])

# CUDA: only the header is wanted, for the driver's types; libcuda.so.1 is loaded at run time.
AC_DEFUN([DP_CUDA], [
    AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
        [build the CUDA device with the toolkit in DIR (default: /usr/local/cuda if there)])],
        [], [with_cuda=check])
    AS_CASE([$with_cuda], [yes|check], [dp_cuda_dir=/usr/local/cuda], [dp_cuda_dir=$with_cuda])
    AS_IF([test -f "$dp_cuda_dir/include/cuda.h"], [dp_found=yes], [dp_found=no])
    have_cuda=no
    AS_CASE([$with_cuda,$dp_found],
        [no,*], [DP_NOTE([cuda], [off], [--without-cuda])],
        [*,yes], [have_cuda=yes
            CUDA_CFLAGS="-isystem $dp_cuda_dir/include"
            AC_DEFINE([HAVE_CUDA], [1], [cuda.h is there])
            DP_NOTE([cuda], [on], [cuda.h of $dp_cuda_dir; libcuda.so.1 is loaded at run time])],
        [check,*], [DP_NOTE([cuda], [off], [no $dp_cuda_dir/include/cuda.h; give --with-cuda=DIR])],
        [AC_MSG_ERROR([--with-cuda=$with_cuda: no file $dp_cuda_dir/include/cuda.h; expected the directory of a CUDA toolkit])])
    AC_SUBST([CUDA_CFLAGS])
    AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
])

# nvcc, for the kernels of `dualpipe train --device cuda`: of the toolkit, of pip (nvidia-cuda-nvcc), or
# what NVCC says. Architectures that it does not know are dropped.
AC_DEFUN([DP_NVCC], [
    AC_ARG_VAR([NVCC], [CUDA compiler for the kernels of 'dualpipe train'; no: build none])
    AS_CASE([$with_cuda,$NVCC],
        [no,*|*,no], [NVCC=],
        [*,], [AC_PATH_PROG([NVCC], [nvcc], [], [$dp_cuda_dir/bin$PATH_SEPARATOR$PATH])])
    NVCC_FLAGS="-O3 -std=c++14"
    CUDA_ARCHITECTURES= CUDA_GENCODE= dp_dropped= dp_last=
    AS_IF([test -n "$NVCC"], [
        AC_MSG_CHECKING([which of sm_80, sm_90 and sm_100 $NVCC compiles for])
        AS_ECHO(['extern "C" __global__ void k(float *x) { x[[threadIdx.x]] = 0; }']) >conftest.cu
        for dp_sm in 80 90 100; do
            AS_IF([$NVCC $NVCC_FLAGS -gencode arch=compute_$dp_sm,code=sm_$dp_sm -fatbin \
                    -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
                [CUDA_ARCHITECTURES="$CUDA_ARCHITECTURES sm_$dp_sm" dp_last=$dp_sm
                    CUDA_GENCODE="$CUDA_GENCODE -gencode arch=compute_$dp_sm,code=sm_$dp_sm"],
                [dp_dropped="$dp_dropped sm_$dp_sm"])
        done
        rm -f conftest.cu conftest.fatbin
        AC_MSG_RESULT([${CUDA_ARCHITECTURES:-none}])])
    AS_IF([test -n "$dp_last"],
        [CUDA_GENCODE="$CUDA_GENCODE -gencode arch=compute_$dp_last,code=compute_$dp_last"
            CUDA_ARCHITECTURES="${CUDA_ARCHITECTURES# } and PTX"
            DP_NOTE([nvcc], [on], [kernels of 'dualpipe train' for $CUDA_ARCHITECTURES, by $NVCC${dp_dropped:+; it does not know}$dp_dropped])],
        [test -n "$NVCC"],
        [DP_NOTE([nvcc], [off], [$NVCC does not compile a kernel; config.log says why])],
        [DP_NOTE([nvcc], [off], [no nvcc; install the CUDA Toolkit or give NVCC=FILE])])
    AC_SUBST([NVCC_FLAGS])
    AC_SUBST([CUDA_GENCODE])
    AM_CONDITIONAL([HAVE_NVCC], [test -n "$dp_last"])
])

# RDMA: only the header is wanted; libibverbs.so.1 is loaded at run time.
AC_DEFUN([DP_VERBS], [
    AC_ARG_WITH([verbs], [AS_HELP_STRING([--with-verbs],
        [let the net plugin use RDMA devices (default: if libibverbs' header is found)])],
        [DP_YES_OR_NO([--with-verbs], [$with_verbs])], [with_verbs=check])
    have_verbs=no
    AS_IF([test "x$with_verbs" != xno],
        [AC_CHECK_TYPE([struct ibv_gid_entry], [have_verbs=yes], [],
            [[#include <infiniband/verbs.h>]])])
    AS_CASE([$with_verbs,$have_verbs],
        [*,yes], [AC_DEFINE([HAVE_VERBS], [1], [infiniband/verbs.h is there])
            DP_NOTE([verbs], [on], [RDMA in the net plugin; libibverbs.so.1 is loaded at run time])],
        [no,*], [DP_NOTE([verbs], [off], [--without-verbs])],
        [check,*], [DP_NOTE([verbs], [off], [no infiniband/verbs.h of rdma-core >= 33 (libibverbs-dev)])],
        [AC_MSG_ERROR([--with-verbs: no infiniband/verbs.h of rdma-core >= 33 (Debian, Ubuntu: libibverbs-dev)])])
    AM_CONDITIONAL([HAVE_VERBS], [test $have_verbs = yes])
])

# MPI: a module of its own, so that libdualpipe needs no MPI to load.
AC_DEFUN([DP_MPI], [
    AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi],
        [build the MPI communicator as a loadable module (default: if MPI is found)])],
        [DP_YES_OR_NO([--with-mpi], [$with_mpi])], [with_mpi=check])
    have_mpi=no
    AS_IF([test "x$with_mpi" != xno],
        [PKG_CHECK_MODULES([MPI], [ompi-c], [have_mpi=yes],
            [PKG_CHECK_MODULES([MPI], [mpich], [have_mpi=yes],
                [PKG_CHECK_MODULES([MPI], [mpi-c], [have_mpi=yes], [:])])])])
    AS_CASE([$with_mpi,$have_mpi],
        [*,yes], [AC_DEFINE([HAVE_MPI], [1], [the MPI module is built])
            DP_NOTE([mpi], [on], [the communicator is a module, loaded when it is asked for])],
        [no,*], [DP_NOTE([mpi], [off], [--without-mpi])],
        [check,*], [DP_NOTE([mpi], [off],
            [pkg-config knows none of ompi-c, mpich, mpi-c (libopenmpi-dev): no transport mpi])],
        [AC_MSG_ERROR([--with-mpi: pkg-config knows none of ompi-c, mpich, mpi-c (Debian, Ubuntu: libopenmpi-dev)])])
    AM_CONDITIONAL([HAVE_MPI], [test $have_mpi = yes])
])

# expat: only files of NCCL's topology want it, to be read.
AC_DEFUN([DP_EXPAT], [
    AC_ARG_WITH([expat], [AS_HELP_STRING([--with-expat],
        [read topology files of NCCL with expat (default: if found)])],
        [DP_YES_OR_NO([--with-expat], [$with_expat])], [with_expat=check])
    have_expat=no
    AS_IF([test "x$with_expat" != xno],
        [PKG_CHECK_MODULES([EXPAT], [expat], [have_expat=yes], [:])])
    AS_CASE([$with_expat,$have_expat],
        [*,yes], [AC_DEFINE([HAVE_EXPAT], [1], [expat is there])
            DP_NOTE([expat], [on], [topology files of NCCL can be read])],
        [no,*], [DP_NOTE([expat], [off], [--without-expat: topology files of NCCL are only written])],
        [check,*], [DP_NOTE([expat], [off],
            [expat not found (libexpat1-dev): topology files of NCCL are only written])],
        [AC_MSG_ERROR([--with-expat: pkg-config does not know expat (Debian, Ubuntu: libexpat1-dev)])])
])

# hwloc: this machine through its eyes, and its XML files. /sys is read without it.
AC_DEFUN([DP_HWLOC], [
    AC_ARG_WITH([hwloc], [AS_HELP_STRING([--with-hwloc],
        [read topologies through hwloc, and its XML files (default: if found)])],
        [DP_YES_OR_NO([--with-hwloc], [$with_hwloc])], [with_hwloc=check])
    have_hwloc=no
    AS_IF([test "x$with_hwloc" != xno],
        [PKG_CHECK_MODULES([HWLOC], [hwloc >= 2.0], [have_hwloc=yes], [:])])
    AS_CASE([$with_hwloc,$have_hwloc],
        [*,yes], [AC_DEFINE([HAVE_HWLOC], [1], [hwloc is there])
            DP_NOTE([hwloc], [on], [topologies through hwloc and of its XML files])],
        [no,*], [DP_NOTE([hwloc], [off], [--without-hwloc: topologies from /sys only])],
        [check,*], [DP_NOTE([hwloc], [off],
            [hwloc >= 2.0 not found (libhwloc-dev): topologies from /sys only])],
        [AC_MSG_ERROR([--with-hwloc: pkg-config does not know hwloc >= 2.0 (Debian, Ubuntu: libhwloc-dev)])])
])

# liburing: reads and writes of an optimizer's state in a file. Threads do without it.
AC_DEFUN([DP_LIBURING], [
    AC_ARG_WITH([liburing], [AS_HELP_STRING([--with-liburing],
        [read and write optimizer state in files through io_uring (default: if found)])],
        [DP_YES_OR_NO([--with-liburing], [$with_liburing])], [with_liburing=check])
    have_liburing=no
    AS_IF([test "x$with_liburing" != xno],
        [PKG_CHECK_MODULES([LIBURING], [liburing >= 2.0], [have_liburing=yes], [:])])
    AS_CASE([$with_liburing,$have_liburing],
        [*,yes], [AC_DEFINE([HAVE_LIBURING], [1], [liburing is there])
            DP_NOTE([liburing], [on], [optimizer state in files through io_uring])],
        [no,*], [DP_NOTE([liburing], [off], [--without-liburing: optimizer state in files by threads])],
        [check,*], [DP_NOTE([liburing], [off],
            [liburing >= 2.0 not found (liburing-dev): optimizer state in files by threads])],
        [AC_MSG_ERROR([--with-liburing: pkg-config does not know liburing >= 2.0 (Debian, Ubuntu: liburing-dev)])])
])

# BLAS: only the model of `dualpipe train` wants it.
AC_DEFUN([DP_BLAS], [
    AC_ARG_WITH([blas], [AS_HELP_STRING([--with-blas],
        [build 'dualpipe train' on OpenBLAS (default: if found)])],
        [DP_YES_OR_NO([--with-blas], [$with_blas])], [with_blas=check])
    have_blas=no
    AS_IF([test "x$with_blas" != xno],
        [PKG_CHECK_MODULES([BLAS], [openblas], [have_blas=yes], [:])])
    AS_CASE([$with_blas,$have_blas],
        [*,yes], [AC_DEFINE([HAVE_BLAS], [1], [OpenBLAS is there])
            DP_NOTE([blas], [on], [OpenBLAS, for dualpipe train])],
        [no,*], [DP_NOTE([blas], [off], [--without-blas: no dualpipe train])],
        [check,*], [DP_NOTE([blas], [off], [openblas not found (libopenblas-dev): no dualpipe train])],
        [AC_MSG_ERROR([--with-blas: pkg-config does not know openblas (Debian, Ubuntu: libopenblas-dev)])])
    AM_CONDITIONAL([HAVE_BLAS], [test $have_blas = yes])
])

# Without cmocka only the tests go.
AC_DEFUN([DP_TESTS], [
    PKG_CHECK_MODULES([CMOCKA], [cmocka >= 1.1.3],
        [have_cmocka=yes; DP_NOTE([tests], [on], [cmocka found])],
        [have_cmocka=no; DP_NOTE([tests], [off], [cmocka >= 1.1.3 not found (libcmocka-dev)])])
    AM_CONDITIONAL([HAVE_CMOCKA], [test $have_cmocka = yes])
    # tests/simcuda writes machine code.
    AM_CONDITIONAL([HAVE_SIMCUDA], [test "$host_cpu" = x86_64])
])

AC_DEFUN([DP_BASH_COMPLETION], [
    AC_ARG_WITH([bash-completion-dir], [AS_HELP_STRING([--with-bash-completion-dir=DIR],
        [where the completion of the dualpipe command goes (default: DATADIR/bash-completion/completions)])],
        [], [with_bash_completion_dir='${datadir}/bash-completion/completions'])
    AS_CASE([$with_bash_completion_dir],
        [yes|no|''], [AC_MSG_ERROR([--with-bash-completion-dir: expected a directory])])
    AC_SUBST([bashcompletiondir], [$with_bash_completion_dir])
])

# The PyTorch package (make wheel) needs a Python with headers, setuptools and cffi, not torch.
AC_DEFUN([DP_PYTHON], [
    AC_ARG_WITH([python], [AS_HELP_STRING([--without-python], [no 'make wheel'])], [], [with_python=yes])
    DP_YES_OR_NO([--with-python], [$with_python])
    AC_ARG_VAR([PYTHON], [the Python that builds the wheel of the PyTorch package])
    AS_IF([test "x$with_python" = xno], [PYTHON_WHY='--without-python'], [
        AC_PATH_PROGS([PYTHON], [python3 python], [python3])
        PYTHON_WHY=$("$PYTHON" -c '
import sys, os, sysconfig
try:
    assert sys.version_info >= (3, 9), "Python 3.9 or later is needed"
    import setuptools, cffi, pip, wheel
    assert os.path.exists(sysconfig.get_path("include") + "/Python.h"), "no Python.h (python3-dev)"
except Exception as error:
    print(error)' 2>&1 | tail -n 1)
    ])
    AS_IF([test -z "$PYTHON_WHY"], [DP_NOTE([python], [on], [$PYTHON: make wheel])],
        [DP_NOTE([python], [off], [$PYTHON_WHY])])
])

AC_DEFUN([DP_SUMMARY], [
    AS_ECHO(["
$PACKAGE_STRING is configured:
  compiler       $CC $CFLAGS
  prefix         $prefix
$dp_summary

Next: make, then make check; 'sh tests/run.sh' does both and sums up."])
])
