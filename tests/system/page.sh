#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# page.sh - a step as a page: it needs nothing but itself, and a browser shows ranks, waits and memory.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || true

# shown FILE[#FROM-TO] - what the page has become in a browser, in $work/shown.
shown()
{
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" \
        --virtual-time-budget=2000 --dump-dom "file://$work/$1" >"$work/shown" 2>"$work/browser" ||
        wrong "$browser fails: $(tail -n 3 "$work/browser")"
}

shows()
{
    for text in "$@"; do
        grep -qF -e "$text" "$work/shown" || wrong "no '$text' in the page: $(tail -n 20 "$work/shown")" || return
    done
}

needs_nothing_else()
{
    run schedule export dualpipe -P 4 -M 8 --format html -o sim.html --title 'A <b> & "c"' || return
    ! grep -nE 'src=|href=|@import|url\(|@STEP@' sim.html || wrong 'the page refers to something' || return
    grep -qF '"title":"A \u003cb> & \u0022c\u0022"' sim.html || wrong 'no title'
}

# The numbers of its table are those of the simulation.
a_browser_shows_a_simulated_step()
{
    [ "$browser" ] || skip 'a page in a browser: there is no chromium (apt-get install chromium)'
    run schedule export dualpipe -P 4 -M 8 --format html -o sim.html || return
    run schedule simulate dualpipe -P 4 -M 8 || return
    shown sim.html#5-15 || return
    shows '<title>DualPipe, 4 ranks, 8 micro-batches</title>' '26 ms, bubble 7.7 %' '5 ms to 15 ms' \
        'backward: weights' || return
    for rank in 0 1 2 3; do
        # shellcheck disable=SC2046 # words
        set -- $(awk -v r=$rank '$1 == r && NF > 5 { print $2, $8 }' "$work/out")
        shows "<tr><td>$rank</td><td>$1 ms</td><td>7.7 %</td>" || return
        grep -qE "<tr><td>$rank</td><td>[^<]*</td><td>[^<]*</td><td>2 ms</td><td>rank [0-3]</td><td>2 ms</td><td>$2</td>" "$work/shown" ||
            wrong "rank $rank has not $2 sets: $(cat "$work/shown")" || return
    done
}

# However near one looks, two times that differ are not shown as one.
times_of_a_near_look_differ()
{
    [ "$browser" ] || skip 'a page in a browser: there is no chromium (apt-get install chromium)'
    run schedule export dualpipe -P 4 -M 8 --format html -o sim.html || return
    shown sim.html#5.0001-5.0011 || return
    shows '5.0001 ms to 5.0011 ms'
}

a_browser_shows_a_step_that_was_taken()
{
    [ "$browser" ] || skip 'a page in a browser: there is no chromium (apt-get install chromium)'
    cp "$DP_TOP_SRCDIR/LICENSE" text || return
    run train --data text --layers 4 --width 8 --heads 2 --context 16 --schedule 1f1b -P 2 --steps 2 \
        --sample 0 --stat-dir none --page step.html || return
    says 'page      step.html' || return
    shown step.html || return
    shows '<title>1F1B, 2 ranks, 8 micro-batches</title>' '<tr><td>1</td>' 'rank 0</td>'
}

it needs_nothing_else
it a_browser_shows_a_simulated_step
it times_of_a_near_look_differ
if "$dualpipe" train --help | grep -q -e --page; then
    it a_browser_shows_a_step_that_was_taken
    it refuses 2 '--page -: expected a file' train --data "$DP_TOP_SRCDIR/LICENSE" --page -
    it refuses 2 '--page: expected a schedule' train --data "$DP_TOP_SRCDIR/LICENSE" --schedule none --page step.html
fi
finish
