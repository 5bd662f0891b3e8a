#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - `dualpipe run`: what its command finds, how it ends, and what is said of it.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

for name in NCCL_NET_PLUGIN NCCL_NET NCCL_NET_PLUGIN_REF_COUNT NCCL_TUNER_PLUGIN \
    DUALPIPE_TUNER_TABLE DUALPIPE_TUNER_LINKS DUALPIPE_PLACEMENT LD_PRELOAD; do
    unset $name
done
unset RANK WORLD_SIZE LOCAL_RANK OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID DUALPIPE_NET_STAT \
    DUALPIPE_NET_STAT_DIR CUDA_VISIBLE_DEVICES DUALPIPE_PLACEMENT_NUMBERED TORCHELASTIC_USE_AGENT_STORE

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
    run run --placement two.txt -- sh -c 'cd / && head -c 25 "$DUALPIPE_PLACEMENT"' || return
    says 'dualpipe assignment 1' || return
    tells "placement   two.txt: 2 workers (1 x 2)"
}

refuses_a_placement_that_is_none()
{
    echo 'dualpipe assignment 3' >"$work/three.txt"
    refuses 2 "three.txt:1: 'dualpipe assignment 3', expected 'dualpipe assignment 1'" \
        run --placement "$work/three.txt" -- true || return
    refuses 2 "placement-old.json: JSON, expected lines of text: \`dualpipe topo place --convert " \
        run --placement "$DP_TEST_DATA/cli/topo/placement-old.json" -- true || return
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
    ! grep -q "^NCCL_NET=" "$work/out" || wrong "asks for the net of a plugin that is not loaded" || return
    tells 'net plugin  not used: NCCL_NET_PLUGIN=none' || return
    NCCL_NET=Socket NCCL_TUNER_PLUGIN=none run run --links intra=1 -- true || return
    tells 'net plugin  not used: NCCL_NET=Socket' 'tuner       not used: NCCL_TUNER_PLUGIN=none'
}

# What a shell would set is what a command finds.
prints_what_a_command_finds()
{
    NCCL_NET=Socket DUALPIPE_PLACEMENT=/some/file run run --print || return
    tells "NCCL_NET=Socket stays, it was set before" "placement   /some/file, as it was set before" || return
    ! grep -q 'NCCL_NET=' "$work/out" || wrong "$(cat "$work/out")"
}

checks_the_report_before_the_job()
{
    refuses 1 "$work/none/report: No such file" run --report "$work/none/report" -- touch "$work/it" || return
    [ ! -e "$work/it" ] || wrong 'the job began'
}

preloads_nothing_before_a_sanitizer()
{
    case $DP_CC in
    *-fsanitize*) return ;; # nothing is preloaded
    esac
    echo 'int main(void) { return 0; }' >"$work/sane.c"
    # shellcheck disable=SC2086 # words
    ${DP_CC%% *} -fsanitize=address -o "$work/sane" "$work/sane.c" 2>/dev/null && "$work/sane" ||
        skip 'no AddressSanitizer here'
    grep -q 'libasan\.so' "$work/sane" || skip 'AddressSanitizer is not a shared library here'
    run run -- "$work/sane" || return
    tells 'preload     not added: the command is built with a sanitizer' || return
    PATH=$work:$PATH run run -- sane || return
    LD_PRELOAD=$(${DP_CC%% *} -print-file-name=libasan.so) run run --print || return
    grep -q "^export LD_PRELOAD='/.*libasan.so:/.*preload.so'" "$work/out" || wrong "$(cat "$work/out")"
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
    refuses 126 "Permission denied" run -- / || return
    refuses 126 "Permission denied" run --quiet --exec -- / || return
    refuses 127 "cannot run no-such-command: No such file" run -- no-such-command
}

# tells TEXT... - standard error has every one of them.
tells()
{
    for text in "$@"; do
        grep -qF -e "$text" "$work/err" || wrong "no '$text' in: $(cat "$work/err")" || return
    done
}

# await COMMAND... - until it succeeds.
await()
{
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || wrong "not within a minute: $*" || return
        sleep 0.1
    done
}

says_what_is_used_and_what_is_not()
{
    run run --no-net -- true || return
    case $DP_CC in
    *-fsanitize*) ;; # nothing is preloaded
    *) tells "no process that could be seen called CUDA" || return ;;
    esac
    tells "net plugin  not used: --no-net" "tuner       not used: no --table" \
        "profiler    not used: no --traffic or --trace" "placement   not used" \
        "CPUs        not bound: no launcher" "ended after" || return
    RANK=1 WORLD_SIZE=2 run run -- true || return
    [ ! -s "$work/err" ] || wrong "the second rank says: $(cat "$work/err")" || return
    run run --quiet -- true || return
    [ ! -s "$work/err" ] || wrong "--quiet says: $(cat "$work/err")"
}

binds_a_rank_if_it_knows_its_gpu()
{
    RANK=0 WORLD_SIZE=1 LOCAL_RANK=9999 run run --no-bind -- true || return
    tells "CPUs        not bound: --no-bind" || return
    RANK=0 WORLD_SIZE=1 LOCAL_RANK=9999 run run -- true || return
    # Or CPUs that this test was given.
    grep -qE "CPUs +(not bound: there is no GPU 9999 here|[0-9]+, as they were)" "$work/err" ||
        wrong "$(cat "$work/err")" || return
    RANK=0 WORLD_SIZE=1 LOCAL_RANK=x run run -- true >/dev/null && wrong "takes LOCAL_RANK=x"
    tells "LOCAL_RANK=x: expected a number"
}

# Two GPUs on two NUMA nodes of a CPU each; a launcher that starts two ranks on this host.
make_launcher()
{
    for i in 0 1; do
        gpu=$work/gpus/sys/bus/pci/devices/0000:0$i:00.0
        mkdir -p "$gpu" "$work/gpus/sys/devices/system/node/node$i" || return
        echo 0x030200 >"$gpu/class"
        echo 0x10de >"$gpu/vendor"
        echo $i >"$gpu/numa_node"
        echo $i >"$work/gpus/sys/devices/system/node/node$i/cpulist"
    done
    # shellcheck disable=SC2016 # for the shell that it starts
    echo 'for i in 0 1; do
        env "$1=$i" "$2=2" "$3=$i" $4 sed -n "s/^Cpus_allowed_list:\t*//p" /proc/self/status
    done' >"$work/launcher"
}

# ranks_have CPUS VARIABLES... - the ranks that a launcher below starts with these variables may use these.
ranks_have()
{
    expected=$1
    shift
    # shellcheck disable=SC2086 # words
    DUALPIPE_PRELOAD_ROOT=$work/gpus DUALPIPE_LOG_LEVEL=error run run $options -- sh "$work/launcher" "$@" ||
        return
    [ "$(paste -s -d ' ' "$work/out")" = "$expected" ] || wrong "$options, $*: $(cat "$work/out")"
}

binds_the_ranks_of_a_launcher_below_it()
{
    case $DP_CC in
    *-fsanitize*) skip 'nothing is preloaded' ;;
    esac
    all=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
    [ "$(nproc)" = "$(getconf _NPROCESSORS_ONLN)" ] && [ "$all" = "0-$(($(nproc) - 1))" ] && [ "$(nproc)" -gt 1 ] ||
        skip "this test may use the CPUs $all, expected all and two or more"
    make_launcher || return
    options=
    ranks_have '0 1' RANK WORLD_SIZE LOCAL_RANK || return
    tells "not bound: no launcher" "those of one below are bound as they begin" || return
    ranks_have '0 1' OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK || return
    ranks_have '0 1' SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_STEP_ID=0 || return
    ranks_have '1 0' RANK WORLD_SIZE LOCAL_RANK CUDA_VISIBLE_DEVICES=1,0 || return
    ranks_have '1 1' RANK WORLD_SIZE LOCAL_RANK CUDA_VISIBLE_DEVICES=1 || return
    ranks_have "$all $all" RANK WORLD_SIZE LOCAL_RANK CUDA_VISIBLE_DEVICES=GPU-1,GPU-2 || return
    ranks_have "$all $all" NO WORLD_SIZE LOCAL_RANK || return
    ranks_have '1 1' RANK WORLD_SIZE LOCAL_RANK 'taskset -c 1' || return
    for options in --no-bind --no-preload "--placement $DP_TEST_DATA/fuzz/placement/two.txt"; do
        ranks_have "$all $all" RANK WORLD_SIZE LOCAL_RANK || return
    done
}

stays_the_parent_unless_told_otherwise()
{
    # shellcheck disable=SC2016 # for the shell that it starts
    "$dualpipe" run --quiet -- sh -c 'echo $$ $PPID' >"$work/out" &
    wait $!
    [ "$(cut -d ' ' -f 2 "$work/out")" = $! ] || wrong "is not the parent: $(cat "$work/out")" || return
    # shellcheck disable=SC2016
    "$dualpipe" run --quiet --exec -- sh -c 'echo $$ $PPID' >"$work/out" &
    wait $!
    [ "$(cut -d ' ' -f 1 "$work/out")" = $! ] || wrong "is not the command: $(cat "$work/out")"
}

ends_by_the_same_signal()
{
    # shellcheck disable=SC2016
    "$dualpipe" run -- sh -c 'kill -9 $$' 2>"$work/err" &
    status=0
    wait $! || status=$?
    [ $status = 137 ] || wrong "ends with $status" || return
    tells "killed by signal 9"
}

passes_signals_on()
{
    "$dualpipe" run --quiet -- sh -c "trap 'echo got it; exit 5' TERM; echo >$work/ready; sleep 60 & wait" \
        >"$work/out" &
    await [ -e "$work/ready" ] || return
    kill -TERM $!
    status=0
    wait $! || status=$?
    [ $status = 5 ] || wrong "ends with $status" || return
    says "got it"
}

ends_its_command_if_it_is_killed()
{
    # shellcheck disable=SC2016
    "$dualpipe" run --quiet -- sh -c 'echo $$ >"$1.new" && mv "$1.new" "$1" && exec sleep 300' sh "$work/pid" &
    await [ -e "$work/pid" ] || return
    kill -KILL $!
    wait $! || :
    await is_gone "$(cat "$work/pid")"
}

# A program that ignores SIGCHLD leaves it so to what it becomes, and ended children are not kept then.
ends_where_ended_children_are_ignored()
{
    run_python="import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])"
    timeout 60 python3 -c "$run_python" "$dualpipe" run --quiet -- grep SigIgn /proc/self/status \
        >"$work/out" || wrong "ends with $?" || return
    [ $((0x$(cut -f 2 "$work/out") & 0x10000)) != 0 ] || wrong "the command has $(cat "$work/out")"
}

# Typed lines, the size of the window, Ctrl-Z and what continues it, and Ctrl-C, once.
leaves_the_terminal_to_the_command()
{
    cat >"$work/terminal.py" <<'END'
import fcntl, os, pty, signal, struct, sys, termios

command = """trap 'echo interrupted; exit 9' INT
test -t 0 && test -t 1 && echo "a terminal of $(stty size)"
read line; echo "read $line"; sleep 300 & wait"""


def be_the_shell():
    """With job control: the job is a process group in the foreground."""
    sys.stdin.readline()
    job = os.fork()
    if not job:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(sys.argv[1], [sys.argv[1], "run", "--quiet", "--", "sh", "-c", command])
    if os.WIFSTOPPED(os.waitpid(job, os.WUNTRACED)[1]):
        print("stopped", flush=True)
    os.killpg(job, signal.SIGCONT)
    print("continued", flush=True)
    os._exit(os.WEXITSTATUS(os.waitpid(job, 0)[1]))


signal.alarm(100)
pid, terminal = pty.fork()
if not pid:
    be_the_shell()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
seen = b""


def until(text):
    global seen
    while text not in seen:
        seen += os.read(terminal, 4096)


os.write(terminal, b"begin\n")
until(b"a terminal of 33 77")
os.write(terminal, b"hello\n")
until(b"read hello")
os.write(terminal, b"\x1a")
until(b"stopped")
until(b"continued")
os.write(terminal, b"\x03")
until(b"interrupted")
status = os.waitpid(pid, 0)[1]
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 9, status
assert seen.count(b"interrupted") == 1, seen
END
    timeout 120 python3 "$work/terminal.py" "$dualpipe" 2>"$work/err" || wrong "$(cat "$work/err")"
}

is_gone()
{
    ! grep -qs '^State:.[^Z]' "/proc/$1/status"
}

# Signals that are not looked at yet when the command ends: HUP is, TERM is not.
ends_as_the_command_with_signals_pending()
{
    # shellcheck disable=SC2016 # for the shell that it starts
    WORK=$work "$dualpipe" run --quiet -- \
        sh -c 'trap "exit 9" USR1; sleep 60 & echo $$ >$WORK/number; mv $WORK/number $WORK/child; wait' &
    job=$!
    until [ -e "$work/child" ]; do sleep 0.05; done
    child=$(cat "$work/child")
    kill -s STOP $job
    kill -s HUP $job && kill -s TERM $job && kill -s USR1 "$child"
    until is_gone "$child"; do sleep 0.05; done
    kill -s CONT $job
    wait $job
    [ $? = 9 ] || wrong 'does not end as the command did'
}

adds_a_line_for_every_rank()
{
    rm -f "$work/report.json"
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 "$dualpipe" run --report "$work/report.json" -- \
            sh -c "exit $rank" 2>"$work/err$rank" &
    done
    wait
    [ ! -s "$work/err1" ] || wrong "rank 1 says $(cat "$work/err1")" || return
    cp "$work/err0" "$work/err"
    tells "ended after" || return
    [ "$(wc -l <"$work/report.json")" = 2 ] || wrong "$(cat "$work/report.json")" || return
    grep -q '"rank": 1, "size": 2, .*"status": 1, ' "$work/report.json" || wrong "$(cat "$work/report.json")"
}

refuses_reports_that_cannot_be()
{
    refuses 2 "--exec and --report" run --exec --report "$work/alone.json" -- true || return
    refuses 1 "$work/no/such/folder: No such file" run --report "$work/no/such/folder" -- true
}

# A process that has ended before anybody looks is not counted: again, then.
counts_what_the_net_plugin_sent()
{
    for _ in 1 2 3 4 5 6 7 8; do
        run run --report "$work/sent.json" -- "$dualpipe" bench net --sizes 8 --connections 1 \
            --samples 1 --limit 500ms || return
        grep -qE '"processes": [1-9].*"sent_messages": [1-9]' "$work/sent.json" && break
    done
    tells ": sent " || wrong "$(cat "$work/sent.json")"
}

# number OPTION... -- - the rank of each of two processes of torchrun, as their commands have it.
number()
{
    for rank in 0 1; do
        # shellcheck disable=SC2016 # for the shell that it starts
        RANK=$rank LOCAL_RANK=0 WORLD_SIZE=2 "$dualpipe" run "$@" sh -c \
            'echo "$RANK $LOCAL_RANK ${DUALPIPE_PLACEMENT_NUMBERED-no}"' 2>"$work/err$rank" || return
    done >"$work/out"
    cat "$work/err0" "$work/err1" >"$work/err"
}

numbers_the_ranks_of_torchrun_by_the_placement()
{
    sed 's/came_as=0/came_as=9/; s/came_as=1/came_as=0/; s/came_as=9/came_as=1/' \
        "$DP_TEST_DATA/fuzz/placement/two.txt" >"$work/swapped.txt"
    export TORCHELASTIC_USE_AGENT_STORE=True
    number --placement "$work/swapped.txt" -- || return
    [ "$(cat "$work/out")" = '1 0 1
0 0 1' ] || wrong "ranks $(cat "$work/out")" || return
    tells "ranks       by the placement: rank 0 is here, where 1 was" || return
    # shellcheck disable=SC2016
    RANK=0 WORLD_SIZE=2 run run --placement "$work/swapped.txt" -- env "$dualpipe" run \
        --placement "$work/swapped.txt" -- sh -c 'echo "now $RANK"' || return
    says "now 1" || return
    number --placement "$work/swapped.txt" --exec -- || return
    [ "$(head -n 1 "$work/out")" = '1 0 1' ] || wrong "--exec: $(cat "$work/out")" || return
    number --placement "$work/swapped.txt" --no-reorder -- || return
    [ "$(cat "$work/out")" = '0 0 no
1 0 no' ] || wrong "--no-reorder: $(cat "$work/out")" || return
    tells "ranks       as they came: --no-reorder" || return
    unset TORCHELASTIC_USE_AGENT_STORE
    number --placement "$work/swapped.txt" -- || return
    tells "rank 0 would go to node0, and the others look for it at MASTER_ADDR" || return
    number --placement "$DP_TEST_DATA/fuzz/placement/two.txt" -- || return
    tells "as they came, which is the order of the placement" || return
    number --placement "$DP_TEST_DATA/fuzz/placement/four.txt" -- || return
    tells "as they came: 2 processes, and the placement is for 4"
}

leaves_ranks_to_mpi_and_slurm()
{
    # shellcheck disable=SC2016
    OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 run run \
        --placement "$work/swapped.txt" -- sh -c 'echo $OMPI_COMM_WORLD_RANK ${RANK-none}' || return
    says "0 none" || return
    tells "ranks       as OpenMPI numbers them: only torchrun's can be changed" || return
    SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 run run --placement "$work/swapped.txt" -- true || return
    tells "ranks       as Slurm numbers them"
}

traces_what_nccl_does()
{
    # shellcheck disable=SC2016 # for the shell that it starts
    run run --trace "$work/trace.json" -- sh -c \
        'echo $DUALPIPE_PROFILER_TRACE $DUALPIPE_PROFILER_STAT $DUALPIPE_NET_PROFILE $NCCL_PROFILER_PLUGIN' || return
    says "$work/trace.json 1 1 /" "libnccl-profiler-dualpipe.so" || return
    tells "libnccl-profiler-dualpipe.so, to $work/trace.json" || return
    # shellcheck disable=SC2016
    run run --no-net --trace "$work/trace.json" -- sh -c 'echo "<$DUALPIPE_NET_PROFILE>"' || return
    says "<>" || return
    refuses 1 "No such file" run --trace "$work/none/trace.json" -- true
}

counts_what_ranks_send_each_other()
{
    echo old >"$work/traffic"
    # shellcheck disable=SC2016
    run run --traffic "$work/traffic" -- sh -c 'echo $DUALPIPE_PROFILER_TRAFFIC $NCCL_PROFILER_PLUGIN' || return
    says "$work/traffic /" "libnccl-profiler-dualpipe.so" || return
    grep -qx old "$work/traffic" || wrong "what the file had is gone"
    refuses 1 "No such file" run --traffic "$work/none/traffic" -- true
}

says_with_the_variables_what_is_used_and_why()
{
    run run --no-net --print || return
    tells "net plugin  not used: --no-net" "CPUs        bound when the job starts" || return
    run run --quiet --print || return
    [ ! -s "$work/err" ] || wrong "--quiet says: $(cat "$work/err")"
}

it gives_the_command_both_plugins
it gives_no_tuner_without_a_table_or_a_model
it leaves_out_what_is_not_wanted
it finds_the_table_from_anywhere
it works_out_links
it finds_the_placement_from_anywhere
it refuses_a_placement_that_is_none
it keeps_what_is_set
it prints_what_a_command_finds
it checks_the_report_before_the_job
it preloads_nothing_before_a_sanitizer
it passes_arguments_and_the_status_on
it prints_what_a_shell_takes
it refuses_a_table_with_a_mistake
it says_why_a_command_cannot_run
it says_what_is_used_and_what_is_not
it binds_a_rank_if_it_knows_its_gpu
it binds_the_ranks_of_a_launcher_below_it
it stays_the_parent_unless_told_otherwise
it ends_by_the_same_signal
it passes_signals_on
it leaves_the_terminal_to_the_command
it ends_as_the_command_with_signals_pending
it ends_its_command_if_it_is_killed
it ends_where_ended_children_are_ignored
it adds_a_line_for_every_rank
it refuses_reports_that_cannot_be
it counts_what_the_net_plugin_sent
it numbers_the_ranks_of_torchrun_by_the_placement
it leaves_ranks_to_mpi_and_slurm
it traces_what_nccl_does
it counts_what_ranks_send_each_other
it says_with_the_variables_what_is_used_and_why
finish
