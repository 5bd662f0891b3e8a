#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_rdma.sh - NCCL as it is shipped sends its messages over our verbs, from host memory and, as
# dma-bufs, from that of the simulated GPU. The adapters are tests/fakes/ibverbs.
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

[ -e tests/fakes/ibverbs/.libs/libibverbs.so.1 ] || skip_all 'built without infiniband/verbs.h'
LD_LIBRARY_PATH=tests/fakes/ibverbs/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
DUALPIPE_NET_WIRE=verbs
export LD_LIBRARY_PATH DUALPIPE_NET_WIRE

collectives='all-reduce broadcast reduce all-gather reduce-scatter'
messages='send-recv all-to-all'

# A card with two ports, as sysfs would show it; NCCL wants to see where it is before it fuses them.
card=0000:16:02.0/0000:17:00
for port in 0 1; do
    function=$work/sys/devices/pci0000:16/$card.$port
    mkdir -p "$function" "$work/sys/bus/pci" "$work/sys/class/infiniband/fake$port"
    ln -s "$work/sys/bus/pci" "$function/subsystem"
    ln -s "$function" "$work/sys/class/infiniband/fake$port/device"
done

# over_fabric ARGUMENT... - a job on a fabric of its own.
over_fabric()
{
    FAKE_VERBS_FABRIC=$(mktemp -d "$work/XXXXXX") job "$@"
}

# shellcheck disable=SC2086 # words
case_is 'two ports from host memory' \
    "$(over_fabric --bytes 8,4100,1500000 $collectives $messages two-comms)"
case_is 'NCCL uses the ports' "$(logged 'via NET/dualpipe/1')"
case_is 'ports without a place on the PCI bus are not fused' "$(logged 'fake0 is not fused')"
case_is 'a rank is killed in the middle' "$(over_fabric --ranks 3 --bytes 4000000 peer-death)"
case_is 'a rank gives up' "$(over_fabric --bytes 4000000 abort)"
case_is 'requests that fail and ports that go down' \
    "$(FAKE_VERBS_FAULTS='seed=7 reorder=50 ack=50 short=100 error=5 port=2 most=4' \
        over_fabric --bytes 8,100000,3000000 all-reduce send-recv all-to-all)"

FAKE_VERBS_SYSFS=$work SIMCUDA_DMABUF=1 NCCL_NET_GDR_LEVEL=SYS
export FAKE_VERBS_SYSFS SIMCUDA_DMABUF NCCL_NET_GDR_LEVEL
case_is 'a fused device from GPU memory' \
    "$(SIMCUDA_LOG=1 over_fabric --ranks 3 --bytes 8,4100,1500000 \
        all-reduce all-gather send-recv registered)"
case_is 'NCCL uses the fused device and GPUDirect' "$(logged 'via NET/dualpipe/2/GDRDMA')"
case_is 'the network reads and writes buffers of the user that were registered' \
    "$(logged 'simcuda .* ring: collective 2, .* registered 1'
        logged 'simcuda .* ring: collective 0, .* registered 1'
        logged 'simcuda .* from [0-9]: .* registered 1')"
case_is 'the fused device is there for communicators that are made after the last one is gone' \
    "$(NCCL_NET_PLUGIN_REF_COUNT=1 over_fabric --bytes 8,100000 reload)"
case_is 'a rank is killed in the middle, with GPU memory' \
    "$(over_fabric --ranks 3 --bytes 4000000 peer-death)"
cases_end
