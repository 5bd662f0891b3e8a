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
command -v jq >/dev/null || { echo 'no jq' && exit 77; }

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
        '@remove '*) rm "$root$2" ;;
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
    run doctor --root "$root" --json >/dev/null || :
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

# The sentences, as somebody reads them who runs it here, on what has been built.
knows_this_machine()
{
    LD_LIBRARY_PATH=$DP_TOP_BUILDDIR/nccl-plugin/.libs NCCL_NET_PLUGIN=dualpipe \
        run doctor >/dev/null
    case $status in 0 | 3 | 4) ;; *) wrong "exits with $status: $(cat "$work/err")" || return ;; esac
    says "libnccl-net-dualpipe.so is found as 'libnccl-net-dualpipe.so', by LD_LIBRARY_PATH" \
        "Linux $(uname -r)" "not seen: "
}

tells_every_remedy_in_text()
{
    root=$work/memlock
    run doctor --root "$root" --only limits >/dev/null
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
    mkdir -p "$work/empty/proc/self"
    run doctor --root "$work/empty" >/dev/null
    [ "$status" = 4 ] || wrong "exits with $status" || return
    says "no libnccl.so.2" "cannot be read" || return
    refuses 2 "expected the files of a machine" doctor --root "$work/nowhere"
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
finish
