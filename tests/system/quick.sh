#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# quick.sh - the pipeline of 40 lines (dualpipe.h), as a program of a user's: every kind of schedule learns
# the same, and what is missing is named.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

top=$(cd "$DP_TOP_SRCDIR" && pwd)
lib=$(cd "$DP_TOP_BUILDDIR/libdualpipe/.libs" && pwd)
cd "$work" || exit 1
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID \
    SLURM_NTASKS SLURM_JOB_ID DUALPIPE_COMM_ADDRESS
# shellcheck disable=SC2086 # words
$DP_CC ${DP_SAN_FLAGS:-} -Wall -Wextra -Werror "$top/tests/system/example_quick.c" -I"$top/libdualpipe/include" -L"$lib" \
    -ldualpipe -o example || exit 1
LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

# both SCHEDULE - on two processes; a port may be taken: then another.
both()
{
    WORLD_SIZE=2 MASTER_ADDR=127.0.0.1
    export WORLD_SIZE MASTER_ADDR MASTER_PORT
    for try in 1 2 3 4; do
        MASTER_PORT=$((20000 + ($$ * 7 + try * 1009) % 10000))
        RANK=1 ./example "$1" >rank1 2>&1 &
        RANK=0 ./example "$1" >rank0 2>errors && break
        kill "$!" 2>/dev/null
        wait "$!"
        grep -q 'Address already in use' errors && [ $try -lt 4 ] || return 1
    done
    wait "$!"
}

learns() # SCHEDULE, STAGE: FACTOR of each that both hold, in order
{
    both "$1" && sed 's/, loss 0.0000$//' rank0 rank1 | sort >learned && shift &&
        printf 'stage %s\n' "$@" | cmp - learned
}

names_the_kinds()
{
    ! both rainbow && grep -q "'rainbow'" errors
}

it learns dualpipe '0: 4.0000' '0: 4.0000' '1: 4.0000' '1: 4.0000'
it learns dualpipev '0: 2.0000' '1: 2.0000' '2: 2.0000' '3: 2.0000'
it learns 1f1b '0: 4.0000' '1: 4.0000'
it learns zb1p '0: 4.0000' '1: 4.0000'
it names_the_kinds
finish
