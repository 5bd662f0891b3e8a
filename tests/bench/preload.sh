#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# preload.sh [BUILD] - what the preload library adds to a call of CUDA: ns of CPU time of a copy of no bytes by the fake
# runtime of the tests, without and with the library, by turns; medians of 5.
set -eu
cd "$(dirname "$0")/../../${1:-build}"

job=tests/preload/preload-job
calls=$PWD/tests/preload/.libs/preload_calls.so
library=$PWD/offload/.libs/libdualpipe-preload.so
without='' with=''
for _ in 1 2 3 4 5; do
    without="$without $($job time "$calls")"
    with="$with $(LD_PRELOAD=$library $job time "$calls")"
done

# median NUMBER...
median()
{
    printf '%s\n' "$@" | sort -n | sed -n 3p
}

# shellcheck disable=SC2086 # words
a=$(median $without) b=$(median $with)
echo "without $a ns, with $b ns"
