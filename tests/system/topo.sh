#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# topo.sh - `dualpipe topo`: this machine, captured ones, described ones.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

# unpack NAME - tests/data/topology/NAME.tree below $work/NAME.
unpack()
{
    sed '/^#/d' "$DP_TEST_DATA/topology/$1.tree" | while IFS= read -r line; do
        rest=${line#* }
        case $line in
        '+ '*) printf '%s\n' "$rest" >>"$file" ;;
        *)
            file=$work/$1/${rest%% *}
            mkdir -p "$(dirname "$file")"
            case $line in
            '= '*) printf '%s\n' "${rest#* }" >"$file" ;;
            *) ln -s "${rest#* }" "$file" ;;
            esac
            ;;
        esac
    done
}

shows_this_machine()
{
    run topo && says "numa0" "NUMA node" || return
    run topo matrix && says "numa0" "PIX one PCI switch"
}

shows_what_was_captured()
{
    unpack "$1"
    shift
    run topo show --sysfs "$work/$tree" || return
    says "$@"
}

takes_json_back()
{
    run topo json --synthetic "$1" -o "$work/one.json" || return
    run topo json --input "$work/one.json" -o "$work/two.json" || return
    cmp "$work/one.json" "$work/two.json" || return
    "$dualpipe" topo show --input - <"$work/one.json" >"$work/three" || return
    run topo show --synthetic "$1" && cmp "$work/out" "$work/three"
}

writes_json_that_others_read()
{
    command -v jq >/dev/null || skip "no jq"
    run topo json --synthetic 'name=a"b host:2 gpu:2 nic:1' || return
    jq -e '[.nodes[] | select(.kind == "gpu")] | length == 4' "$work/out" >/dev/null || return
    run topo matrix --format json --synthetic 'name=a"b host:2 gpu:2' || return
    jq -e 'map(select(.a != .b and .class == "NODE")) | length == 2' "$work/out" >/dev/null || return
    run topo path gpu0 gpu1 --format json --synthetic dgx-h100 || return
    jq -e '.class == "NV18" and .bytes_per_ns == 450 and (.nodes | length) == 3' \
        "$work/out" >/dev/null || return
    run topo nics --format json --synthetic hgx-a100 || return
    jq -e 'length == 8 and all(.nics[0].class == "PIX")' "$work/out" >/dev/null
}

prints_a_thousand_hosts_as_one()
{
    run topo show --synthetic 'dgx-h100 host:1024' || return
    says "node0 to node1023 (1024 hosts alike)" "rail7: 1024 ports, 5.12e+04 GB/s to spine0"
    [ "$(wc -l <"$work/out")" -lt 100 ] || wrong "more than a page or two"
}

names_the_slowest_link()
{
    run topo matrix --limits --synthetic 'numa:2 gpu:1 cpu=10' &&
        says "gpu0     gpu1     SYS   numa0 to numa1: between CPUs, 10 GB/s"
}

for transcript in "$data"/topo/*.txt; do it prints_what_it_printed "$transcript"; done
it shows_this_machine
for tree in server vm container; do
    case $tree in
    server) set -- "server7" "PCIe 4.0 x8 (could be 4.0 x16)" "400 Gb/s InfiniBand up" \
        "assumed: 0000:96:00.0: the link of the GPU rests at PCIe 1" ;;
    vm) set -- "unknown rate" "taken to be one NUMA node" ;;
    *) set -- "not seen: /sys/bus/pci is not there" ;;
    esac
    it shows_what_was_captured "$tree" "$@"
done
for machine in dgx-h100 hgx-a100 gb200-nvl72 grace-hopper pcie-server cloud-vm laptop; do
    it takes_json_back "$machine"
done
it writes_json_that_others_read
it prints_a_thousand_hosts_as_one
it names_the_slowest_link
finish
