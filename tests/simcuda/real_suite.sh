#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_suite.sh - the suite of the communicators over NCCL (tests/unit/comm/comm_nccl.c): its programs are so many
# ranks, each with the simulated GPU, and run the cases that are for so many. Those of what NCCL does not have
# are skipped, and say so. In the short form a part of it.
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

grep -q 'define HAVE_CUDA 1' config.h || skip_all 'no CUDA in this build'
[ -x tests/unit/comm/test_comm ] || skip_all 'test_comm was not built: no cmocka'
unset NCCL_NET NCCL_DEBUG NCCL_DEBUG_SUBSYS
LD_LIBRARY_PATH=$PWD/tests/simcuda/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
DUALPIPE_DEVICE_CUDA_LIBRARY=$PWD/tests/simcuda/.libs/libsimcuda.so
DUALPIPE_NCCL_LIBRARY=$libnccl SIMCUDA_NCCL=$libnccl SIMCUDA_LOOKS=1
NCCL_NET_PLUGIN=none NCCL_SOCKET_IFNAME=lo NCCL_RAS_ENABLE=0
NCCL_MAX_NCHANNELS=1 NCCL_BUFFSIZE=131072 NCCL_LL_BUFFSIZE=16384 NCCL_LL128_BUFFSIZE=16384
DP_TEST_COMM=nccl
export LD_LIBRARY_PATH DUALPIPE_DEVICE_CUDA_LIBRARY DUALPIPE_NCCL_LIBRARY SIMCUDA_NCCL SIMCUDA_LOOKS \
    NCCL_NET_PLUGIN NCCL_SOCKET_IFNAME NCCL_RAS_ENABLE NCCL_MAX_NCHANNELS NCCL_BUFFSIZE NCCL_LL_BUFFSIZE \
    NCCL_LL128_BUFFSIZE DP_TEST_COMM

# The reasons of what is skipped, each once.
reasons()
{
    sed -n 's/^\(nccl: .*\)/\1/p' "$work/log" | sort -u
}

# suite PROGRAM RANKS...
suite()
{
    program=tests/unit/comm/$1
    shift
    for DP_TEST_RANKS in "$@"; do
        export DP_TEST_RANKS
        "$program" >"$work/log" 2>&1 && findings= || findings=$(cat "$work/log")
        case_is "$program on $DP_TEST_RANKS ranks over NCCL" "$findings"
        reasons | sed 's/^/# passed over: /'
    done
}

if [ -n "${DP_TEST_FULL:-}" ]; then
    suite test_comm 2 3 4 5
    suite test_comm_collectives 2 3 4
    suite test_comm_groups 2
    suite test_comm_failure 3 4
else
    suite test_comm 2
    suite test_comm_failure 3
fi
cases_end
