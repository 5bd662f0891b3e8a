#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# cli.sh - the command as such: help, mistakes, what it says about itself.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

# Every command, as the program lists them: "schedule", "schedule show", ...
commands()
{
    sed -n '/^commands:/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' "$work/out"
}
all_commands()
{
    run --help || return
    for outer in $(commands); do
        echo "$outer"
        run "$outer" --help || return
        for inner in $(commands); do echo "$outer $inner"; done
    done
}

says_its_version()
{
    run --version && says "dualpipe "
}

helps_with_every_command()
{
    all_commands >"$work/commands" || return
    [ "$(wc -l <"$work/commands")" -ge 7 ] || wrong "few commands" || return
    while read -r command; do
        # shellcheck disable=SC2086 # words
        run $command --help && says "usage: dualpipe $command" "examples:" || return
    done <"$work/commands"
}

# The examples of --help must at least parse: run them with --help behind.
gives_examples_that_parse()
{
    all_commands >"$work/commands" || return
    while read -r command; do
        # shellcheck disable=SC2086 # words
        run $command --help || return
        sed -n '/^examples:/,$p' "$work/out" | sed -e ':a' -e '/\\$/N; s/\\\n//; ta' |
            sed -n 's/^  \([A-Z_]*=[a-z]* \)*dualpipe \([^|>]*\).*/\2/p' >"$work/examples"
        [ -s "$work/examples" ] || wrong "no example for $command" || return
        while read -r example; do
            # What stands behind -- is for somebody else.
            # shellcheck disable=SC2086 # words
            run ${example%% -- *} --help || return
        done <"$work/examples"
    done <"$work/commands"
}

# tests/data/cli/mistakes: STATUS, the arguments, what must be said; tabs between.
meets_a_mistake()
{
    # shellcheck disable=SC2086 # words
    refuses "$1" "$3" $2 || return
    [ ! -s "$work/out" ] || wrong "prints something all the same"
}

fails_where_output_cannot_be_written()
{
    [ -w /dev/full ] || skip "no /dev/full"
    "$dualpipe" info >/dev/full 2>"$work/err" && wrong "does not notice" && return
    grep -q "cannot write" "$work/err"
}

# ---- info

tells_about_the_machine()
{
    run info && says "built in" "cores" "memory"
}

tells_about_the_machine_in_json()
{
    command -v jq >/dev/null || skip "no jq"
    run info --json --options || return
    jq -e '.machine.cores >= 1 and (.features | has("cuda")) and (.options | length) >= 1' \
        "$work/out" >/dev/null
}

lists_options_with_value_and_origin()
{
    DUALPIPE_LOG_LEVEL=info run info --options &&
        says "DUALPIPE_LOG_LEVEL" "info (from the environment)"
}

says_which_option_is_wrong()
{
    DUALPIPE_LOG_LEVEL=loud DUALPIPE_LOG_LEVLE=info run info --options >/dev/null
    [ "$status" = 1 ] || wrong "exits with $status" || return
    says "WRONG: DUALPIPE_LOG_LEVEL=loud: expected one of error" \
        "DUALPIPE_LOG_LEVLE: no such option; did you mean DUALPIPE_LOG_LEVEL?"
}

# ---- what goes with it

manuals=$DP_TOP_SRCDIR/tools/man

# The long options in the help of a command and of all below it.
options_of()
{
    grep -E "^$1( |\$)" "$work/commands" | while read -r command; do
        # shellcheck disable=SC2086 # words
        run $command --help || return
        sed -n 's/^ *\(-[A-Za-z], \)\{0,1\}--\([a-z0-9-]*\).*/\2/p' "$work/out"
    done | sort -u | grep -vx help
}

has_a_manual_of_every_command()
{
    for command in $(cut -d' ' -f1 "$work/commands" | sort -u); do
        grep -q "Cm $command\$" "$manuals/dualpipe.1" || wrong "dualpipe.1 misses $command" || return
        grep -q "Xr dualpipe-$command 1" "$manuals/dualpipe.1" ||
            wrong "dualpipe.1 does not lead to dualpipe-$command" || return
    done
}

# What is described is what begins an entry of a list; other options may be named beside it.
has_a_manual_in_step()
{
    page=$manuals/dualpipe-$1.1
    [ -f "$page" ] || wrong "no $page" || return
    options_of "$1" >"$work/known" || return
    while read -r option; do
        grep -qE "Fl -$option( |\$)" "$page" || wrong "$page misses --$option" || return
    done <"$work/known"
    sed -n '/^\.It Fl/s/Fl -\([a-z0-9-]*\)/\n\1\n/gp' "$page" | grep -xE '[a-z][a-z0-9-]+' |
        sort -u >"$work/described"
    gone=$(grep -vxFf "$work/known" "$work/described" || :)
    [ -z "$gone" ] || wrong "$page has --$gone, which the program has not"
}

has_clean_manuals()
{
    command -v mandoc >/dev/null || skip "no mandoc"
    mandoc -Tlint -Wwarning "$manuals"/*.1
}

completes_what_it_knows()
{
    command -v bash >/dev/null || skip "no bash"
    all_commands >"$work/commands" || return
    bash "$DP_TOP_SRCDIR/tests/system/completion.bash" "$dualpipe" \
        "$DP_TOP_SRCDIR/tools/completion/dualpipe" <"$work/commands"
}

# Figures of a busy machine are no test; that there are some is one.
measures_copies()
{
    run bench copy --largest 4KiB --samples 1 --limit 1ms &&
        says "4 KiB" "1 thread" "2 threads, a copy each" ">= 0.97" &&
        run bench copy --largest 4KiB --samples 1 --limit 1ms --json &&
        says '"what": "4 KiB, 1 thread: ours over libc"' '"at_least": 0.97'
}

it says_its_version
it helps_with_every_command
it gives_examples_that_parse
tab=$(printf '\t')
while IFS=$tab read -r code arguments text; do
    case $code in '#'* | '') continue ;; esac
    it meets_a_mistake "$code" "$arguments" "$text"
done <"$data/mistakes"
it fails_where_output_cannot_be_written
it tells_about_the_machine
it tells_about_the_machine_in_json
it lists_options_with_value_and_origin
it says_which_option_is_wrong
it measures_copies
all_commands >"$work/commands"
it has_a_manual_of_every_command
for command in $(cut -d' ' -f1 "$work/commands" | sort -u); do
    it has_a_manual_in_step "$command"
done
it has_clean_manuals
it completes_what_it_knows
finish
