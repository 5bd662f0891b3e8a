#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# schedule.sh - `dualpipe schedule`: what it prints, what it writes, what it reads back.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

kinds="gpipe 1f1b zb1p dualpipe dualpipev"

# ---- skips

carries_skips_in_every_format_and_picture()
{
    run schedule check dualpipe -P 4 -M 8 --skips 0:2,1:3 || return
    for format in text json csv; do
        run schedule export 1f1b -P 4 -M 4 --skips 0:2,1:3 --format $format -o "$work/skips" || return
        run schedule check --file "$work/skips" || return
    done
    run schedule show 1f1b -P 4 -M 2 --format svg --arrows && cp "$work/out" "$work/plain" || return
    run schedule show 1f1b -P 4 -M 2 --format svg --arrows --skips 0:2,1:3 || return
    added=$(($(grep -c marker-end "$work/out") - $(grep -c marker-end "$work/plain")))
    [ $added = 8 ] || wrong "$added arrows more, expected 8" || return
    run schedule simulate async -P 4 -M 4 --skips 0:3 --latency 1ms
}

refuses_skips_that_are_none()
{
    for list in 0-3 4294967296:3 0:99999999999 0:-1 '0:3,' 0:3:2; do
        refuses 2 "at most 64 pairs of stages" schedule check 1f1b --skips $list || return
    done
    refuses 2 "2 violations" schedule check 1f1b --skips 3:0,1:9 || return
    refuses 2 "do not go with --file" schedule check --file x --skips 0:3
}

# An option that changes nothing would be taken for one that does.
refuses_options_that_do_not_apply()
{
    for option in "-P 2" "-M 4" "--virtual-stages 2" "--recompute always" --forward-only --return-outputs \
        --no-overlap "--slack 1" --mirror-reduce "--rank-map 1,0"; do
        # shellcheck disable=SC2086 # words
        refuses 2 "do not go with --file" schedule simulate --file x $option || return
    done
    refuses 2 "virtual_stages: 3, expected 0; interleaved has them" schedule show 1f1b --virtual-stages 3 || return
    run schedule compare --virtual-stages 3 1f1b interleaved || return
    ! grep "not possible" "$work/out" || return
    refuses 2 "--rank-map: 2 ranks, expected 4" schedule compare -P 4 --rank-map 0,1
}

refuses_costs_past_what_numbers_hold()
{
    refuses 2 "cost f: 1e+36, expected 0 to 1e15 ns" schedule simulate 1f1b --cost f=1e30 || return
    refuses 2 "expected less than 4.6e18 ns" schedule simulate 1f1b -P 2 -M 2 --cost f=9e14ns --stage-scale 1,9e8 ||
        return
    run schedule simulate 1f1b -P 2 -M 2 --cost f=1e15ns,b=1e15ns && says 'makespan  6e+06 s'
}

# ---- show

keeps_to_the_width()
{
    for width in 40 64 80 132; do
        run schedule show dualpipe -P 8 -M 20 --width $width || return
        long=$(sed '1,2d; /^F forward/,$d' "$work/out" | awk -v w=$width 'length > w' | head -n 1)
        [ -z "$long" ] || wrong "wider than $width: $long" || return
    done
}

uses_colour_only_where_asked()
{
    escape=$(printf '\033')
    run schedule show dualpipe && ! grep -q "$escape" "$work/out" || return
    run schedule show dualpipe --colour always && says "$escape"
}

uses_colour_in_a_terminal_unless_told()
{
    command -v script >/dev/null || skip "script(1), which makes a terminal, is not installed"
    TERM=xterm script -qec "$dualpipe schedule show 1f1b" "$work/typescript" >/dev/null </dev/null ||
        skip "this system gives no pseudo-terminal"
    grep -q "$(printf '\033')" "$work/typescript" || wrong "no colour in a terminal" || return
    NO_COLOR=1 TERM=xterm script -qec "$dualpipe schedule show 1f1b" "$work/typescript" \
        >/dev/null </dev/null
    ! grep -q "$(printf '\033')\[30" "$work/typescript" || wrong "colour in spite of NO_COLOR"
}

# writes_good_svg KIND ARGUMENT... - valid XML, not large, that a renderer takes.
writes_good_svg()
{
    command -v xmllint >/dev/null || skip "xmllint is not installed"
    run schedule show "$@" --format svg -o "$work/a.svg" || return
    [ ! -s "$work/out" ] || wrong "prints something" || return
    xmllint --noout "$work/a.svg" || return
    [ "$(wc -c <"$work/a.svg")" -lt 200000 ] || wrong "a large file" || return
    command -v rsvg-convert >/dev/null || return 0
    rsvg-convert -o "$work/a.png" "$work/a.svg" && [ -s "$work/a.png" ]
}

draws_every_bar_of_an_svg()
{
    run schedule show 1f1b -P 4 -M 8 --format svg || return
    [ "$(grep -c '<title>rank' "$work/out")" = 64 ] || wrong "not 4 x 8 x 2 bars"
}

# Bars are written once; every panel is a window on them.
keeps_numbers_of_two_digits_on_32_ranks()
{
    run schedule show 1f1b -P 32 -M 64 --format svg || return
    [ "$(grep -o '<tspan x="[^"]*" y=' "$work/out" | wc -l)" = $((2 * 32 * 64)) ] ||
        wrong "bars without a number"
}

folds_a_long_svg_to_the_width_of_a_page()
{
    run schedule show 1f1b -P 4 -M 60 --format svg --critical || return
    head -n 1 "$work/out" | grep -q 'width="1000"' || wrong "$(head -n 1 "$work/out")" || return
    [ "$(grep -c '<use href="#bars"' "$work/out")" = 5 ] || wrong "not 5 panels" || return
    [ "$(grep -c '>rank 3<' "$work/out")" = 5 ] || wrong "a panel without names of ranks" || return
    [ "$(grep -c '<title>rank' "$work/out")" = 480 ] || wrong "not 4 x 60 x 2 bars" || return
    run schedule show 1f1b -P 4 -M 60 --format svg --width 3000 || return
    [ "$(grep -c '<use href="#bars"' "$work/out")" = 2 ] || wrong "not 2 panels at a width of 3000"
}

escapes_a_title()
{
    command -v xmllint >/dev/null || skip "xmllint is not installed"
    run schedule show gpipe --title 'a < b & "c"' --format svg &&
        xmllint --xpath 'string(//*[local-name()="title"])' "$work/out" | grep -qxF 'a < b & "c"'
}

writes_a_trace_for_perfetto()
{
    command -v jq >/dev/null || skip "jq is not installed"
    run schedule show dualpipe -P 4 -M 8 --format perfetto || return
    jq -e '.traceEvents | length > 100' "$work/out" >/dev/null
}

# ---- export and --file

round_trips()
{
    kind=$1 form=$2
    shift 2
    run schedule export "$kind" "$@" --format "$form" -o "$work/one" || return
    run schedule check --file "$work/one" || return
    run schedule export --file "$work/one" --format "$form" -o "$work/two" || return
    cmp "$work/one" "$work/two" || return
    # Through standard input, into the other forms and back.
    "$dualpipe" schedule export --file - --format csv <"$work/one" >"$work/three" &&
        run schedule export --file "$work/three" --format "$form" -o "$work/four" &&
        cmp "$work/one" "$work/four"
}

exports_the_trace_of_a_golden_file()
{
    file=$1
    name=$(basename "$file" .json)
    kind=${name%%_*}
    ranks=${name#*_P}
    ranks=${ranks%%_*}
    mb=${name#*_M}
    mb=${mb%%_*}
    extra=
    case $name in *_fwd) extra="--forward-only --return-outputs" ;; esac
    # shellcheck disable=SC2086 # words
    run schedule export "$kind" -P "$ranks" -M "$mb" $extra || return
    command -v jq >/dev/null || skip "jq is not installed"
    jq -S 'del(.source)' "$file" >"$work/want"
    jq -S 'del(.source)' "$work/out" >"$work/got"
    cmp "$work/want" "$work/got"
}

# A schedule that was changed by hand: the last op of rank 0 is gone.
# PyTorch's own test has the list of its DualPipeV for 4 ranks and 10 micro-batches, of 1261 bytes
# (test/distributed/pipelining/artifacts/dualpipev_4rank_10mb.csv); this is its checksum.
writes_the_list_that_pytorch_published()
{
    run schedule export dualpipev -P 4 -M 10 --format pytorch-csv -o "$work/list.csv" || return
    [ "$(cksum <"$work/list.csv")" = '4092502686 1261' ] || wrong "another list: $(cat "$work/list.csv")"
}

knows_the_lists_of_pytorch()
{
    run schedule export dualpipev -P 2 -M 4 --format pytorch-csv -o "$work/list.csv" || return
    head -n 1 "$work/list.csv" | grep -q '^0F0,0F1,0F2,3F0,.*(0F3;3B1)OVERLAP_F_B,' ||
        wrong "$(cat "$work/list.csv")" || return
    run schedule check --file "$work/list.csv" && says 'user, 2 ranks, 4 micro-batches: can be' || return
    run schedule export --file "$work/list.csv" --format pytorch-csv || return
    diff "$work/list.csv" "$work/out" || return
    refuses 1 'a schedule of two streams in PyTorch' schedule export dualpipe --format pytorch-csv || return
    printf '0F0,0B0\n1F0,1Y0' >"$work/bad.csv"
    refuses 2 "line 2, cell 2: '1Y0', expected an action" schedule check --file "$work/bad.csv"
}

finds_what_is_wrong()
{
    run schedule export gpipe -P 2 -M 4 --format text -o "$work/mine" || return
    sed 's/^\(rank 0:.*\) [^ ]*$/\1/' "$work/mine" >"$work/broken"
    refuses 1 "" schedule check --file "$work/broken" || return
    says "CANNOT be carried out" "rule " || return
    refuses 1 "" schedule check --file "$work/broken" --format json || return
    says '"valid": false'
}

keeps_to_bounds_it_is_given()
{
    run schedule check 1f1b -P 4 -M 8 --max-activations 4 || return
    refuses 1 "" schedule check 1f1b -P 4 -M 8 --max-activations 3 || return
    says "rule    activation"
}

refuses_a_file_that_is_no_schedule()
{
    echo '{"algo": 5}' >"$work/json"
    printf 'one,two\n' >"$work/csv"
    echo 'once upon a time' >"$work/text"
    : >"$work/empty"
    for form in json csv text empty; do
        refuses 2 "" schedule check --file "$work/$form" || return
    done
}

leaves_no_half_a_file()
{
    refuses 2 "" schedule show --file "$DP_TOP_SRCDIR/tests/system/schedule.sh" -o "$work/new" || return
    [ ! -e "$work/new" ] || wrong "there is a file"
    [ "$(find "$work" -name 'new*' | wc -l)" = 0 ]
}

# As /dev/stdout is one, which another file must not take the place of.
a_link_stays_a_link()
{
    echo old >"$work/target" && ln -s target "$work/link" || return
    run schedule export gpipe -P 2 -M 4 --format text -o "$work/link" || return
    [ -L "$work/link" ] && grep -q gpipe "$work/target"
}

# ---- simulate and compare

# With F = I = W = 1, B = 2, F&B = 3 a step takes 3M + P - 2 (spec of the cost model).
takes_as_long_as_published()
{
    run schedule simulate dualpipe -P "$1" -M "$2" || return
    says "makespan  $((3 * $2 + $1 - 2)) ms"
}

gives_figures_as_json()
{
    command -v jq >/dev/null || skip "jq is not installed"
    run schedule simulate dualpipe -P 8 -M 20 --format json || return
    jq -e '.makespan_ns == 66000000 and (.per_rank | map(.bubble_ns == 6000000) | all)
           and (.per_rank | map(.peak_activations == 9) | all) and (.critical_path | length) > 0' \
        "$work/out" >/dev/null || wrong "simulate: $(cat "$work/out")" || return
    run schedule compare -P 8 -M 20 --format json || return
    jq -e '.kinds | length == 8 and (map(select(.possible)) | length) == 7' "$work/out" >/dev/null || return
    run schedule check dualpipe -P 8 -M 20 --format json || return
    jq -e '.valid and .peak_activations == 9' "$work/out" >/dev/null
}

refuses_what_memory_cannot_hold()
{
    refuses 2 "GB of this machine's memory" schedule show dualpipe -P 65536 -M 1048576 || return
    refuses 2 "GB of this machine's memory" schedule compare -P 65536 -M 1048576
}

has_no_kind_user_to_build()
{
    refuses 2 "'user' is the kind of schedules in files: expected --file FILE" schedule show user
}

compares_only_the_kinds_named()
{
    run schedule compare 1f1b dualpipe -P 4 -M 8 || return
    says 1f1b dualpipe
    ! grep -q gpipe "$work/out"
}

sees_a_slow_rank()
{
    run schedule simulate gpipe -P 2 -M 4 --rank-scale 1,2 && says "makespan  27 ms"
}

for transcript in "$data"/transcripts/*.txt; do it prints_what_it_printed "$transcript"; done
it keeps_to_the_width
it uses_colour_only_where_asked
it uses_colour_in_a_terminal_unless_told
it carries_skips_in_every_format_and_picture
it refuses_skips_that_are_none
it refuses_options_that_do_not_apply
it refuses_costs_past_what_numbers_hold
for kind in $kinds; do it writes_good_svg "$kind" -P 4 -M 10; done
it writes_good_svg dualpipe -P 8 -M 20 --latency 100us --arrows --critical
it writes_good_svg dualpipe -P 8 -M 40 --arrows --critical
it folds_a_long_svg_to_the_width_of_a_page
it keeps_numbers_of_two_digits_on_32_ranks
it draws_every_bar_of_an_svg
it escapes_a_title
it writes_a_trace_for_perfetto
for kind in $kinds; do
    for form in text json csv; do it round_trips "$kind" $form -P 4 -M 10; done
done
it round_trips dualpipe text -P 4 -M 8 --rank-map 2,0,1,3
it round_trips dualpipe json -P 4 -M 8 --mirror-reduce
it round_trips dualpipev csv -P 2 -M 4 --forward-only --return-outputs
it round_trips gpipe text -P 1 -M 1
for file in "$DP_TEST_DATA"/golden/dualpipe*.json; do it exports_the_trace_of_a_golden_file "$file"; done
it knows_the_lists_of_pytorch
it writes_the_list_that_pytorch_published
it finds_what_is_wrong
it keeps_to_bounds_it_is_given
it refuses_a_file_that_is_no_schedule
it leaves_no_half_a_file
it a_link_stays_a_link
it takes_as_long_as_published 4 8
it takes_as_long_as_published 4 20
it takes_as_long_as_published 8 16
it takes_as_long_as_published 16 64
it gives_figures_as_json
it compares_only_the_kinds_named
it refuses_what_memory_cannot_hold
it has_no_kind_user_to_build
it sees_a_slow_rank
finish
