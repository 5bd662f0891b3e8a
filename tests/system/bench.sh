#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench.sh - `dualpipe bench` and dp-bench: every command measures something and says so. Whether the
# figures are any good is not asked here.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

brief="--samples 1 --limit 200ms"
developers=$DP_TOP_BUILDDIR/tests/bench/dp-bench
[ ! -x "$DP_TOP_BUILDDIR/tests/bench/.libs/dp-bench" ] || developers=$DP_TOP_BUILDDIR/tests/bench/.libs/dp-bench
DUALPIPE=$dualpipe
export DUALPIPE

bench()
{
    case $1 in
    comm | net | offload | step | wire) run bench "$@" ;;
    *) dualpipe=$developers && run "$@" ;;
    esac
}

# measures WORDS ARGUMENT... - prints a table that has these words, and JSON that has figures.
measures()
{
    words=$1
    shift
    # shellcheck disable=SC2086 # words
    bench "$@" $brief || return
    # shellcheck disable=SC2086 # words
    says median best target load $words || return
    command -v jq >/dev/null || return 0
    # shellcheck disable=SC2086 # words
    bench "$@" $brief --json || return
    jq -es 'length > 0 and all(.[]; .figures | length > 0 and all(.[]; .median > 0 or .what == "  CPU of all ranks"))' \
        "$work/out" >/dev/null || wrong "no figures: $(cat "$work/out")" || return
    jq -es 'all(.[].figures[]; .quartiles[0] <= .median and .median <= .quartiles[1])' \
        "$work/out" >/dev/null || wrong "quartiles that are none: $(cat "$work/out")"
}

refuses_what_no_schedule_can_be()
{
    refuses 2 "expected at least" bench step dualpipe -P 2 -M 2 || return
    refuses 2 "async and --schedule 1f1b: expected one of them" bench step async -s 1f1b || return
    refuses 2 "--schedule asynch: expected one of" bench step --schedule asynch || return
    refuses 2 "--execution messages: expected --schedule async, not dualpipe" bench step --execution messages ||
        return
    refuses 2 "--compute spin with -P 256: expected a core for each rank" bench step -P 256 -M 512 --compute spin ||
        return
    refuses 2 "--late: expected no --json" bench step --late 1 --json || return
    refuses 2 "--late: expected no kind async" bench step async --late 1
}

explains_a_step_whose_ops_compute()
{
    [ "$(nproc)" -ge 2 ] || skip "fewer than 2 cores" || return
    # shellcheck disable=SC2086 # words
    bench step 1f1b -P 2 -M 4 --cost f=1,b=1 --compute spin --late 3 $brief || return
    says "late in the last step" "because of" || return
    [ "$(grep -cE '^[FB]0\.[0-3] +[01] +[0-9.]+  ' "$work/out")" -le 3 ] || wrong "more than 3 ops: $(cat "$work/out")"
}

# Its table is its own.
measures_copies()
{
    bench copy --largest 4KiB --samples 1 --limit 1ms &&
        says "4 KiB" "1 thread" "2 threads, a copy each" ">= 0.97" &&
        bench copy --largest 4KiB --samples 1 --limit 1ms --json &&
        says '"what": "4 KiB, 1 thread: ours over libc"' '"at_least": 0.97'
}

refuses_what_nothing_can_be_measured_of()
{
    dualpipe=$developers
    refuses 2 "expected an even number" schedule dualpipe -P 3 -M 8 || return
    refuses 2 "--smallest is more than --largest, expected at most as much" copy --smallest 2MiB --largest 1MiB
}

refuses_a_model_that_needs_no_copies()
{
    refuses 2 "4 slots for 4 shards: expected fewer" bench offload -n 4 -k 4 || return
    for device in gpu cudafoo; do
        refuses 2 "--device $device: expected host, cuda or cuda:N" bench offload --device $device || return
    done
    refuses 2 "expected no --link" bench offload --device cuda --link 1G || return
    refuses 2 "expected no --workers" bench offload --device cuda -w 3 || return
    DUALPIPE_DEVICE_CUDA_LIBRARY=$work/none refuses 1 "no CUDA driver" bench offload --device cuda
}

refuses_more_sockets_than_a_connection_has()
{
    refuses 2 "--sockets 17: expected a whole number from 0 to 16" bench wire --sockets 17
}

# On the simulated CUDA, whose kernels run on the CPU. Ops of a rank lie within its step, one after the other.
# measures_kernels_on_a_gpu KIND OPTION...
measures_kernels_on_a_gpu()
{
    sim=$DP_TOP_BUILDDIR/tests/simcuda/.libs/libsimcuda.so
    [ -f "$sim" ] || skip 'no simulated CUDA in this build'
    "$dualpipe" train --help >/dev/null 2>&1 || skip "'dualpipe train' was not built"
    case " $DP_CC " in
    *-fsanitize=thread*) skip 'the thread sanitizer does not know the stacks that simulated threads have' ;;
    esac
    printf simulated >"$work/kernels"
    echo leak:libcublasLt >"$work/leaks" # what it leaves behind where it does not start, as without a GPU
    LSAN_OPTIONS="suppressions=$work/leaks:print_suppressions=0"
    export LSAN_OPTIONS
    # shellcheck disable=SC2086 # words
    DUALPIPE_DEVICE_CUDA_LIBRARY=$sim run bench step --device cuda --kernels "$work/kernels" "$@" \
        --width 4 --context 2 --batch 1 $brief --json || return
    says "micro-batches, cuda" "layers 1, width 4" "over critical path" || return
    command -v jq >/dev/null || return 0
    jq -es '[.[].figures[].median] | .[0] > 0 and .[3] > 0 and .[3] <= 2 * .[1]' "$work/out" >/dev/null ||
        wrong "ops that take no time, or more than the ranks have: $(cat "$work/out")"
}

# Messages by the real NCCL.
measures_kernels_with_nccl()
{
    libnccl=${DP_TEST_CACHE:-$DP_TOP_BUILDDIR/cache}/nccl/${DP_TEST_NCCL:-nvidia-nccl-cu13==2.28.9}/libnccl.so.2
    [ -e "$libnccl" ] || skip "no NCCL: sh tests/simcuda/fetch.sh loads it, as tests/run.sh does"
    LD_LIBRARY_PATH=$DP_TOP_BUILDDIR/tests/simcuda/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    SIMCUDA_NCCL=$libnccl DUALPIPE_NCCL_LIBRARY=$libnccl SIMCUDA_LOOKS=1
    NCCL_SOCKET_IFNAME=lo NCCL_NET_PLUGIN=none NCCL_RAS_ENABLE=0 NCCL_MAX_NCHANNELS=1 NCCL_BUFFSIZE=131072
    export LD_LIBRARY_PATH SIMCUDA_NCCL DUALPIPE_NCCL_LIBRARY SIMCUDA_LOOKS NCCL_SOCKET_IFNAME NCCL_NET_PLUGIN \
        NCCL_RAS_ENABLE NCCL_MAX_NCHANNELS NCCL_BUFFSIZE
    measures_kernels_on_a_gpu "$@" --transport nccl && says nccl
}

refuses_what_no_gpu_does()
{
    "$dualpipe" train --help >/dev/null 2>&1 || skip "'dualpipe train' was not built"
    refuses 2 "--transport nccl: expected --device cuda" bench step --transport nccl || return
    refuses 2 "--kernels: expected --device cuda" bench step --kernels "$DP_TOP_SRCDIR/LICENSE" || return
    refuses 2 "--device cuda: expected no --cost" bench step --device cuda --cost f=1 || return
    refuses 2 "--device gpu: expected cpu, cuda or cuda:N" bench step --device gpu || return
    refuses 2 "--width 100: expected at most 64, or a multiple" bench step --device cuda --width 100 || return
    DUALPIPE_DEVICE_CUDA_LIBRARY=$work/none refuses 1 "no CUDA driver" bench step --device cuda \
        --kernels "$DP_TOP_SRCDIR/LICENSE" 1f1b -P 2 -M 2
}

# Stand-ins for peers: one that is installed but does not work, and one that takes no time for the orders
# that it gets.
stands_beside_peers_that_work()
{
    mkdir -p "$work/bin"
    printf '#!/bin/sh\necho sorry\nexit 1\n' >"$work/bin/ucx_perftest"
    cat >"$work/bin/mpirun" <<'EOF'
#!/bin/sh
echo a line of its own
while read -r test size times warmup; do
    case $test in latency | stream) [ $((size * times * warmup)) -gt 0 ] && echo 0.5 ;; esac
done
EOF
    chmod +x "$work/bin/ucx_perftest" "$work/bin/mpirun"
    PATH=$work/bin:$PATH
    # shellcheck disable=SC2086 # words
    DP_BUILD=$DP_TOP_BUILDDIR sh "$DP_TOP_SRCDIR/tests/bench/wire.sh" --transport shm $brief \
        >"$work/out" 2>"$work/err" || wrong "exits with $?: $(cat "$work/err")" || return
    grep -q "UCX posix is left out: its server has ended at once" "$work/err" ||
        wrong "does not say who is left out: $(cat "$work/err")" || return
    says latency GB/s || return
    [ -x "$DP_TOP_BUILDDIR/tests/bench/mpi-peer" ] || return 0
    says "512 KiB, OpenMPI vader " "512 KiB over OpenMPI vader " "512 KiB over the limit" \
        "512 KiB, shared memory over OpenMPI vader " || return
    ! grep -q "shared memory over the limit" "$work/out" || wrong "what is that a limit of?"
}

it measures "build check simulate list" schedule -P 8 -M 16
it measures "build check simulate list" schedule 1f1b -P 4 -M 4
it measures "us/op messages threads" executor -M 8
it measures "critical step CPU shm" step -P 2 -M 4 --cost f=1,i=1,w=1 --transport shm
it measures "critical step CPU" step dualpipe -P 2 -M 4 --cost f=1,i=1,w=1 --latency 1ms --slack 1
it measures "critical step CPU tcp" step 1f1b -P 2 -M 2 --cost f=1,b=2 --transport tcp
it measures "async critical step CPU" step --schedule async -P 2 -M 2 --cost f=1,b=2 --execution messages
it measures "compute-bound balanced copy-bound overlap" offload -n 4 --shard-bytes 64K --link 20M
it measures "all-reduce limit GB/s shm" comm --most 64
it measures "all-reduce GB/s tcp" comm --most 8 --transport tcp --ranks 3
it explains_a_step_whose_ops_compute
it measures_copies
it measures "iteration all-reduce sweep" mixing -N 2 --parameters 4096
it measures "256 GPUs 1024 hosts JSON" topology
it measures "AdamW sweep ms" optimizer --elements 65536 --threads 2
it measures "latency GB/s memcpy shm" wire --transport shm
it measures "latency GB/s memcpy tcp" wire --transport tcp
it measures_kernels_on_a_gpu 1f1b -P 2 -M 2
if [ -n "${DP_TEST_FULL:-}" ]; then
    it measures_kernels_on_a_gpu dualpipe -P 2 -M 4 --dtype f32
    it measures_kernels_on_a_gpu zb1p -P 2 -M 2 --no-graphs
    it measures_kernels_with_nccl dualpipe -P 2 -M 4
fi
it refuses_what_no_gpu_does
it stands_beside_peers_that_work
it refuses_what_no_schedule_can_be
it refuses_what_nothing_can_be_measured_of
it refuses_a_model_that_needs_no_copies
it refuses_more_sockets_than_a_connection_has
finish
