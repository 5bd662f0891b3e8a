# What configure asks and finds. Every DP_* below leaves one line for the summary in dp_summary.

# DP_NOTE(WHAT, STATE, WHY) - a line of the closing summary.
AC_DEFUN([DP_NOTE], [dp_summary="$dp_summary
  $(printf '%-14s %-4s %s' "$1" "$2" "$3")"])

# DP_CFLAG(FLAG) - add FLAG to DP_CFLAGS where the compiler knows it.
AC_DEFUN([DP_CFLAG], [
    AC_MSG_CHECKING([whether $CC knows $1])
    dp_saved_cflags=$CFLAGS
    CFLAGS="$CFLAGS -Werror $1"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM()],
        [AC_MSG_RESULT([yes]); DP_CFLAGS="$DP_CFLAGS $1"], [AC_MSG_RESULT([no])])
    CFLAGS=$dp_saved_cflags
])

AC_DEFUN([DP_WARNINGS], [
    AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [warnings are errors])],
        [], [enable_werror=no])
    DP_CFLAGS="-std=gnu11"
    m4_foreach_w([flag], [-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
        -Wpointer-arith -Wundef -Wformat=2 -fvisibility=hidden -fno-common -ffp-contract=off],
        [DP_CFLAG(flag)])
    AS_IF([test "x$enable_werror" = xyes],
        [DP_CFLAGS="$DP_CFLAGS -Werror"; DP_NOTE([werror], [on], [warnings are errors])],
        [DP_NOTE([werror], [off], [give --enable-werror])])
    AC_SUBST([DP_CFLAGS])
])

AC_DEFUN([DP_SANITIZERS], [
    AC_ARG_ENABLE([sanitizers], [AS_HELP_STRING([--enable-sanitizers=LIST],
        [address,undefined or thread: build everything with these sanitizers])],
        [], [enable_sanitizers=no])
    AS_CASE([$enable_sanitizers],
        [no], [DP_NOTE([sanitizers], [off], [give --enable-sanitizers=address,undefined or =thread])],
        [yes], [AC_MSG_ERROR([--enable-sanitizers needs a list: address,undefined or thread])],
        [
            dp_san="-fsanitize=$enable_sanitizers -fno-omit-frame-pointer"
            AS_CASE([$enable_sanitizers], [*undefined*], [dp_san="$dp_san -fno-sanitize-recover=undefined"])
            AC_MSG_CHECKING([whether $CC links with $dp_san])
            dp_saved_cflags=$CFLAGS
            CFLAGS="$CFLAGS $dp_san"
            AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])],
                [AC_MSG_RESULT([no])
                 AC_MSG_ERROR([--enable-sanitizers=$enable_sanitizers: $CC cannot link with it; expected address,undefined or thread and the compiler's sanitizer runtime])])
            CFLAGS=$dp_saved_cflags
            DP_SAN_FLAGS=$dp_san
            DP_NOTE([sanitizers], [on], [$enable_sanitizers])
        ])
    AC_SUBST([DP_SAN_FLAGS])
    AM_CONDITIONAL([SANITIZERS], [test "x$enable_sanitizers" != xno])
])

AC_DEFUN([DP_COVERAGE], [
    AC_ARG_ENABLE([coverage], [AS_HELP_STRING([--enable-coverage],
        [build for gcov; 'make coverage' prints lines and branches reached])],
        [], [enable_coverage=no])
    AS_IF([test "x$enable_coverage" = xyes],
        [DP_COV_FLAGS="--coverage -O0 -g"; DP_NOTE([coverage], [on], [make coverage])],
        [DP_NOTE([coverage], [off], [give --enable-coverage])])
    AC_SUBST([DP_COV_FLAGS])
    AM_CONDITIONAL([COVERAGE], [test "x$enable_coverage" = xyes])
])

# What is always needed, and cmocka, without which only the tests go.
AC_DEFUN([DP_LIBRARIES], [
    PKG_CHECK_MODULES([JANSSON], [jansson >= 2.12], [],
        [AC_MSG_ERROR([jansson >= 2.12 not found (Debian, Ubuntu: libjansson-dev). tools/quickstart.sh installs all that is missing])])
    AC_CHECK_HEADER([dlpack/dlpack.h], [],
        [AC_MSG_ERROR([dlpack/dlpack.h not found (Debian, Ubuntu: libdlpack-dev). tools/quickstart.sh installs all that is missing])])
    AC_SEARCH_LIBS([dlopen], [dl])
    AC_SEARCH_LIBS([shm_open], [rt])
    AC_SEARCH_LIBS([pthread_create], [pthread])
    AC_SEARCH_LIBS([sqrt], [m])
    PKG_CHECK_MODULES([CMOCKA], [cmocka >= 1.1.3],
        [have_cmocka=yes; DP_NOTE([tests], [on], [cmocka found])],
        [have_cmocka=no; DP_NOTE([tests], [off], [cmocka >= 1.1.3 not found (libcmocka-dev)])])
    AM_CONDITIONAL([HAVE_CMOCKA], [test $have_cmocka = yes])
    AC_ARG_WITH([bash-completion-dir], [AS_HELP_STRING([--with-bash-completion-dir=DIR],
        [where the completion of the dualpipe command goes])],
        [], [with_bash_completion_dir='${datadir}/bash-completion/completions'])
    AC_SUBST([bashcompletiondir], [$with_bash_completion_dir])
])

# CUDA: only the header is wanted, for the driver's types; libcuda.so.1 is loaded at run time.
AC_DEFUN([DP_CUDA], [
    AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
        [build the CUDA device with the toolkit in DIR (default: if found in /usr/local/cuda)])],
        [], [with_cuda=check])
    AS_CASE([$with_cuda], [yes|check], [dp_cuda_dir=/usr/local/cuda], [dp_cuda_dir=$with_cuda])
    have_cuda=no
    AS_IF([test "x$with_cuda" != xno], [
        AS_IF([test -f "$dp_cuda_dir/include/cuda.h"],
            [have_cuda=yes
             CUDA_CFLAGS="-isystem $dp_cuda_dir/include"
             DP_NOTE([cuda], [on], [cuda.h of $dp_cuda_dir; libcuda.so.1 is loaded at run time])],
            [test "x$with_cuda" != xcheck],
            [AC_MSG_ERROR([--with-cuda: no include/cuda.h in $dp_cuda_dir; expected the directory of a CUDA toolkit])],
            [DP_NOTE([cuda], [off], [no $dp_cuda_dir/include/cuda.h; give --with-cuda=DIR])])],
        [DP_NOTE([cuda], [off], [--without-cuda])])
    AC_SUBST([CUDA_CFLAGS])
    AS_IF([test $have_cuda = yes], [AC_DEFINE([HAVE_CUDA], [1], [cuda.h is there])])
    AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
])

# MPI: a module of its own, so that libdualpipe needs no MPI to load.
AC_DEFUN([DP_MPI], [
    AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi],
        [build the MPI communicator as a loadable module (default: no)])],
        [], [with_mpi=no])
    have_mpi=no
    AS_IF([test "x$with_mpi" != xno], [
        PKG_CHECK_MODULES([MPI], [ompi-c], [have_mpi=yes],
            [PKG_CHECK_MODULES([MPI], [mpich], [have_mpi=yes],
                [PKG_CHECK_MODULES([MPI], [mpi-c], [have_mpi=yes],
                    [AC_MSG_ERROR([--with-mpi: pkg-config knows none of ompi-c, mpich, mpi-c (Debian, Ubuntu: libopenmpi-dev)])])])])
        DP_NOTE([mpi], [on], [module dualpipe/mpi.so])],
        [DP_NOTE([mpi], [off], [give --with-mpi])])
    AS_IF([test $have_mpi = yes], [AC_DEFINE([HAVE_MPI], [1], [the MPI module is built])])
    AM_CONDITIONAL([HAVE_MPI], [test $have_mpi = yes])
])

# BLAS: only the model of `dualpipe train` wants it.
AC_DEFUN([DP_BLAS], [
    AC_ARG_WITH([blas], [AS_HELP_STRING([--with-blas],
        [build 'dualpipe train' on OpenBLAS (default: if found)])],
        [], [with_blas=check])
    have_blas=no
    AS_IF([test "x$with_blas" != xno], [
        PKG_CHECK_MODULES([BLAS], [openblas],
            [have_blas=yes; DP_NOTE([blas], [on], [OpenBLAS for dualpipe train])],
            [AS_IF([test "x$with_blas" != xcheck],
                [AC_MSG_ERROR([--with-blas: pkg-config does not know openblas (Debian, Ubuntu: libopenblas-dev)])],
                [DP_NOTE([blas], [off], [openblas not found (libopenblas-dev): no dualpipe train])])])],
        [DP_NOTE([blas], [off], [--without-blas: no dualpipe train])])
    AS_IF([test $have_blas = yes], [AC_DEFINE([HAVE_BLAS], [1], [OpenBLAS is there])])
    AM_CONDITIONAL([HAVE_BLAS], [test $have_blas = yes])
])

AC_DEFUN([DP_SUMMARY], [
    AS_ECHO(["
$PACKAGE_STRING is configured:
  compiler       $CC $CFLAGS
  prefix         $prefix
$dp_summary

Next: make, then make check; 'sh tests/run.sh' does both."])
])
