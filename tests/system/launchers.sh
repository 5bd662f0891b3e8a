#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# launchers.sh - the training job as other programs start it, with the losses of one process: by torchrun's
# variables over two network namespaces, as two hosts are, and by torchrun itself in the long form, where
# python3 (or $PYTHON) has torch; by Slurm's variables, and in the script of sbatch; and by PMIx's.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

"$dualpipe" train --help >/dev/null 2>&1 || {
    it skip 'this build cannot train'
    finish
}
if [ "${DP_TWO_HOSTS:-}" != inside ] && unshare -n true 2>/dev/null; then
    DP_TWO_HOSTS=inside
    export DP_TWO_HOSTS
    rm -rf "$work" # the script begins anew, and makes another
    exec unshare -n sh "$0"
fi

cd "$work" || exit 1
cp "$DP_TOP_SRCDIR/LICENSE" text || exit 1
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID \
    SLURM_NTASKS SLURM_JOB_ID DUALPIPE_COMM_ADDRESS
port=$((20000 + $$ % 20000))
job='train --data text --steps 2 --layers 2 --width 16 --heads 2 --context 16 --json'

losses()
{
    sed -n 's/.*"event":"step".*\("loss":[^,]*\).*/\1/p' "$1"
}

# ---- two hosts ------------------------------------------------------------------------------------

far=
trap 'kill $far 2>/dev/null; rm -rf "$work"' EXIT
no_hosts=

on_far()
{
    nsenter -t "$far" -n "$@"
}

# 10.99.0.1 here, 10.99.0.2 in the other namespace; else $no_hosts says why not.
two_hosts()
{
    [ "${DP_TWO_HOSTS:-}" = inside ] || no_hosts='this user may not make a network namespace (unshare -n)'
    for tool in ip nsenter; do
        command -v $tool >/dev/null || no_hosts="$tool is not installed"
    done
    [ -z "$no_hosts" ] || return 0
    unshare -n sleep 250 &
    far=$!
    tries=0
    until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do
        tries=$((tries + 1))
        [ $tries -lt 1000 ] || no_hosts='the second network namespace did not come'
        [ -z "$no_hosts" ] || return 0
    done
    ip link set lo up
    on_far ip link set lo up
    ip link add near0 type veth peer name far0 2>why || no_hosts="this kernel makes no veth pair: $(cat why)"
    [ -z "$no_hosts" ] || return 0
    ip link set far0 netns $far
    ip addr add 10.99.0.1/24 dev near0
    ip link set near0 up
    on_far ip addr add 10.99.0.2/24 dev far0
    on_far ip link set far0 up
}

# ---- ranks ----------------------------------------------------------------------------------------

# two_ranks HOW - start COMMAND of rank 0 and of rank 1 by HOW RANK, and compare losses.
two_ranks()
{
    rank 1 >one.out 2>one.err &
    side=$!
    status=0
    rank 0 >zero.out 2>zero.err || status=$?
    wait $side || status=$?
    [ $status = 0 ] || wrong "status $status: $(cat zero.err one.err)" || return
    losses zero.out >together
    [ -s together ] || wrong "no losses: $(cat zero.out)" || return
    diff alone together
}

# Rank 1 on the other host.
torchrun_variables_over_two_hosts()
{
    [ -z "$no_hosts" ] || skip "$no_hosts"
    # shellcheck disable=SC2317 # called by two_ranks
    rank()
    {
        side_of=
        [ "$1" = 0 ] || side_of=on_far
        # shellcheck disable=SC2086 # words
        RANK=$1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=10.99.0.1 MASTER_PORT=$port \
            $side_of timeout 120 "$dualpipe" $job -P 2 $transport
    }
    two_ranks
}

# By addresses that are of use on one link only; the link has another number on the other host.
link_local_addresses()
{
    [ -z "$no_hosts" ] || skip "$no_hosts"
    ip -6 addr add fe80::99:1/64 dev near0 nodad 2>why && on_far ip -6 addr add fe80::99:2/64 dev far0 nodad 2>why ||
        skip "this kernel has no IPv6: $(cat why)"
    # shellcheck disable=SC2317 # called by two_ranks
    rank()
    {
        side_of='' device=near0
        [ "$1" = 0 ] || side_of=on_far device=far0
        # shellcheck disable=SC2086 # words
        RANK=$1 WORLD_SIZE=2 MASTER_ADDR=fe80::99:1%$device MASTER_PORT=$((port + 30)) \
            DUALPIPE_COMM_TIMEOUT_MS=10000 $side_of timeout 120 "$dualpipe" $job -P 2
    }
    two_ranks
}

slurm_variables()
{
    # shellcheck disable=SC2317 # called by two_ranks
    rank()
    {
        # shellcheck disable=SC2086 # words
        SLURM_PROCID=$1 SLURM_NTASKS=2 SLURM_LOCALID=$1 SLURM_JOB_ID=$port SLURM_STEP_ID=0 \
            SLURM_STEP_NODELIST="localhost" timeout 120 "$dualpipe" $job -P 2
    }
    two_ranks
}

# The command in the script of sbatch, without srun: it starts its ranks itself.
slurm_batch_script()
{
    # shellcheck disable=SC2086 # words
    SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_JOB_ID=$port SLURM_JOB_NODELIST=nowhere \
        timeout 120 "$dualpipe" $job -P 2 >batch.out 2>batch.err || wrong "$(cat batch.err)" || return
    losses batch.out | diff alone -
}

pmix_variables()
{
    # shellcheck disable=SC2317 # called by two_ranks
    rank()
    {
        # shellcheck disable=SC2086 # words
        PMIX_RANK=$1 PMIX_NAMESPACE="job-$port" SLURM_NTASKS=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 20)) \
            timeout 120 "$dualpipe" $job -P 2
    }
    two_ranks
}

# ranks_that_differ_say SENTENCE TEXT0 OPTIONS0 TEXT1 OPTIONS1 - both ranks end, and say why.
ranks_that_differ_say()
{
    sentence=$1 options0=$3 options1=$5
    rm -rf side0 side1 && mkdir side0 side1 && cp "$2" side0/text && cp "$4" side1/text || return
    # shellcheck disable=SC2317 # called by two_ranks
    rank()
    {
        options=$options0
        [ "$1" = 0 ] || options=$options1
        # shellcheck disable=SC2086 # words
        (cd "side$1" && RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 40)) \
            timeout 120 "$dualpipe" $job -P 2 -s 1f1b -M 4 $options)
    }
    ! (two_ranks >said) || wrong "ranks that differ go on" || return
    for side in zero one; do
        grep -qF -e "$sentence" $side.err || wrong "$side: no '$sentence' in: $(cat $side.err)" || return
    done
}

# The same by torchrun, which pip installs; it starts no Python of the job's.
torchrun_over_two_hosts()
{
    python=${PYTHON:-python3}
    [ -n "${DP_TEST_FULL:-}" ] || skip 'torchrun itself: --full runs it'
    "$python" -c 'import torch' 2>/dev/null || skip "no torch for $python: pip install torch, or set PYTHON"
    [ -z "$no_hosts" ] || skip "$no_hosts"
    # shellcheck disable=SC2317 # called by two_ranks
    rank()
    {
        side_of='' device=near0
        [ "$1" = 0 ] || side_of=on_far device=far0
        # shellcheck disable=SC2086 # words
        GLOO_SOCKET_IFNAME=$device $side_of timeout 240 "$python" -m torch.distributed.run --nnodes 2 \
            --nproc-per-node 1 --node-rank "$1" --master-addr 10.99.0.1 --master-port $((port + 10)) \
            --no-python "$dualpipe" $job -P 2
    }
    two_ranks
}

two_hosts
[ "${DP_TWO_HOSTS:-}" != inside ] || ip link set lo up 2>/dev/null || :
# shellcheck disable=SC2086 # words
"$dualpipe" $job --schedule none >alone.out 2>err || { cat err; exit 1; }
losses alone.out >alone
transport=''
it torchrun_variables_over_two_hosts
transport='--transport tcp'
it torchrun_variables_over_two_hosts
it link_local_addresses
it torchrun_over_two_hosts
it slurm_variables
it slurm_batch_script
it pmix_variables
sed 's/the/THE/' text >another
it ranks_that_differ_say "--data: rank 1 has $(wc -c <another) bytes with the digest " text '' another ''
it ranks_that_differ_say '--blocks: rank 1 has 3,1, rank 0 has 2,2' \
    text '--layers 4 --blocks 2,2' text '--layers 4 --blocks 3,1'
it ranks_that_differ_say '--lr: rank 1 has 1.5, rank 0 has 1' text '--lr 1' text '--lr 1.5'
it ranks_that_differ_say '--survive (1: yes, 0: no): all ranks must agree; rank 0 has 0, but rank 1 has 1' \
    text '-s dualpipe' text '-s dualpipe --survive'
it ranks_that_differ_say '--tie-embeddings: rank 1 has set, rank 0 has not set' text '' text --tie-embeddings
it ranks_that_differ_say '--save: rank 1 has set, rank 0 has not set' text '' text '--save a'
it ranks_that_differ_say '--blocks: rank 1 has not set, rank 0 has 2,2' \
    text '--layers 4 --blocks 2,2' text '--layers 4'
finish
