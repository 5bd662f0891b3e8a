#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train_stat.sh - `dualpipe stat` sees training jobs while they run, stopped ones included.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
mkdir -m 700 pages
cp "$DP_TOP_SRCDIR/LICENSE" text || exit 1
small="--data text --layers 8 --width 8 --heads 2 --context 16 --eval-every 0 --sample 0 --stat-dir $work/pages"
job=

stat_of() { run stat --dir "$work/pages" "$@"; }

# until_seen PATTERN [ARGUMENT...] - for ten seconds, until `dualpipe stat` prints it.
until_seen()
{
    pattern=$1 tries=0
    shift
    until stat_of "$@" && grep -qE -e "$pattern" "$work/out"; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || wrong "dualpipe stat never says $pattern: $(cat "$work/out")" || return
        sleep 0.1
    done
}

# rank_pid RANK - its process, by the JSON of the last look.
rank_pid() { tr -d ' \n' <"$work/out" | sed -n "s/.*\"rank\":$1,\"pipeline_rank\":[0-9]*,\"pid\":\([0-9]*\).*/\1/p"; }

start_job()
{
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $small --steps 1000000 >"$work/train.out" 2>&1 &
    job=$!
}

end_job()
{
    kill -TERM "$job" 2>/dev/null
    wait "$job" 2>/dev/null
    return 0
}

a_job_is_shown_while_it_runs()
{
    until_seen '^step [1-9][0-9]*/1000000  loss [0-9.]+  [0-9.]+k tokens/s' || return
    says 'training job of 4 processes: dualpipe, 8 micro-batches' || return
    for rank in 0 1 2 3; do
        grep -qE "^ +$rank +[0-9]+ +[0-9]+ +[0-9.]+ s +[0-9]+ %  .* [0-9.]+ [kMG]?B +[0-9.]+ [kMG]?B  .*micro-batch" \
            "$work/out" || wrong "no line of rank $rank: $(cat "$work/out")" || return
    done
}

programs_read_the_same()
{
    stat_of --json || return
    says '"schedule": "dualpipe"' '"pipeline_ranks": 4' '"sent_bytes"' '"tokens_per_second"' \
        '"waited_ms"' '"compute_ms"' || return
    stat_of --prometheus - || return
    says '# TYPE dualpipe_train_steps_total counter' 'dualpipe_train_loss{job="' \
        'dualpipe_train_waited_seconds{' 'dualpipe_train_sent_bytes_total{'
}

# A rank that stops between two steps is waited for by no message: then it is tried once more.
a_rank_that_stops_is_named_by_those_that_wait_for_it()
{
    stat_of --json || return
    stopped=$(rank_pid 1)
    [ "$stopped" ] || wrong "no process of rank 1: $(cat "$work/out")" || return
    for turn in 1 2 3 4 5; do
        kill -STOP "$stopped"
        sleep 1
        stat_of
        kill -CONT "$stopped"
        grep -qE 'rank 1, for [0-9.]+ s now' "$work/out" && return
        sleep "0.0$turn"
    done
    wrong "dualpipe stat says of no rank that it waits for rank 1: $(cat "$work/out")"
}

a_killed_job_is_shown_no_more()
{
    stat_of --json || return
    kill -KILL "$(rank_pid 2)"
    wait "$job" && wrong 'a job ends well, though a rank was killed' && return
    until_seen '"jobs": \[\]' --json || return
    [ -z "$(ls pages)" ] || wrong "pages are left: $(ls pages)"
}

a_job_that_ends_leaves_no_page()
{
    # shellcheck disable=SC2086 # words
    run train $small -P 2 --steps 2 || return
    [ -z "$(ls pages)" ] || wrong "pages are left: $(ls pages)"
}

# Those that survive meet before they know of each other, and are two jobs all the same.
two_jobs_that_survive_are_two()
{
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $small -P 2 --survive --steps 1000000 >"$work/one.out" 2>&1 &
    job=$!
    # shellcheck disable=SC2086 # words
    "$dualpipe" train $small -P 2 --survive --steps 1000000 >"$work/two.out" 2>&1 &
    other=$!
    tries=0
    until stat_of && [ "$(grep -cE '^ +[01] +[0-9]+ ' "$work/out")" = 4 ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || wrong "not four ranks: $(cat "$work/out" one.out two.out)" || break
        sleep 0.1
    done
    jobs=$(grep -c '^training job of 2 processes' "$work/out")
    kill -TERM $other
    wait $other
    end_job
    [ "$jobs" = 2 ] || wrong "$jobs jobs: $(cat "$work/out")"
}

a_job_need_not_be_seen()
{
    # shellcheck disable=SC2086 # words
    run train $small --schedule none --steps 2 --stat-dir none || return
    : >not-a-directory
    # shellcheck disable=SC2086 # words
    run train $small --schedule none --steps 2 --stat-dir not-a-directory || return
    grep -q 'warning: --stat-dir not-a-directory' "$work/err" || wrong 'no warning' || return
    mkdir -m 755 open || return
    # shellcheck disable=SC2086 # words
    run train $small --schedule none --steps 2 --stat-dir open || return
    grep -q 'warning: --stat-dir open: expected a directory of this user alone, of mode 700' "$work/err" ||
        wrong "it says: $(cat "$work/err")"
}

# What only has the name of a page is a user's: it is no page that a process has left, which goes.
files_that_are_no_pages_stay()
{
    mkdir -m 700 own && cp text own/book.train && mkfifo own/1-0.train &&
        printf 'dptrain\0nonsense' >own/2-0.train || return
    # shellcheck disable=SC2086 # words
    timeout 60 "$dualpipe" train $small --schedule none --steps 2 --stat-dir own >out 2>err ||
        wrong "exits with $?: $(cat err)" || return
    cmp text own/book.train || return
    [ -p own/1-0.train ] && [ ! -e own/2-0.train ] || wrong "there are: $(ls own)"
}

# Empty, as in all of dualpipe, it is not set; what it says is not what an option says.
the_variable_is_named()
{
    unseen=${small%--stat-dir*}
    # shellcheck disable=SC2086 # words
    DUALPIPE_NET_STAT_DIR='' run train $unseen --schedule none --steps 2 || return
    ! grep warning "$work/err" || return
    # shellcheck disable=SC2086 # words
    DUALPIPE_NET_STAT_DIR=text run train $unseen --schedule none --steps 2 || return
    grep -q 'warning: DUALPIPE_NET_STAT_DIR text: expected a directory' "$work/err" ||
        wrong "it says: $(cat "$work/err")"
}

a_page_of_another_layout_is_refused()
{
    printf 'dptrain\0nonsense' >pages/1-0.train
    "$dualpipe" stat --dir "$work/pages" >out 2>err
    status=$?
    rm -f pages/1-0.train
    # nobody holds its lock: its process has ended, and it is removed
    [ $status = 0 ] || wrong "exits with $status: $(cat err)" || return
    echo text >pages/2-0.train
    "$dualpipe" stat --dir "$work/pages" >out 2>err
    status=$?
    rm -f pages/2-0.train
    [ $status = 1 ] && grep -q 'is no page of a training job' err || wrong "exits with $status: $(cat err)"
}

start_job
it a_job_is_shown_while_it_runs
it programs_read_the_same
it a_rank_that_stops_is_named_by_those_that_wait_for_it
it a_killed_job_is_shown_no_more
end_job
it a_job_that_ends_leaves_no_page
it two_jobs_that_survive_are_two
it a_job_need_not_be_seen
it files_that_are_no_pages_stay
it the_variable_is_named
it a_page_of_another_layout_is_refused

# The whole: a thousand steps of a real job say of nothing that it is slow.
a_thousand_quiet_steps_say_nothing()
{
    # shellcheck disable=SC2086 # words
    run train $small --steps 1000 --json || return
    [ "$(grep -c '"event":"step"' "$work/out")" = 1000 ] || wrong 'not a thousand steps' || return
    ! grep '"event":"slow"' "$work/out" || wrong 'something is called slow'
}
if [ "${DP_TEST_FULL:-}" ]; then
    it a_thousand_quiet_steps_say_nothing
fi
finish
