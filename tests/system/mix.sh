#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# mix.sh - `dualpipe mix`: what it writes it reads, what it finds wrong, what it simulates.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

round_trips()
{
    run mix show "$@" -o "$work/one" || return
    run mix show --file "$work/one" -o "$work/two" || return
    cmp "$work/one" "$work/two" || return
    run mix check --file "$work/two" && says "can be used"
}

names_the_broken_rule()
{
    printf 'mixing mine workers=4\nround 0: {0 1} {2 3}\nround 1: {1 2} {3}\n' >"$work/mine"
    refuses 1 "worker 0 is in no group" mix check --file "$work/mine" || return
    says "CANNOT be used" "rule    once" "round   1" "worker  0" || return
    refuses 1 "" mix check --file "$work/mine" --format json || return
    says '"valid": false' '"rule": "once"' || return
    printf 'mixing mine workers=2\nround 0: 0>0*0.5 0>1*0.5 1>0*0.4 1>1*0.6\n' >"$work/mine"
    refuses 1 "" mix check --file "$work/mine" && says "rule    row" || return
    refuses 2 "takes 0.9" mix simulate --file "$work/mine"
}

simulates_without_an_option()
{
    for kind in ring one-peer-exp directed-exp star; do
        run mix simulate $kind -N 16 && says "all-reduce" "16 workers, 200 steps" || return
    done
}

simulates_what_is_asked()
{
    run mix simulate one-peer-exp -N 16 --staleness 2 --sigma 1 --format json && says '"passed": 0.' || return
    refuses 2 "over push-sum" mix simulate directed-exp -N 8 --staleness 1 || return
    run mix simulate torus -N 36 --steps 40 --deaths 5 --latency 1ms \
        --bytes 100MB --bandwidth 10GB/s --in-turn --factor 0.5 --seed 3 --format json || return
    says '"all_reduce"' '"alive": 32' || return
    run mix simulate ring -N 8 --compute 10 --sigma 0 --steps 20 && says "10 ms   1.000"
}

for kind in complete ring one-peer-exp torus star random-matching hypercube directed-exp; do
    it round_trips $kind -N 8
done
it round_trips alternating-exp-ring -N 16 --local 4
it round_trips hierarchical -N 12 --local 3
it round_trips random-matching -N 7 --rounds 5 --seed 9
it names_the_broken_rule
it simulates_without_an_option
it simulates_what_is_asked
it refuses 2 "which graph?" mix check
it refuses 2 "did you mean ring?" mix show rign
it refuses 2 "8 workers die, expected 0 to 7" mix simulate ring --deaths 8
it refuses 2 "expected a power of two" mix show one-peer-exp -N 6
it refuses 2 "expected one of the two" mix show ring --file x
it refuses 2 "--file" mix show --file "$work/none"
finish
