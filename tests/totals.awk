# SPDX-License-Identifier: Apache-2.0
#
# totals.awk - adds up test cases. Reads pairs of files as the test harness of automake leaves them,
# A.trs (the result of a program) before A.log (what it printed), and prints what was skipped and
# why, what failed and the end of its log, the slowest programs, and the totals:
#
#       N passed, N failed, N skipped
#
# A case is: with cmocka, a "[ RUN" line up to its OK, SKIPPED or FAILED; in a script that prints a
# line of totals as above, what that says; else the whole program. A program that failed without
# saying which case, because it crashed or was killed, is one failed case.
#
# Why something was skipped: the line before cmocka's SKIPPED, a script's lines "skipped: WHY", or
# the last line of a program that returned 77. What failed: the name of a case, a script's lines
# "FAILED: WHAT".

FNR == 1 { in_log = FILENAME ~ /\.log$/ }
FNR == 1 && !in_log { end_program(); begin_program(FILENAME) }

!in_log && $1 == ":test-result:" { result = $2 }
!in_log { next }

!/^skipped: / { tail[tail_count++] = $0 }

/^took: [0-9]+ ms, of processors [0-9]+ ms$/ { took_ms = $2; cpu_ms = $6; next }
/^(SKIP|PASS|FAIL|XFAIL|XPASS|ERROR) .*\(exit status: [0-9]+\)$/ { next }

/^\[ RUN +\] / { running = $0; sub(/^\[ RUN +\] /, "", running); last = ""; next }
running != "" && has("[       OK ] " running) { passed++; running = ""; next }
running != "" && has("[  SKIPPED ] " running) { skip(running ": " last); running = ""; next }
running != "" && /\[  (FAILED  |ERROR   )\] / { fail(running); running = ""; next }

/^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
    passed += $1
    said_failed += $3
    said_skipped += $5
    next
}
/^skipped: / { skip(substr($0, 10)); said_skipped--; next }
/^FAILED: / { fail(substr($0, 9)); said_failed--; next }

NF { last = $0 }

END {
    end_program()
    if (skips != "")
        printf "\nSkipped:\n%s", skips
    if (failures != "")
        printf "\nFailed:\n%s", failures
    print_slowest(12)
    print ""
    print passed_all + 0 " passed, " failed_all + 0 " failed, " skipped_all + 0 " skipped"
    exit failed_all > 0
}

function has(text) { return index($0, text) > 0 }

function begin_program(file)
{
    program = file
    sub(/\.trs$/, "", program)
    sub(/^\.\//, "", program)
    result = last = running = ""
    passed = failed = skipped = said_failed = said_skipped = 0
    tail_count = took_ms = cpu_ms = 0
}

function skip(why)
{
    skipped++
    sub(/: $/, ": it does not say why", why)
    skips = skips "  " program ": " why "\n"
}

function fail(what)
{
    failed++
    failures = failures "  " program ": " what "\n"
}

function end_program(    i)
{
    if (program == "")
        return
    if (running != "")
        fail(running " (never ended)")
    for (i = 0; i < said_skipped; i++)
        skip("the script does not say why")
    for (i = 0; i < said_failed; i++)
        fail("a case without a name")
    if (result ~ /^(FAIL|XPASS|ERROR)$/) {
        if (!failed)
            fail(result == "ERROR" ? "could not run" : "exited with an error, naming no case")
        add_tail(25)
    } else if (!(passed + failed + skipped)) {
        if (result == "SKIP")
            skip(last)
        else
            passed++
    }
    passed_all += passed
    failed_all += failed
    skipped_all += skipped
    times[program] = took_ms
    cpu[program] = cpu_ms
    cpu_all += cpu_ms
    program = ""
}

function add_tail(lines,    i)
{
    for (i = tail_count > lines ? tail_count - lines : 0; i < tail_count; i++)
        failures = failures "    | " tail[i] "\n"
}

function print_slowest(count,    program, slowest)
{
    printf "\nSlowest, and of processors (all: %.0f s):\n", cpu_all / 1000
    while (count-- > 0) {
        slowest = ""
        for (program in times)
            if (slowest == "" || times[program] > times[slowest])
                slowest = program
        if (slowest == "")
            return
        printf "  %7.1f s  %7.1f s  %s\n", times[slowest] / 1000, cpu[slowest] / 1000, slowest
        delete times[slowest]
    }
}
