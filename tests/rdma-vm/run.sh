#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh - run a command in a throw-away machine that has RDMA devices; see README.md.
set -eu
PATH=$PATH:/usr/sbin:/sbin

usage="usage: sh tests/rdma-vm/run.sh [OPTION...] [--] COMMAND [ARGUMENT...]

Runs COMMAND as root in a virtual machine with Soft-RoCE devices on two NUMA nodes, on this machine's
files, passes its output on and exits with its status. What it writes is dropped.

  --devices N    RDMA devices of a guest (2)
  --hosts N      guests, joined by a network; each runs COMMAND with its number, from 0, in
                 RDMA_VM_HOST, and its lines of output begin with [NUMBER] (1)
  --cpus N       virtual processors of a guest, an even number (2)
  --memory MIB   memory of a guest (1024)
  --limit S      the longest that all of it may take, in seconds (300)
  --single       emulate all processors in one thread: slower, but not known to hang
  --help         this

Exit status: COMMAND's, 124 if it took too long, 125 if a guest did not come up or hung, 77 if there
cannot be one here."

die()
{
    echo "run.sh: $*" >&2
    exit 2
}

cannot()
{
    echo "run.sh: $*" >&2
    exit 77
}

# number OPTION VALUE LEAST MOST
number()
{
    case $2 in
    '' | *[!0-9]*) die "$1 wants a number from $3 to $4, not '$2'" ;;
    esac
    [ "$2" -ge "$3" ] && [ "$2" -le "$4" ] || die "$1 wants a number from $3 to $4, not '$2'"
}

# Of a busy machine; an idle one needs five seconds.
boot_s=120

devices=2 hosts=1 cpus=2 memory_mib=1024 limit_s=300 thread=multi
while [ $# -gt 0 ]; do
    case $1 in
    --help)
        echo "$usage"
        exit 0
        ;;
    --single) thread=single ;;
    --devices | --hosts | --cpus | --memory | --limit)
        [ $# -ge 2 ] || die "$1 needs a value; --help explains"
        case $1 in
        --devices) number "$1" "$2" 1 14 && devices=$2 ;;
        --hosts) number "$1" "$2" 1 4 && hosts=$2 ;;
        --cpus) number "$1" "$2" 2 64 && cpus=$2 ;;
        --memory) number "$1" "$2" 256 65536 && memory_mib=$2 ;;
        --limit) number "$1" "$2" 1 86400 && limit_s=$2 ;;
        esac
        shift
        ;;
    --)
        shift
        break
        ;;
    -*) die "unknown option '$1'; --help lists them" ;;
    *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || die "no command; --help explains"
[ $((cpus % 2)) = 0 ] || die "--cpus wants an even number, half for each NUMA node, not '$cpus'"

for tool in qemu-system-x86_64 busybox ip rdma setpriv; do
    command -v $tool >/dev/null || cannot "needs $tool, which is not there"
done
here=$(cd "$(dirname "$0")" && pwd)
cache=$(sh "$here/kernel.sh" find 2>&1) || cannot "$cache"

work=$(mktemp -d)
pids=
stop()
{
    for pid in $pids; do kill "$pid" 2>/dev/null || :; done
    for pid in $pids; do wait "$pid" 2>/dev/null || :; done
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 143' HUP INT TERM

# ---- what the guests start from -------------------------------------------------------------------

mkdir -p "$work/first/bin" "$work/first/dev" "$work/first/files" "$work/first/host" \
    "$work/first/proc" "$work/first/sys" "$work/first/written"
cp "$(command -v busybox)" "$work/first/bin/busybox"
cp -r "$cache/modules" "$work/first/modules"
cp "$here/init.sh" "$work/first/init"
chmod +x "$work/first/init"
(cd "$work/first" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initramfs"

quoted()
{
    printf "'%s' " "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"
}

# start_script HOST COMMAND... - what init.sh goes on with: this environment, directory and command.
start_script()
{
    export -p
    echo "cd $(quoted "$PWD")"
    printf 'exec sh '
    for word in "$here/guest.sh" "$1" "$devices"; do quoted "$word"; done
    shift
    for word; do quoted "$word"; done
    echo
}

# ---- a guest --------------------------------------------------------------------------------------

share()
{
    printf ' -fsdev local,id=%s,path=%s,security_model=none,multidevs=remap%s' "$1" "$2" "$3"
    printf ' -device virtio-9p-pci,fsdev=%s,mount_tag=%s' "$1" "$1"
}

# The processors and the memory, one half a node.
numa()
{
    for node in 0 1; do
        printf ' -object memory-backend-ram,id=memory%d,size=%dM' $node $((memory_mib / 2))
        printf ' -numa node,nodeid=%d,memdev=memory%d,cpus=%d-%d' $node $node \
            $((node * cpus / 2)) $(((node + 1) * cpus / 2 - 1))
    done
    echo ' -numa dist,src=0,dst=1,val=21'
}

# The network cards, each behind a root port of its own on a PCI bridge of its NUMA node; and the
# wire, a hub in QEMU, which the other guests are joined to in a star around guest 0.
network()
{
    i=0
    while [ $i -lt "$devices" ]; do
        printf ' -device pxb-pcie,id=bridge%d,bus_nr=%d,numa_node=%d,bus=pcie.0' \
            $i $((16 * (i + 1))) $((i % 2))
        printf ' -device pcie-root-port,id=port%d,bus=bridge%d,chassis=%d,slot=%d' \
            $i $i $((i + 1)) $((i + 1))
        printf ' -netdev hubport,id=nic%d,hubid=0' $i
        printf ' -device vmxnet3,bus=port%d,netdev=nic%d,mac=02:00:00:00:%02x:%02x' $i $i "$1" $i
        i=$((i + 1))
    done
    peer=0
    while [ $peer -lt "$hosts" ]; do
        if [ $peer != "$1" ] && { [ $peer = 0 ] || [ "$1" = 0 ]; }; then
            printf ' -netdev dgram,id=to%d,local.type=unix,local.path=%s,' $peer "$work/$1-$peer"
            printf 'remote.type=unix,remote.path=%s' "$work/$peer-$1"
            printf ' -netdev hubport,id=link%d,hubid=0,netdev=to%d' $peer $peer
        fi
        peer=$((peer + 1))
    done
}

# guest HOST - one machine, until its end; what it says is in $work/HOST/. QEMU dies with its parent.
guest()
{
    # shellcheck disable=SC2046 # words
    exec setpriv --pdeathsig TERM timeout --foreground -k 5 "$limit_s" \
        setpriv --pdeathsig KILL qemu-system-x86_64 \
        -accel "tcg,thread=$thread" -machine q35 -cpu max,la57=off -m "$memory_mib" \
        -smp "$cpus,sockets=2" -nodefaults -no-user-config -display none -no-reboot \
        -device i6300esb -action watchdog=poweroff -serial "file:$work/$1/console" \
        -kernel "$cache/vmlinux" -initrd "$work/initramfs" \
        -append 'console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr tsc=reliable
            random.trust_cpu=on cryptomgr.notests no_timer_check i6300esb.heartbeat=120' \
        $(share host / ,readonly=on) $(share run "$work/$1" '') $(numa) $(network "$1") \
        </dev/null >"$work/$1/qemu" 2>&1
}

# pass_on HOST STREAM - a stream of the guest, while its QEMU lives and to the end.
pass_on()
{
    tail -q -f -s 0.1 -n +1 --pid="$pid" "$work/$1/$2" |
        if [ "$hosts" = 1 ]; then cat; else sed -u "s/^/[$1] /"; fi
}

begun_s=$(date +%s)
host=0
while [ $host -lt "$hosts" ]; do
    mkdir "$work/$host"
    : >"$work/$host/out"
    : >"$work/$host/err"
    start_script $host "$@" >"$work/$host/start"
    guest $host &
    pid=$!
    pass_on $host out &
    tails="${tails-} $!"
    pass_on $host err >&2 &
    tails="$tails $!"
    pids="$pids $pid"
    host=$((host + 1))
done

# ---- its end --------------------------------------------------------------------------------------

elapsed_s()
{
    echo $(($(date +%s) - begun_s))
}

# await_ready HOST PID - until the guest runs its command. The watchdog sleeps while it boots.
await_ready()
{
    until [ -s "$work/$1/ready" ] || ! kill -0 "$2" 2>/dev/null; do
        [ "$(elapsed_s)" -lt $boot_s ] || kill "$2" 2>/dev/null || :
        sleep 0.2
    done
}

# outcome HOST - the status of a guest whose QEMU is over, and why if that is not the command's.
outcome()
{
    if [ -s "$work/$1/status" ]; then
        cat "$work/$1/status"
        return
    elif [ -n "$missing" ] && [ "$1" != "$missing" ]; then
        echo "run.sh: guest $1 was stopped, as guest $missing did not come up" >&2
        echo 125
        return
    fi
    tail -n 20 "$work/$1/qemu" "$work/$1/console" >&2 2>/dev/null || :
    if [ ! -s "$work/$1/ready" ]; then
        echo "run.sh: guest $1 did not come up within $(elapsed_s) s" >&2
        echo 125
    elif [ "$(elapsed_s)" -ge "$limit_s" ]; then
        echo "run.sh: guest $1 was stopped after $limit_s s" >&2
        echo 124
    else
        echo "run.sh: guest $1 hung, or crashed, while the command ran" >&2
        echo 125
    fi
}

# The others would wait for a guest that does not come up.
host=0 missing=
for pid in $pids; do
    await_ready $host "$pid"
    if [ -z "$missing" ] && [ ! -s "$work/$host/ready" ]; then
        missing=$host
        # shellcheck disable=SC2086 # words
        kill $pids 2>/dev/null || :
    fi
    host=$((host + 1))
done
host=0 status=0
for pid in $pids; do
    wait "$pid" || :
    ended=$(outcome $host)
    [ "$ended" = 0 ] || [ $status != 0 ] || status=$ended
    host=$((host + 1))
done
for tail in $tails; do wait "$tail" || :; done
pids=
exit "$status"
