#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# strangers.sh - what others have put where the command reads and writes does no harm: links, pipes, devices,
# files that are large or made to crash a reader.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
cd "$work" || exit 1
cp "$DP_TOP_SRCDIR/LICENSE" text || exit 1
small='--data text --layers 2 --width 8 --heads 2 --context 8 --batch 8 --steps 2 --eval-every 0 --sample 0'

# in_time SECONDS COMMAND... - 124 if it takes longer.
in_time()
{
    timeout -k 5 "$@" </dev/null >"$work/out" 2>"$work/err"
}

# The name that a command would write first under was its number. `exec` keeps the shell's.
follows_no_link_for_output()
{
    echo mine >victim
    # shellcheck disable=SC2016 # by the inner shell
    sh -c 'ln -s victim "out.$$" && exec "$0" schedule export gpipe -o out' "$dualpipe" || return
    [ "$(cat victim)" = mine ] && [ -s out ]
}

# train OPTION... - a checkpoint of two steps.
train()
{
    # shellcheck disable=SC2086 # words
    run train $small --schedule none "$@"
}

follows_no_link_of_a_checkpoint()
{
    echo mine >victim
    mkdir -p linked/step-000002
    ln -s ../../victim linked/step-000002/rank-0.0.safetensors.partial
    ln -s ../../victim linked/step-000002/index.json.partial
    train --save linked || return
    run checkpoint verify linked || return
    ln -sf ../victim linked/.lock
    # shellcheck disable=SC2086 # words
    refuses 2 '--save linked: Too many levels of symbolic links; expected a folder that can be written, with a file .lock' train $small --schedule none --save linked || return
    [ "$(cat victim)" = mine ]
}

# A pipe that no process writes to, in place of each file.
waits_for_no_pipe_of_a_checkpoint()
{
    rm -rf piped
    train --save piped || return
    for file in piped/step-000002/*; do
        mv "$file" kept && mkfifo "$file" || return
        for command in 'checkpoint show' 'checkpoint verify' 'train --data text --resume'; do
            # shellcheck disable=SC2086 # words
            in_time 60 "$dualpipe" $command piped
            [ $? -lt 3 ] || wrong "$command with a pipe for $file: $(cat err)" || return
            grep -q 'is no file' err || wrong "$command: $(cat err)" || return
        done
        rm "$file" && mv kept "$file"
    done
}

# tests/data/cli/endless: the commands; @ is a device without an end.
ends_with_what_has_no_end()
{
    # shellcheck disable=SC2046,SC2086 # words
    in_time 100 "$dualpipe" $(echo "$1" | sed 's|@|/dev/zero|')
    [ $? = 2 ] && [ "$(wc -l <err)" = 1 ] || wrong "$(cat err)"
}

# It took minutes.
refuses_a_host_of_ten_thousand_numa_nodes()
{
    awk 'BEGIN { printf "<system version=\"1\">"; for (i = 0; i < 10000; i++) printf "<cpu/>"
        print "</system>" }' >cpus.xml
    refuses 2 'a host of more than 1024 NUMA nodes' topo show -t cpus.xml
}

# Without it a rank would join any other that has none, too.
starts_no_ranks_without_a_secret()
{
    case $DP_CC in
    *-fsanitize*) skip "a sanitizer wants to be the first library" ;;
    esac
    echo 'long getrandom(void *a, unsigned long n, unsigned f) { (void)a, (void)n, (void)f; return -1; }' >r.c
    $DP_CC -shared -fPIC -o r.so r.c || return
    # shellcheck disable=SC2086 # words
    LD_PRELOAD=$PWD/r.so in_time 60 "$dualpipe" train $small -P 2
    [ $? = 1 ] && grep -q 'no random numbers from the kernel for the secret' err || wrong "$(cat err)"
}

it follows_no_link_for_output
it follows_no_link_of_a_checkpoint
it waits_for_no_pipe_of_a_checkpoint
while read -r command; do
    case $command in '#'* | '') continue ;; esac
    it ends_with_what_has_no_end "$command"
done <"$data/endless"
it refuses_a_host_of_ten_thousand_numa_nodes
it starts_no_ranks_without_a_secret
finish
