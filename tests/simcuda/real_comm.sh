#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_comm.sh - our communicator by NCCL, and pipelines over it, with another release of NCCL than that of
# CI, which runs test_comm_nccl and test_pipeline_nccl by themselves. In the long form only.
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

[ -n "${DP_TEST_FULL:-}" ] || skip_all 'another release of NCCL below our communicator: --full runs it'
[ -x tests/simcuda/test_comm_nccl ] || skip_all 'no CUDA in this build'
other=nvidia-nccl-cu13==2.30.7
[ -e "$cache/$other/libnccl.so.2" ] || skip_all "no $other"
unset NCCL_NET_PLUGIN NCCL_NET NCCL_DEBUG NCCL_DEBUG_SUBSYS
DP_TEST_NCCL=$other
export DP_TEST_NCCL

# wrong PROGRAM - what it says, if anything of it fails or is skipped for another reason than a missing file.
wrong()
{
    "$1" >"$work/out" 2>&1 || echo "status $?"
    grep -E 'FAILED|SKIPPED|rank [0-9]+: |skipped' "$work/out" || :
}

case_is "the communicator over $other" "$(wrong tests/simcuda/test_comm_nccl)"
case_is "pipelines over $other" "$(wrong tests/simcuda/test_pipeline_nccl)"
case_is "sums of replicas over $other" "$(wrong tests/simcuda/test_replicas_nccl)"
case_is "mixing over $other" "$(wrong tests/simcuda/test_mixer_nccl)"
case_is "the trainer over $other" "$(wrong tests/simcuda/test_trainer_nccl)"
cases_end
