# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# real.sh - for the tests that run the real NCCL: sourced, it skips all where that cannot be, says
# where plugin and NCCL are, and runs jobs.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

cache=${DP_TEST_CACHE:-$PWD/cache}/nccl
package=${DP_TEST_NCCL:-nvidia-nccl-cu13==2.28.9}
libnccl=$cache/$package/libnccl.so.2
job=tests/simcuda/nccl-job
libnvml=tests/simcuda/.libs/libnvidia-ml.so.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# skip_all WHY
skip_all()
{
    case_skipped "$1"
    cases_end
    exit
}

[ -x $job ] || skip_all 'the simulated CUDA is written for x86-64'
[ -e "$libnccl" ] || skip_all "no $package: $(tail -n 1 "$cache/why" 2>/dev/null |
    grep . || echo 'sh tests/simcuda/fetch.sh loads it, as tests/run.sh does')"
case " $DP_CC " in
*-fsanitize=thread*) skip_all 'the thread sanitizer cannot see what NCCL does and takes it for races' ;;
esac

plugin=$PWD/nccl-plugin/.libs/libnccl-net-dualpipe.so
NCCL_NET_PLUGIN=$plugin
NCCL_NET=dualpipe
NCCL_DEBUG=INFO
NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,TUNING
export NCCL_NET_PLUGIN NCCL_NET NCCL_DEBUG NCCL_DEBUG_SUBSYS

# NCCL leaves some of its own memory behind; ours would not have this function below it.
echo 'leak:ncclCalloc' >"$work/leaks"
export LSAN_OPTIONS="suppressions=$work/leaks:print_suppressions=0"

status=0
why=$($job "$libnccl" $libnvml 2>&1) || status=$?
case $status in
0) ;;
77) skip_all "$why" ;;
*)
    case_is "$package can be loaded" "$why"
    cases_end
    exit 1
    ;;
esac

# job ARGUMENT... - run it; what is wrong, if anything. NCCL's log is in $work/log.
job()
{
    options=
    while [ "${1#--}" != "$1" ]; do
        options="$options $1 $2"
        shift 2
    done
    # shellcheck disable=SC2086 # words
    $job $options "$libnccl" $libnvml "$@" >"$work/log" 2>&1 || {
        echo "status $?"
        grep -vE ' NCCL INFO ' "$work/log" | tail -n 15
    }
}

# logged PATTERN - nothing if NCCL's log has it.
logged()
{
    grep -qE -e "$1" "$work/log" || echo "NCCL's log does not have: $1"
}

not_logged()
{
    grep -m 1 -E -e "$1" "$work/log" || :
}
