#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh HOST DEVICES COMMAND [ARGUMENT...] - in the guest, on the host's files: makes Soft-RoCE
# devices of the network interfaces, runs COMMAND, leaves its status for the host, and stops the
# machine.
#
# All interfaces of all guests are on one wire:
#
#       rxe0 = roce0, 10.10.HOST.1/16    on NUMA node 0      rxe1 = roce1, 10.10.HOST.2/16    on 1
#       rxe2 = roce2, 10.10.HOST.3/16    on NUMA node 0      ...
#
# GID 0 of a device is its link-local IPv6 address, GID 1 its IPv4 address.
set -eu
host=$1 devices=$2
shift 2
here=/run/rdma-vm

# The host reads both as they grow. Nobody can truncate what is opened for appending.
exec </dev/null >>$here/out 2>>$here/err

finish()
{
    trap - EXIT
    echo "$1" >$here/status.new
    mv $here/status.new $here/status
    echo b >/proc/sysrq-trigger # QEMU ends where a machine would start again
    sleep 60
}
trap 'finish 125' EXIT

# An interface of the card with that address.
interface_of()
{
    file=$(grep -lx "$1" /sys/class/net/*/address)
    file=${file%/address}
    echo "${file##*/}"
}

# Lines for `ip -b`. A packet from one own address to another would never leave the machine: so
# what is from an own address leaves by its interface, which the usual table of local addresses must
# not decide first; and who hears it takes it, though the sender's address is its own.
network()
{
    echo link set lo up
    echo rule add pref 100 lookup local
    echo rule del pref 0
    i=0
    while [ $i -lt "$devices" ]; do
        card=$(printf '02:00:00:00:%02x:%02x' "$host" $i)
        ip=10.10.$host.$((i + 1))
        table=$((1000 + i))
        echo "link set $(interface_of "$card") name roce$i mtu 4300"
        echo "link set roce$i up"
        echo "addr add $ip/16 dev roce$i"
        echo "route add local $ip dev roce$i table $table"
        echo "route add 10.10.0.0/16 dev roce$i src $ip table $table"
        echo "rule add pref 10 iif lo from $ip lookup $table"
        i=$((i + 1))
    done
}

setting()
{
    echo "$2" >"/proc/sys/net/$1"
}

rdma_devices()
{
    i=0
    while [ $i -lt "$devices" ]; do
        echo "link add rxe$i type rxe netdev roce$i"
        i=$((i + 1))
    done
}

usable()
{
    port=/sys/class/infiniband/$1/ports/1
    grep -q ACTIVE $port/state && grep -q ffff:0a0a $port/gids/1
}

# Feeds the watchdog, which ends a machine that has hung.
(
    trap - EXIT
    while echo; do sleep 5; done >/dev/watchdog
) 2>/dev/null &

setting ipv4/conf/all/accept_local 1
setting ipv4/conf/all/arp_ignore 1
setting ipv4/conf/all/arp_announce 2
setting ipv6/conf/default/accept_dad 0
network >/run/network
ip -b /run/network
rdma_devices >/run/devices
rdma -b /run/devices
for device in /sys/class/infiniband/*; do
    tries=0
    until usable "${device##*/}"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { rdma link >&2 && exit 125; }
        sleep 0.1
    done
done

read -r up_s _ </proc/uptime
echo "$up_s" >$here/ready
export RDMA_VM_HOST="$host"
status=0
"$@" || status=$?
finish $status
