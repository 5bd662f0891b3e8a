#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# doctor.sh - `dualpipe doctor` finds the one thing that is wrong with each machine of
# tests/data/doctor. A machine is a file: healthy.tree, and the others say what differs from it.
#
#       @expect [SEVERITY CHECK TEXT]   all that is not fine; nothing for a healthy machine
#       @file PATH                      its lines follow
#       @link PATH TARGET
#       @remove PATH
#       @library PATH [needs=NAME] SYMBOL...   a shared library
#       @pci PATH NAME=VALUE...         a PCI function, its link as good as it can be
#       @card NAME PATH INTERFACE       an RDMA device on one; on none: a virtual one
#       @acs PATH CONTROL               a function's configuration with ACS, CONTROL in octal
# shellcheck disable=SC2154 # what cases.sh sets
. "$DP_TOP_SRCDIR/tests/system/cases.sh"
command -v jq >/dev/null || { echo 'jq is not installed' && exit 77; }

trees=$DP_TEST_DATA/doctor

library()
{
    path=$1
    shift
    needs=
    case ${1-} in
    needs=*)
        needs=$work/${1#needs=}
        # shellcheck disable=SC2086 # words
        echo 'int unused;' | $DP_CC -fno-sanitize=all -shared -nostdlib -x c -o "$needs" - \
            -Wl,-soname,"${1#needs=}"
        shift
        ;;
    esac
    for symbol; do echo "int $symbol = 1;"; done >"$work/library.c"
    # shellcheck disable=SC2086 # words
    $DP_CC -fno-sanitize=all -shared -fPIC -nostdlib -o "$path" "$work/library.c" \
        -Wl,--no-as-needed ${needs:+"$needs"}
}

# What one writes into a file of sysfs.
put()
{
    mkdir -p "${1%/*}"
    echo "$2" >"$1"
}

pci()
{
    dir=$root/sys/devices/$1
    shift
    for pair; do put "$dir/${pair%%=*}" "${pair#*=}"; done
    mv "$dir/node" "$dir/numa_node"
    for which in current max; do
        put "$dir/${which}_link_width" 16
        put "$dir/${which}_link_speed" '32.0 GT/s PCIe'
    done
    put "$dir/iommu_group/type" identity
    acs "$dir/config" 000
    mkdir -p "$root/sys/bus/pci/devices"
    ln -s "../../../devices/${dir#"$root/sys/devices/"}" "$root/sys/bus/pci/devices/${dir##*/}"
}

card()
{
    dir=$root/sys/class/infiniband/$1
    port=$dir/ports/1
    rm -rf "$dir"
    put "$port/state" '4: ACTIVE'
    put "$port/link_layer" Ethernet
    put "$port/gids/0" fe80:0000:0000:0000:0000:00ff:fe00:0001
    put "$port/gids/1" 0000:0000:0000:0000:0000:ffff:0a0a:0001
    put "$port/gid_attrs/types/0" 'RoCE v2'
    put "$port/gid_attrs/types/1" 'RoCE v2'
    put "$port/gid_attrs/ndevs/0" "$3"
    put "$root/sys/class/net/$3/mtu" 9000
    [ "$2" != none ] || return 0
    ln -s "../../../devices/$2" "$dir/device"
    mkdir -p "$root/sys/bus/pci/drivers/mlx5_core"
    ln -s "../../../../bus/pci/drivers/mlx5_core" "$root/sys/devices/$2/driver"
}

# 4096 bytes; at 0x100 ACS, the last of the list, its control register at 0x106.
acs()
{
    truncate -s 0 "$1"
    truncate -s 4096 "$1"
    printf "\\015\\000\\001\\000\\000\\000\\$2\\000" |
        dd of="$1" bs=1 seek=256 conv=notrunc 2>/dev/null
}

# plant FILE - under $root.
plant()
{
    target=/dev/null
    while IFS= read -r line; do
        case $line in
        '@file '*)
            target=$root${line#@file }
            mkdir -p "${target%/*}"
            : >"$target"
            ;;
        @*)
            target=/dev/null
            # shellcheck disable=SC2086 # words
            set -- $line
            ;;
        *) echo "$line" >>"$target" ;;
        esac
        case $line in
        '@link '*) ln -s "$3" "$root$2" ;;
        '@remove '*) rm -r "$root$2" ;;
        '@library '*) shift && path=$1 && shift && mkdir -p "$root${path%/*}" &&
            library "$root$path" "$@" ;;
        '@pci '*) shift && pci "$@" ;;
        '@card '*) card "$2" "$3" "$4" ;;
        '@acs '*) acs "$root$2" "$3" ;;
        esac
    done <"$1"
}

# An environment's lines end with a 0, as in /proc.
end_environment()
{
    tr '\n' '\0' <"$root/proc/self/environ" >"$work/environ.0"
    mv "$work/environ.0" "$root/proc/self/environ"
}

# finds NAME - exactly what the machine's file expects.
finds()
{
    root=$work/$1
    cp -r "$work/planted" "$root"
    [ "$1" = healthy ] || plant "$trees/$1.tree"
    end_environment
    expected=$(sed -n 's/^@expect *//p' "$trees/$1.tree")
    case $expected in
    fault*) want=4 ;;
    warning*) want=3 ;;
    *) want=0 ;;
    esac
    run doctor --sysfs "$root" --json >/dev/null || :
    [ "$status" = $want ] || wrong "exits with $status, not $want: $(cat "$work/err")" || return
    found=$(jq -r '.findings[] | select(.severity != "fine") |
        "\(.severity) \(.check) \(.what)"' "$work/out")
    case $found in
    *"
"*) wrong "more than one: $found" ;;
    "$expected"*) [ -n "$expected" ] || [ -z "$found" ] || wrong "finds $found" ;;
    *) wrong "expected '$expected', finds '$found'" ;;
    esac
}

# The sentences that a user reads here, about what has been built.
knows_this_machine()
{
    LD_LIBRARY_PATH=$DP_TOP_BUILDDIR/nccl-plugin/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        NCCL_NET_PLUGIN=dualpipe run doctor >/dev/null
    case $status in 0 | 3 | 4) ;; *) wrong "exits with $status: $(cat "$work/err")" || return ;; esac
    says "libnccl-net-dualpipe.so is found as 'libnccl-net-dualpipe.so', by LD_LIBRARY_PATH" \
        "Linux $(uname -r)" "not seen: "
}

tells_every_remedy_in_text()
{
    root=$work/memlock
    run doctor --root "$root" --only limits # the old name of --sysfs
    grep -q "now called --sysfs" "$work/err" || wrong "does not say that --root is an old name" || return
    says "Faults" "only 8.0 MiB" "seen in" "/proc/self/limits" "therefore" "remedy" "ulimit -l"
}

looks_at_a_process()
{
    run doctor --pid $$ --only limits >/dev/null
    says "/proc/$$/limits" || return
    refuses 2 "no process 4194304" doctor --pid 4194304
}

# A machine of which nothing is known.
lives_with_an_empty_tree()
{
    mkdir -p "$work/empty"
    run doctor --sysfs "$work/empty" >/dev/null
    says "no libnccl.so.2" "the environment of the process cannot be read" \
        "which net plugin the process asks for is not known" || return
    ! grep -e 'is not set' -e 'all NCCL_ variables' "$work/out" || wrong "concludes from nothing" || return
    refuses 2 "expected the files of a machine" doctor --sysfs "$work/nowhere"
}

# A process of another user: its environment and its map cannot be read.
concludes_nothing_from_what_it_cannot_read()
{
    root=$work/stranger
    cp -r "$work/planted" "$root"
    mkdir -p "$root/proc/77/environ" "$root/proc/77/maps"
    run doctor --sysfs "$root" --pid 77 --json >/dev/null
    [ "$status" -le 4 ] && [ "$status" != 1 ] || wrong "exits with $status" || return
    says '"which net plugin the process asks for is not known"' \
        '"the libraries of the process cannot be seen"' '"NCCL_NET_PLUGIN: /proc/77/environ cannot' ||
        return
    ! grep -e 'is not set' -e 'known and agree' -e '"fault"' "$work/out" || wrong 'concludes from nothing'
}

# The parent has neither the variables nor the libraries of the job; nor has a launcher below it the latter.
follows_the_child_of_run()
{
    root=$work/run
    cp -r "$work/planted" "$root"
    for process in 70:71 71:72 72:; do
        dir=$root/proc/${process%:*}
        mkdir -p "$dir/task/${process%:*}"
        printf 'NCCL_NET_PLUGIN=none\0' >"$dir/environ"
        echo "${process#*:}" >"$dir/task/${process%:*}/children"
        : >"$dir/maps"
    done
    printf '/usr/bin/dualpipe\0run\0torchrun\0' >"$root/proc/70/cmdline"
    run doctor --sysfs "$root" --pid 70 >/dev/null
    says 'process 71 is looked at' || return
    echo '7f00-7f01 r-xp 0 0:0 1 /usr/lib/x86_64-linux-gnu/libnccl.so.2' >"$root/proc/72/maps"
    run doctor --sysfs "$root" --pid 70 >/dev/null
    says 'process 72 is looked at' 'process 72 has NCCL but no net plugin' || return
    printf 'python\0run\0' >"$root/proc/70/cmdline"
    run doctor --sysfs "$root" --pid 70 >/dev/null
    ! grep 'is looked at' "$work/out" || wrong 'follows another program'
}

# sees VALUE TEXT - exactly one fault of the variables, or none where TEXT is empty.
sees_selection()
{
    root=$work/selection
    rm -rf "$root"
    cp -r "$work/planted" "$root"
    printf 'HOME=/nobody\nNCCL_NET_PLUGIN=dualpipe\n%s\n' "$1" >"$root/proc/self/environ"
    end_environment
    run doctor --sysfs "$root" --only variables --json >/dev/null
    found=$(jq -r '.findings[] | select(.severity == "fault") | .what' "$work/out")
    [ "$found" = "$2" ] || wrong "$1: '$found', expected '$2'"
}

fails_where_output_cannot_be_written()
{
    [ -w /dev/full ] || skip 'this system has no /dev/full'
    root=$work/memlock
    status=0
    "$dualpipe" doctor --sysfs "$root" >/dev/full 2>"$work/err" || status=$?
    [ "$status" = 1 ] || wrong "exits with $status" || return
    grep -q 'cannot write to standard output' "$work/err"
}

root=$work/planted
plant "$trees/healthy.tree"
it finds healthy
for tree in "$trees"/*.tree; do
    name=${tree##*/}
    [ "$name" = healthy.tree ] || it finds "${name%.tree}"
done
it tells_every_remedy_in_text
it knows_this_machine
it looks_at_a_process
it lives_with_an_empty_tree
it concludes_nothing_from_what_it_cannot_read
it follows_the_child_of_run
it sees_selection NCCL_IB_TIMEOUT=50 'NCCL_IB_TIMEOUT=50, expected a number from 0 to 31'
it sees_selection NCCL_IB_TIMEOUT=0x14 ''
it sees_selection "NCCL_IB_TIMEOUT=a$(printf '\013')b" \
    "NCCL_IB_TIMEOUT=a$(printf '\013')b, expected a number from 0 to 31"
it sees_selection NCCL_BUFFSIZE=abc 'NCCL_BUFFSIZE=abc, expected a number from 1 to 2147483647'
it sees_selection NCCL_BUFFSIZE=4M 'NCCL_BUFFSIZE=4M, expected a number from 1 to 2147483647'
it sees_selection NCCL_SHM_DISABLE=yes 'NCCL_SHM_DISABLE=yes, expected a number from -2 to 2'
it sees_selection NCCL_P2P_LEVEL=NVL ''
it sees_selection NCCL_DEBUG=info ''
it sees_selection NCCL_DEBUG=1 'NCCL_DEBUG=1, expected one of VERSION WARN INFO ABORT TRACE NONE '
it sees_selection NCCL_SOCKET_FAMILY=inet 'NCCL_SOCKET_FAMILY=inet, expected one of AF_INET AF_INET6 '
it sees_selection NCCL_ALGO=Rng "NCCL_ALGO: NCCL has no algorithm 'Rng'; did you mean Ring?"
it sees_selection NCCL_ALGO=^pat,ring ''
it sees_selection 'NCCL_ALGO=allreduce:tree,NVLSTree;broadcast:ring' ''
it sees_selection NCCL_ALGO=AllReduc:tree \
    "NCCL_ALGO: NCCL has no collective 'AllReduc'; did you mean AllReduce?"
it sees_selection NCCL_PROTO=LL,Simpel "NCCL_PROTO: NCCL has no protocol 'Simpel'; did you mean Simple?"
it sees_selection NCCL_PROTO=ll128 ''
it fails_where_output_cannot_be_written
finish
