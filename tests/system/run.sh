#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - `dualpipe run`: what the command that it becomes finds.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

for name in NCCL_NET_PLUGIN NCCL_NET NCCL_NET_PLUGIN_REF_COUNT NCCL_TUNER_PLUGIN \
    DUALPIPE_TUNER_TABLE DUALPIPE_TUNER_LINKS DUALPIPE_PLACEMENT LD_PRELOAD; do
    unset $name
done

# sets NAME FILE - the command has found this variable with the path of this file.
sets()
{
    plugin=$(sed -n "s/^$1=//p" "$work/out")
    case $plugin in
    /*/"$2") [ -f "$plugin" ] || wrong "there is no $plugin" ;;
    *) wrong "$1 is '$plugin'" ;;
    esac
}

gives_the_command_both_plugins()
{
    run run --links inter=50 -- env || return
    says "NCCL_NET=dualpipe" "NCCL_NET_PLUGIN_REF_COUNT=1" || return
    sets NCCL_NET_PLUGIN libnccl-net-dualpipe.so || return
    sets NCCL_TUNER_PLUGIN libnccl-tuner-dualpipe.so
}

gives_no_tuner_without_a_table_or_a_model()
{
    run run -- env || return
    ! grep -q 'TUNER' "$work/out" || wrong "sets the tuner" || return
    DUALPIPE_TUNER_LINKS=inter=50 run run -- env || return
    sets NCCL_TUNER_PLUGIN libnccl-tuner-dualpipe.so
}

preloads_behind_what_is_preloaded()
{
    case $DP_CC in
    *-fsanitize*) return ;; # a sanitizer wants to be the first
    esac
    run run -- env || return
    grep -qE '^LD_PRELOAD=/.*libdualpipe-preload\.so$' "$work/out" || wrong "preloads nothing" || return
    run run -- "$dualpipe" run -- env || return
    [ "$(grep -c 'libdualpipe-preload.so.*libdualpipe-preload.so' "$work/out")" = 0 ] ||
        wrong "preloads twice" || return
    LD_PRELOAD=libm.so.6 run run --print || return
    grep -q "^export LD_PRELOAD='libm.so.6:/" "$work/out" || wrong "$(cat "$work/out")" || return
    run run --no-preload -- env || return
    ! grep -q '^LD_PRELOAD' "$work/out" || wrong "preloads all the same"
}

leaves_out_what_is_not_wanted()
{
    run run --no-net -- env || return
    grep -q '^NCCL_NET' "$work/out" && wrong "sets the net" && return 1
    run run --no-tuner -- env || return
    ! grep -q 'TUNER' "$work/out" || wrong "sets the tuner"
}

finds_the_table_from_anywhere()
{
    cd "$DP_TEST_DATA/tuner" || return
    run run --table example.csv -- sh -c 'cd / && head -n 1 "$DUALPIPE_TUNER_TABLE"' &&
        says "A table in the format"
}

works_out_links()
{
    run run --topology "dgx-h100 host:2" -- env && says "DUALPIPE_TUNER_LINKS=intra=450,inter=400"
}

finds_the_placement_from_anywhere()
{
    cd "$DP_TEST_DATA/fuzz/placement" || return
    run run --placement two.json -- sh -c 'cd / && head -c 25 "$DUALPIPE_PLACEMENT"' || return
    says '{"dualpipe_placement": 1,' || return
    [ "$(wc -l <"$work/err")" = 1 ] || wrong "not one line: $(cat "$work/err")" || return
    grep -q "placement two.json: 2 workers (1 x 2)" "$work/err" || wrong "$(cat "$work/err")"
}

refuses_a_placement_that_is_none()
{
    echo '{"dualpipe_placement": 3}' >"$work/three.json"
    refuses 2 "three.json:1: dualpipe_placement: expected 1" run --placement "$work/three.json" -- true ||
        return
    refuses 2 "none.json: No such file" run --placement "$work/none.json" -- true || return
    refuses 2 "Is a directory" run --placement "$work" -- true
}

keeps_what_is_set()
{
    NCCL_NET=Socket run run -- env || return
    says "NCCL_NET=Socket" || return
    grep -q "NCCL_NET=Socket stays, it was set before" "$work/err" || wrong "$(cat "$work/err")"
    NCCL_NET_PLUGIN=none run run -- env || return
    says "NCCL_NET_PLUGIN=none" || return
    ! grep -q "^NCCL_NET=" "$work/out" || wrong "asks for the net of a plugin that is not loaded"
}

passes_arguments_and_the_status_on()
{
    run run -- sh -c 'echo "$1|$2"; exit 7' sh 'a b' --print >/dev/null
    [ "$status" = 7 ] || wrong "exits with $status" || return
    says "a b|--print"
}

prints_what_a_shell_takes()
{
    run run --links intra=450 --print || return
    (
        # shellcheck disable=SC1091 # made above
        . "$work/out"
        [ "$NCCL_NET:$DUALPIPE_TUNER_LINKS" = "dualpipe:intra=450" ]
    ) || wrong "$(cat "$work/out")"
}

refuses_a_table_with_a_mistake()
{
    refuses 2 "algorithm.csv:2: algorithm: 'rng'" run --table \
        "$DP_TEST_DATA/tuner/refused/algorithm.csv" -- true
}

says_why_a_command_cannot_run()
{
    refuses 126 "Permission denied" run -- /
}

it gives_the_command_both_plugins
it gives_no_tuner_without_a_table_or_a_model
it leaves_out_what_is_not_wanted
it finds_the_table_from_anywhere
it works_out_links
it finds_the_placement_from_anywhere
it refuses_a_placement_that_is_none
it keeps_what_is_set
it passes_arguments_and_the_status_on
it prints_what_a_shell_takes
it refuses_a_table_with_a_mistake
it says_why_a_command_cannot_run
finish
