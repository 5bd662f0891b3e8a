#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# profiler.sh [BUILD] - what the profiler plugin adds to an operation of NCCL and to a chunk of 512 KiB on
# the network, with each of its options: ns of one, the least of 501 turns of 400, and instructions where the
# system counts them (-1 otherwise). A chunk is 8 calls: its start, its states, 4 tries until the receiver is
# ready, the rail and its end.
set -eu
cd "$(dirname "$0")/../../${1:-build}"

plugin=$PWD/nccl-plugin/.libs/libnccl-profiler-dualpipe.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# cost NAME VARIABLE... - a line of the table.
cost()
{
    name=$1
    shift
    printf '%-28s %s\n' "$name" "$(env "$@" DUALPIPE_PROFILER_STAT_DIR="$work/pages" \
        tests/bench/profiler-cost "$plugin")"
}

cost 'TRAFFIC' DUALPIPE_PROFILER_TRAFFIC="$work/traffic"
cost 'TRAFFIC, STAT' DUALPIPE_PROFILER_TRAFFIC="$work/traffic" DUALPIPE_PROFILER_STAT=1
cost 'TRAFFIC, STAT, TRACE' DUALPIPE_PROFILER_TRAFFIC="$work/traffic" DUALPIPE_PROFILER_STAT=1 \
    DUALPIPE_PROFILER_TRACE="$work/trace.json"
