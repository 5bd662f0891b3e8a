# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# rails.sh - sourced by what takes network cards of a guest down and up again; $rails_host is the guest's
# number in their addresses.
rails_host=${RDMA_VM_HOST:-0}

down()
{
    ip link set "roce$1" down
}

# Its routes went with it.
up()
{
    ip link set "roce$1" up
    ip route replace local "10.10.$rails_host.$(($1 + 1))" dev "roce$1" table $((1000 + $1))
    ip route replace 10.10.0.0/16 dev "roce$1" src "10.10.$rails_host.$(($1 + 1))" table $((1000 + $1))
}

# sent_packets I - of device rxeI, so far.
sent_packets()
{
    cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts"
}

# await_packets I COUNT - until device rxeI has sent so many in all, for half a minute at most.
await_packets()
{
    rails_tries=0
    while [ "$(sent_packets "$1")" -lt "$2" ]; do
        rails_tries=$((rails_tries + 1))
        [ $rails_tries -lt 300 ] || return 1
        sleep 0.1
    done
}
