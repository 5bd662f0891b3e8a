/* SPDX-License-Identifier: Apache-2.0 */
#include "base/launchers.h"

#include <stddef.h>

/* The innermost first. */
static const struct dp_launcher launchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", NULL},
     true},
    {"OpenMPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", NULL},
     false},
    {"PMI",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"PMI_JOBID", NULL},
     false},
    {"PMIx under Slurm",
     "PMIX_RANK",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     NULL,
     {"PMIX_NAMESPACE", "SLURM_STEP_ID"},
     false},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     false},
};

const struct dp_launcher *dp_launcher_find(const char *(*get)(const char *name))
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
        if (get(launchers[i].rank))
            return &launchers[i];
    return NULL;
}
