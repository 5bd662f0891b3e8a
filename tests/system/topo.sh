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

says_where_ranks_are_placed_without_a_view_of_nvlink()
{
    tree=server
    unpack $tree
    run topo place 1f1b -P 2 --sysfs "$work/$tree" && says "not seen: NVLink is not known"
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
    run topo json --topology "$work/one.json" -o "$work/two.json" || return
    cmp "$work/one.json" "$work/two.json" || return
    "$dualpipe" topo show --topology - <"$work/one.json" >"$work/three" || return
    run topo show --synthetic "$1" && cmp "$work/out" "$work/three"
}

writes_json_that_others_read()
{
    command -v jq >/dev/null || skip "jq is not installed"
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

prints_the_matrix_of_one_host()
{
    two='host:2 gpu:1 nic:1'
    run topo matrix --synthetic "$two" --host node1/gpu0 || return
    [ "$(grep -c '^gpu0' "$work/out")" = 2 ] || wrong "not one host: $(cat "$work/out")" || return
    run topo matrix --synthetic "$two" --host node1 --format json || return
    says '"a": "node1/gpu0"' || return
    ! grep -q node0 "$work/out" || wrong "the other host, too" || return
    for format in text json; do
        refuses 2 "--host rail0: is a rail, expected a host" \
            topo matrix --synthetic "$two" --host rail0 --format $format || return
    done
}

leaves_no_device_out_of_the_matrix()
{
    run topo matrix --synthetic gpu:130 || return
    says "gpu129" || return
    [ "$(head -n 1 "$work/out" | wc -w)" = 134 ] || wrong "not 130 GPUs and a NUMA node across"
}

names_the_slowest_link()
{
    run topo matrix --limits --synthetic 'numa:2 gpu:1 cpu=10' &&
        says "gpu0     gpu1     SYS   numa0 to numa1: between NUMA nodes, 10 GB/s"
}

writes_what_nccl_reads()
{
    command -v xmllint >/dev/null || skip "xmllint is not installed"
    run topo nccl-xml --synthetic "$1 host:2" --host node1 -o "$work/topo.xml" || return
    xmllint --noout "$work/topo.xml" || return
    # The one difference of hosts that are alike.
    sed -i 's/ guid="[^"]*"//' "$work/topo.xml"
    run topo nccl-xml --synthetic "$1" || return
    sed 's/ guid="[^"]*"//' "$work/out" | cmp - "$work/topo.xml"
}

writes_what_a_guest_needs()
{
    printf 'gpu0 0001:00:00.0\nmlx5_0 0101:00:00.0\n' >"$work/map"
    run topo nccl-xml --synthetic dgx-h100 --map "$work/map" || return
    says 'busid="0001:00:00.0" class="0x030200"' 'busid="0101:00:00.0" class="0x020700"' ||
        return
    [ "$(grep -c '<gpu ' "$work/out")" = 1 ] || wrong "more than was passed on"
}

reads_what_nccl_wrote()
{
    run topo path 0001:00:00.0 0101:00:00.0 --topology "$DP_TEST_DATA/topology/nccl-vm.xml" ||
        { grep -q 'has no expat' "$work/err" && skip "built without expat"; } || return
    says "PIX"
}

# draws_good_svg ARGUMENT... - valid XML that a renderer takes.
draws_good_svg()
{
    command -v xmllint >/dev/null || skip "xmllint is not installed"
    run topo svg "$@" -o "$work/a.svg" || return
    xmllint --noout "$work/a.svg" || return
    command -v rsvg-convert >/dev/null || return 0
    rsvg-convert -o "$work/a.png" "$work/a.svg" && [ -s "$work/a.png" ]
}

draws_what_it_is_asked_for()
{
    run topo svg --synthetic 'dgx-h100 host:4' || return
    [ "$(grep -c 'rect class="gpu"' "$work/out")" = 8 ] || wrong "not one host of four"
}

draws_shared_switches_in_each_host()
{
    run topo svg --synthetic 'gb200-nvl72 host:3' || return
    [ "$(grep -c 'rect class="nvswitch"' "$work/out")" = 1 ] || wrong "not one bar a host" || return
    says "of 3 hosts"
}

# Arcs between GPUs end above the lower edge of their host.
draws_arcs_within_their_host()
{
    run topo svg --synthetic 'gpu:16 nvlink=mesh:1x25' || return
    awk '
        /rect class="host"/ { split($0, part, "\""); bottom = part[6] + part[10] }
        /class="link nvlink"/ && /C/ {
            sub(/.* d="M/, ""); split($0, at, /[ C]/); if (at[2] / 4 + at[4] * 3 / 4 > bottom) exit 1
            arcs++
        }
        END { exit arcs != 120 }' "$work/out" || wrong "an arc leaves its host"
}

joins_machines()
{
    for name in a b; do
        run topo json --synthetic "hgx-a100 name=$name" -o "$work/$name.json" || return
    done
    run topo path a/gpu0 b/gpu0 -t "$work/a.json" --topology "$work/b.json" && says "NET, 25 GB/s"
}

# Files of NCCL name no hosts; one host is not two.
joins_dumps_of_hosts_once()
{
    cd "$DP_TEST_DATA/topology" || return
    refuses 2 'the host_hash 0x1 is that of topology 0' topo show -t fabrics-a.xml -t fabrics-a.xml || return
    run topo json -t fabrics-a.xml -t fabrics-b.xml -o "$work/cluster.json" || return
    run topo path node1/gpu0 node0/gpu0 --topology "$work/cluster.json" && says 'NET, 50 GB/s'
}

# refuses_file NAME TEXT - a file of tests/data/topology.
refuses_file()
{
    cd "$DP_TEST_DATA/topology" && refuses 2 "$1: $2" topo show -t "$1"
}

names_nodes_that_there_are()
{
    refuses 2 "'nic7' is no node of this topology; did you mean 'nic0'? There are numa0, gpu0 to gpu1, nic0" \
        topo path gpu0 nic7 --synthetic 'gpu:2 nic:1' || return
    refuses 2 "'gpu0' is no node of this topology; expected one of numa0 to numa1" \
        topo path gpu0 numa0 --synthetic numa:2
}

# The legend has the widths of the picture, and no others.
draws_a_legend_of_what_it_draws()
{
    run topo svg --synthetic 'gpu:2 nic:1 pcie=3x8 nicpcie=4x4' || return
    [ "$(sed -n '/h30"/s/.*stroke-width="\([^"]*\)".*/\1/p' "$work/out" | sort -u | xargs)" = \
        "$(sed -n '/link pci/!d; /h30"/!s/.*stroke-width="\([^"]*\)".*/\1/p' "$work/out" | sort -u | xargs)" ] ||
        wrong "$(grep h30 "$work/out")" || return
    says '7.88 GB/s' || return
    ! grep -e '63 GB/s' -e '450 GB/s' "$work/out" || wrong 'widths that are not drawn'
}

finds_differences()
{
    run topo json --synthetic hgx-a100 -o "$work/one" || return
    run topo diff "$work/one" "$work/one" || return
    [ ! -s "$work/out" ] || wrong "finds something" || return
    sed 's/"gen": 4, "width": 16, "gen_max": 4/"gen": 3, "width": 16, "gen_max": 4/
        s/"mlx5_5", "mtu_bytes"/"mlx5_5", "up": false, "mtu_bytes"/; s/, "up": true\(.*mlx5_5\)/\1/' \
        "$work/one" >"$work/two"
    run topo diff "$work/one" "$work/two" >/dev/null
    [ "$status" = 1 ] || wrong "exits with $status" || return
    says "nic5: state: up -> down" \
        "gpu0: links: to switch0 PCIe 4.0 x16, 31.5 GB/s" "-> to switch0 PCIe 3.0 x16" || return
    run topo json --synthetic 'hgx-a100 gpu:1' -o "$work/three" || return
    run topo diff "$work/one" "$work/three" >/dev/null
    says "only in the first: gpu7"
}

# Files that a command names are those of tests/data/topology.
prints_what_it_printed_there()
{
    cd "$DP_TEST_DATA/topology" && prints_what_it_printed "$1"
}

for transcript in "$data"/topo/*.txt; do it prints_what_it_printed_there "$transcript"; done
it shows_this_machine
it says_where_ranks_are_placed_without_a_view_of_nvlink
rm -rf "$work/server"
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
for machine in dgx-h100 laptop; do it writes_what_nccl_reads $machine; done
it writes_what_a_guest_needs
it reads_what_nccl_wrote
for machine in dgx-h100 pcie-server gb200-nvl72 cloud-vm 'name=a<b&"c gpu:4 nvlink=mesh:2x25'; do
    it draws_good_svg --synthetic "$machine"
done
it draws_good_svg
it draws_what_it_is_asked_for
it draws_shared_switches_in_each_host
it draws_arcs_within_their_host
it joins_machines
it joins_dumps_of_hosts_once
it refuses_file nccl-behind-text.xml "'Warning: Permanently added a host' stands before the XML"
it refuses_file nccl-cut.xml 'line 4, column 6: unclosed token; expected XML up to </system>'
it refuses_file smi-cut.txt 'line 3: 1 columns of GPU1, expected 2'
it names_nodes_that_there_are
it draws_a_legend_of_what_it_draws
it finds_differences
it prints_a_thousand_hosts_as_one
it prints_the_matrix_of_one_host
it leaves_no_device_out_of_the_matrix
it names_the_slowest_link
finish
