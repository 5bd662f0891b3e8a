/* SPDX-License-Identifier: Apache-2.0
 *
 * placement.h - what the file of DUALPIPE_PLACEMENT says of connections: by which NICs a flow from
 * one worker to another goes, with how many queue pairs, of which traffic class.
 *
 * Which worker a process is, is told by its rank in the job (RANK, OMPI_COMM_WORLD_RANK, ..., as
 * the library reads them), and must be on this host by the file. The receiver's worker comes with
 * its handle, the sender's with its first word, so both look the flow up, in the same file, and
 * find the same pairs of NICs in the same order.
 */
#ifndef DPN_NET_PLACEMENT_H
#define DPN_NET_PLACEMENT_H

#include "nccl-plugin/options.h"

#include <dualpipe/assignment.h>

enum { DPN_FLOW_RAILS = 4 };

/* Between two workers. Places in the assignment' nodes. */
struct dpn_flow {
    int count; /* 0: the file says nothing */
    struct {
        int32_t from, to;
    } nics[DPN_FLOW_RAILS];
    int qps;           /* of the NIC with most */
    int traffic_class; /* 0: none is asked for */
};

/* Read the file that the environment names, once more after a fork. What is wrong with it is said
 * in one line, and there is no placement then. */
void dpn_placement_open(void);

/* The worker of this process, -1: none, or no placement. */
int32_t dpn_placement_worker(void);

/* Pipelines take the flows between stages, gradients those of weights; anything else all of
 * them. */
void dpn_placement_flow(int32_t from, int32_t to, enum dpn_traffic traffic, struct dpn_flow *out);

/* Whether node `nic` of the file is this port. The name of the device decides; without one in the
 * file the PCI address, which pci_path (NULL: none) ends in. */
bool dpn_placement_is_port(int32_t nic, const char *device, int number, const char *pci_path);

/* For tests: which worker this process is, by what the variables say (get) and the host's name. -1
 * with the reason in why. */
int32_t dpn_placement_find(const struct dp_assignment *s, const char *(*get)(const char *name),
                           const char *host, char *why, size_t why_len);

#endif
