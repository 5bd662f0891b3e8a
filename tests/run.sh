#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - install what the tests want, build, run every test, and say how many cases passed, failed
# and were skipped, and why.
set -eu

usage="usage: sh tests/run.sh [OPTION...] [TEST...]

  TEST                      a test's name as 'make list-tests' prints it, or its last part
  --sanitizers LIST         build with address,undefined or thread, in build-asan/ or build-tsan/
  --configure OPTION        one more option for configure
  --full                    the long form of tests that have one, which takes an hour
  --no-install              install no packages, load no NCCL (190 MB, once) and no PyTorch (2.8 GB, once)
  --help                    this

DP_TEST_LIMIT_S is the longest that one test may take, in seconds (300); up to four times that on a loaded
machine."

die()
{
    echo "run.sh: $*" >&2
    exit 2
}

need()
{
    [ "$1" -ge 2 ] || die "$2 needs a value; --help explains"
}

cd "$(dirname "$0")/.."
build=build
install=yes
options=
tests=
while [ $# -gt 0 ]; do
    case $1 in
    --help)
        echo "$usage"
        exit 0
        ;;
    --full)
        DP_TEST_FULL=yes DP_TEST_LIMIT_S=${DP_TEST_LIMIT_S:-3600}
        export DP_TEST_FULL DP_TEST_LIMIT_S
        ;;
    --no-install) install=no ;;
    --sanitizers)
        need $# "$1"
        case $2 in
        *thread*) build='build-tsan' ;;
        *) build='build-asan' ;;
        esac
        options="$options --enable-sanitizers=$2"
        shift
        ;;
    --configure)
        need $# "$1"
        options="$options $2"
        shift
        ;;
    -*) die "unknown option '$1'; --help lists them" ;;
    *) tests="$tests $1" ;;
    esac
    shift
done

# Every test is named in a Makefile.inc; which of them this build has is known after it only.
for test in $tests; do
    grep -rhoE --include='*.inc' 'tests/[A-Za-z0-9_/-]+(\.sh)?' tests | grep -qE "(^|/)$test(\.sh)?\$" ||
        die "no test named '$test'; 'make -C $build list-tests' prints their names"
done

# What tests load from the network is kept for all builds. Without virtual machines or NCCL the tests that
# want them are skipped.
DP_TEST_CACHE=$PWD/build/cache
export DP_TEST_CACHE
if [ $install = yes ]; then
    sh tools/packages.sh test
    # PyTorch is 2.8 GB to load, which goes on while the rest is built.
    [ $build = build-tsan ] || sh tests/python/venv.sh "$DP_TEST_CACHE/venv" &
    sh tests/simcuda/fetch.sh "$DP_TEST_CACHE/nccl"
    [ -z "${DP_TEST_FULL:-}" ] ||
        sh tests/simcuda/fetch.sh "$DP_TEST_CACHE/nccl" nvidia-nccl-cu12==2.28.9 nvidia-nccl-cu13==2.30.7 \
            nvidia-nccl-cu12==2.27.7 nvidia-nccl-cu13==2.32.3
    if ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null; then
        echo 'No virtual machines for the tests: their kernel is that of Debian 12'
    elif ! sh tools/packages.sh guests || ! sh tests/rdma-vm/kernel.sh fetch; then
        echo 'No virtual machines for the tests: the reason is above'
    fi
fi
echo "Building in $build/ ..."
# shellcheck disable=SC2086 # words
sh tools/build.sh $build $options

wait

make="make -C $build -s --no-print-directory"

# Full names of the tests that were asked for. A program needs no other program, a script may.
chosen=
for test in $tests; do
    name=$($make list-tests | grep -E "(^|/)$test(\.sh)?\$") || die "no test named '$test'"
    chosen="$chosen $name"
done
case $build:$chosen in
build-tsan:)
    chosen=$($make list-tests | grep -vxFf tests/one_thread.txt | tr '\n' ' ')
    only="check_PROGRAMS=$($make list-programs | grep -vxFf tests/one_thread.txt | tr '\n' ' ')"
    echo "Left to other builds are the $(grep -c '^tests' tests/one_thread.txt) tests of tests/one_thread.txt"
    ;;
*: | *.sh*) only= ;;
*) only="check_PROGRAMS=$chosen" ;;
esac

# The product is built by now. Its tests are compiled quickly, which takes half of the time.
$make -j "$(nproc)" check TESTS= "CFLAGS=${CFLAGS:--g1 -O1}" ${only:+"$only"} </dev/null >$build/build.log 2>&1 || {
    tail -n 25 $build/build.log >&2
    die "the tests do not build; the whole output is in $build/build.log"
}

# Progress goes by, a line a program; the rest of what make says is in the totals. Two tests more than
# there are cores, as many of them wait for deadlines most of the time.
check()
{
    $make -k -j $(($(nproc) + 2)) check "$@" </dev/null 2>&1 |
        grep -E --line-buffered '^(PASS|FAIL|SKIP|XPASS|XFAIL|ERROR): ' || true
}

find $build/tests -name '*.trs' -exec rm -f {} +
if [ -n "$chosen" ]; then check TESTS="$chosen" ${only:+"$only"}; else check; fi
sh tests/totals.sh $build
