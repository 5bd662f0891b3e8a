/* SPDX-License-Identifier: Apache-2.0 */
#include "base/launchers.h"

#include <stddef.h>
#include <stdlib.h>

/* The innermost first. */
static const struct dp_launcher launchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", NULL},
     true,
     NULL},
    {"OpenMPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", NULL},
     false,
     NULL},
    {"PMI",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"PMI_JOBID", NULL},
     false,
     NULL},
    {"PMIx under Slurm",
     "PMIX_RANK",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     NULL,
     {"PMIX_NAMESPACE", "SLURM_STEP_ID"},
     false,
     NULL},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     false,
     "SLURM_STEP_ID"}, /* the script of sbatch has rank 0, and is in no step */
};

const struct dp_launcher *dp_launcher_find(const char *(*get)(const char *name))
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
        if (get(launchers[i].rank) && (!launchers[i].step || get(launchers[i].step)))
            return &launchers[i];
    return NULL;
}

int dp_launcher_gpu(int local_rank, const char *list)
{
    if (!list)
        return local_rank;
    for (int i = 0;; i++) {
        char *end;
        const long number = strtol(list, &end, 10);
        if (end == list || (*end && *end != ',') || number < 0 || number > 1 << 16)
            return -1;
        if (i == local_rank || (!i && !*end))
            return (int)number;
        if (!*end)
            return -1;
        list = end + 1;
    }
}
