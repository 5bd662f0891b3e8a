#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# totals.sh DIR - sum up the tests that `make check` has run in the build directory DIR, as
# totals.awk says. Returns 1 if any failed or none ran.
set -eu
program=$(cd "$(dirname "$0")" && pwd)/totals.awk
cd "$1"

set --
for trs in $(find tests -name '*.trs' | LC_ALL=C sort); do
    set -- "$@" "$trs" "${trs%.trs}.log"
done
if [ $# = 0 ]; then
    echo "0 passed, 0 failed, 0 skipped"
    exit 1
fi
LC_ALL=C awk -f "$program" "$@"
