#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# totals.sh - tests/totals.sh counts cases, not programs, and misses no way of failing.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/tests"

# program NAME RESULT - a program's result; what it printed comes from standard input.
program()
{
    echo ":test-result: $2" >"$dir/tests/$1.trs"
    cat >"$dir/tests/$1.log"
}

# expect STATUS LINE... - every line is in the report, and the last one ends it.
expect()
{
    wanted=$1
    shift
    status=0
    report=$(cd "$DP_TOP_SRCDIR" && sh tests/totals.sh "$dir") || status=$?
    [ $status = "$wanted" ] || {
        echo "totals.sh: returned $status, not $wanted"
        exit 1
    }
    for line; do
        echo "$report" | grep -qxF -- "$line" || {
            echo "totals.sh: no line '$line' in:"
            echo "$report"
            exit 1
        }
    done
    [ "$(echo "$report" | tail -n 1)" = "$line" ]
}

expect 1 '0 passed, 0 failed, 0 skipped'

program cmocka PASS <<'END'
[==========] Running 4 test(s).
[ RUN      ] it_adds
a word without a newline[       OK ] it_adds
[ RUN      ] it_needs_a_device
no device here
[  SKIPPED ] it_needs_a_device
[ RUN      ] it_subtracts
[       OK ] it_subtracts
[ RUN      ] it_is_shy
[  SKIPPED ] it_is_shy
[==========] 4 test(s) run.
[  PASSED  ] 2 test(s).
[  SKIPPED ] 2 test(s), listed below:
[  SKIPPED ] it_needs_a_device
took: 1500 ms, of processors 700 ms
PASS tests/cmocka (exit status: 0)
END
program lines PASS <<'END'
skipped: mandoc is not there
3 passed, 0 failed, 1 skipped
END
program silent PASS </dev/null
program absent SKIP <<'END'
no debugger here
took: 4 ms, of processors 3 ms
SKIP tests/absent (exit status: 77)
END
expect 0 '  tests/cmocka: it_needs_a_device: no device here' \
    '  tests/cmocka: it_is_shy: it does not say why' \
    '  tests/lines: mandoc is not there' \
    '  tests/absent: no debugger here' \
    '      1.5 s      0.7 s  tests/cmocka' \
    '6 passed, 0 failed, 4 skipped'

program crashed FAIL <<'END'
[ RUN      ] it_starts
[       OK ] it_starts
[ RUN      ] it_ends
Segmentation fault
END
program wrong FAIL <<'END'
[ RUN      ] it_is_right
1 != 2
[  FAILED  ] it_is_right
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] it_is_right
END
program counts FAIL <<'END'
FAILED: it_counts
2 passed, 2 failed
END
program mute FAIL </dev/null
program gone ERROR </dev/null
expect 1 '  tests/crashed: it_ends (never ended)' \
    '    | Segmentation fault' \
    '  tests/wrong: it_is_right' \
    '    | 1 != 2' \
    '  tests/counts: it_counts' \
    '  tests/counts: a case without a name' \
    '  tests/mute: exited with an error, naming no case' \
    '  tests/gone: could not run' \
    '9 passed, 6 failed, 4 skipped'
