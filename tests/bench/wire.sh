#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# wire.sh [OPTION...] - messages between two processes, ours and those of other libraries that are
# installed, in turns of 40 ms: UCX (ucx_perftest, in ucx-utils), libfabric (fi_pingpong, in
# libfabric-bin) and, in a build with the MPI module, OpenMPI. Two cores may come nearer to each
# other, or farther apart, within seconds, as a virtual machine is moved about. So each turn of theirs
# is compared with the turns of ours right before and after it: the ratio is ours (the geometric mean
# of both) over theirs, and its quartiles tell how steady it was. A sample is a round in which each
# library has a turn, and takes about a second; 15 make quartiles to rely on. The target of a ratio is
# the same beside each library, so all have to be met. --help lists the options. DP_BUILD: where it was
# built (build).
set -eu
build=${DP_BUILD:-$(dirname "$0")/../../build}
make -s -C "$build" tests/bench/wire-peers
[ ! -e "$build/tests/bench/mpi-peer" ] || make -s -C "$build" tests/bench/mpi-peer
exec "$build/tests/bench/wire-peers" "$@"
