/* SPDX-License-Identifier: Apache-2.0
 *
 * test_comm_launcher.c - what the variables of torchrun, mpirun and srun mean.
 */
#include "cmocka_all.h"

#include "comm/settings.h"

static const char *const *variables; /* NAME=value ..., NULL */

static const char *get_variable(const char *name)
{
    for (const char *const *v = variables; *v; v++)
        if (!strncmp(*v, name, strlen(name)) && (*v)[strlen(name)] == '=')
            return *v + strlen(name) + 1;
    return NULL;
}

static int read_launch(const char *const *set, const char *address, int64_t port,
                       struct dp_launch *out)
{
    const struct dp_comm_settings settings = {.address = address, .port = port};

    variables = set;
    return dp_launch_read(get_variable, &settings, out);
}

/* An address that ends with a colon has a port that is derived from the job. Returns the port. */
static int expect_launch(const char *const *set, int rank, int size, const char *address)
{
    struct dp_launch launch;
    const char *colon;

    assert_int_equal(read_launch(set, NULL, 0, &launch), 0);
    assert_int_equal(launch.rank, rank);
    assert_int_equal(launch.size, size);
    colon = strrchr(launch.address, ':');
    const bool any_port = address[strlen(address) - 1] == ':';
    if (any_port ? strncmp(launch.address, address, (size_t)(colon + 1 - launch.address))
                 : strcmp(launch.address, address))
        fail_msg("address %s, expected %s", launch.address, address);
    if (any_port)
        assert_in_range(atoi(colon + 1), 20000, 29999);
    return atoi(colon + 1);
}

#define VARIABLES(...) ((const char *const[]){__VA_ARGS__, NULL})

CASE(launchers_variables_give_rank_size_and_address)
{
    expect_launch(VARIABLES("RANK=3", "WORLD_SIZE=8", "MASTER_ADDR=node0", "MASTER_PORT=29500"), 3,
                  8, "node0:29501");
    expect_launch(VARIABLES("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=fe80::1", "MASTER_PORT=1"), 0, 2,
                  "[fe80::1]:2");
    expect_launch(VARIABLES("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
                            "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=12345"),
                  1, 4, "127.0.0.1:");
    expect_launch(VARIABLES("PMI_RANK=1", "PMI_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=7"), 1, 4,
                  "a:8");
    int port = expect_launch(VARIABLES("SLURM_PROCID=5", "SLURM_NTASKS=6", "SLURM_JOB_ID=77",
                                       "SLURM_STEP_ID=0",
                                       "SLURM_STEP_NODELIST=gpu[03-07,12],login"),
                             5, 6, "gpu03:");
    int other = expect_launch(VARIABLES("SLURM_PROCID=0", "SLURM_NTASKS=6", "SLURM_JOB_ID=78",
                                        "SLURM_STEP_ID=0", "SLURM_JOB_NODELIST=solo"),
                              0, 6, "solo:");
    assert_int_not_equal(port, other);
    /* The innermost launcher is meant. */
    expect_launch(VARIABLES("SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=2", "RANK=9", "WORLD_SIZE=16",
                            "MASTER_ADDR=m", "MASTER_PORT=10"),
                  9, 16, "m:11");
}

CASE(a_job_of_one_process_needs_no_address)
{
    struct dp_launch launch;

    assert_int_equal(read_launch(VARIABLES("RANK=0", "WORLD_SIZE=1"), NULL, 0, &launch), 0);
    assert_int_equal(launch.size, 1);
    assert_string_equal(launch.address, "");
}

CASE(our_options_override_the_launchers_variables)
{
    struct dp_launch launch;
    const char *const *set = VARIABLES("RANK=3", "WORLD_SIZE=8", "MASTER_ADDR=m", "MASTER_PORT=1");

    assert_int_equal(read_launch(set, NULL, 4000, &launch), 0);
    assert_string_equal(launch.address, "m:4000");
    assert_int_equal(read_launch(set, "other:5", 4000, &launch), 0);
    assert_string_equal(launch.address, "other:5");
}

static void expect_no_launch(const char *const *set, int error, const char *sentence)
{
    struct dp_launch launch;

    assert_int_equal(read_launch(set, NULL, 0, &launch), error);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' does not say '%s'", dp_last_error(), sentence);
}

CASE(a_launchers_variable_that_is_missing_or_wrong_is_named)
{
    expect_no_launch(VARIABLES("HOME=x"), DP_ENOENT, "not started by torchrun");
    /* As in the script of sbatch, which is none of srun's processes. */
    expect_no_launch(VARIABLES("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=7"), DP_ENOENT,
                     "or SLURM_PROCID and SLURM_STEP_ID, is set");
    expect_no_launch(VARIABLES("RANK=0"), DP_EINVAL, "WORLD_SIZE is not set");
    expect_no_launch(VARIABLES("RANK=2", "WORLD_SIZE=2"), DP_EINVAL,
                     "RANK=2: expected a number from 0 to 1");
    expect_no_launch(VARIABLES("RANK=x", "WORLD_SIZE=2"), DP_EINVAL, "RANK=x: expected a number");
    expect_no_launch(VARIABLES("RANK=0", "WORLD_SIZE=2"), DP_EINVAL, "set MASTER_ADDR");
    expect_no_launch(VARIABLES("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a"), DP_EINVAL,
                     "MASTER_PORT is not set");
    expect_no_launch(VARIABLES("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=65535"),
                     DP_EINVAL, "MASTER_PORT=65535: expected a number from 1 to 65534");
    char long_host[400] = "MASTER_ADDR=";
    memset(long_host + strlen(long_host), 'h', sizeof(long_host) - 1 - strlen(long_host));
    expect_no_launch(VARIABLES("RANK=0", "WORLD_SIZE=2", long_host, "MASTER_PORT=1"), DP_EINVAL,
                     "MASTER_ADDR has 387 characters: expected a host of less than ");
    expect_no_launch(VARIABLES("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
                               "OMPI_COMM_WORLD_LOCAL_SIZE=2"),
                     DP_EINVAL, "OpenMPI does not tell where rank 0 is");
}

CASE(a_process_knows_its_place_on_its_host)
{
    static const struct {
        const char *const variables[5];
        struct dp_process process;
    } cases[] = {
        {{"HOME=x", NULL}, {NULL, -1, -1, -1, -1, -1}},
        {{"RANK=9", "WORLD_SIZE=16", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=8", NULL},
         {"torchrun", 9, 16, 1, 8, 1}},
        {{"RANK=9", "WORLD_SIZE=16", NULL}, {"torchrun", 9, 16, -1, -1, -1}},
        {{"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
          "OMPI_COMM_WORLD_LOCAL_SIZE=2", NULL},
         {"OpenMPI", 3, 4, 1, 2, 1}},
        {{"PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1", NULL},
         {"PMI", 3, 4, 0, 1, 0}},
        {{"SLURM_PROCID=5", "SLURM_STEP_ID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=1", NULL},
         {"Slurm", 5, 8, 1, -1, 1}},
        {{"RANK=9", "LOCAL_RANK=1", "CUDA_VISIBLE_DEVICES=4,6", NULL}, {"torchrun", 9, -1, 1, -1, 6}},
        {{"RANK=9", "LOCAL_RANK=1", "CUDA_VISIBLE_DEVICES=4", NULL}, {"torchrun", 9, -1, 1, -1, 4}},
        {{"RANK=9", "LOCAL_RANK=2", "CUDA_VISIBLE_DEVICES=4,6", NULL}, {"torchrun", 9, -1, 2, -1, -1}},
        {{"RANK=9", "LOCAL_RANK=1", "CUDA_VISIBLE_DEVICES=4,GPU-1", NULL},
         {"torchrun", 9, -1, 1, -1, -1}},
        {{"RANK=9", "LOCAL_RANK=0", "CUDA_VISIBLE_DEVICES=", NULL}, {"torchrun", 9, -1, 0, -1, -1}},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=8", NULL}, {NULL, -1, -1, -1, -1, -1}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct dp_process *want = &cases[i].process;
        struct dp_process got;
        variables = cases[i].variables;
        assert_int_equal(dp_process_read(get_variable, &got), 0);
        assert_int_equal(!got.launcher, !want->launcher);
        if (got.launcher)
            assert_string_equal(got.launcher, want->launcher);
        assert_int_equal(got.rank, want->rank);
        assert_int_equal(got.size, want->size);
        assert_int_equal(got.local_rank, want->local_rank);
        assert_int_equal(got.local_size, want->local_size);
        assert_int_equal(got.gpu, want->gpu);
    }
    struct dp_process got;
    variables = (const char *const[]){"RANK=1", "LOCAL_RANK=-1", NULL};
    assert_int_equal(dp_process_read(get_variable, &got), DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "LOCAL_RANK=-1: expected a number"));
}

CASE(a_process_keeps_its_own_gpu)
{
    static const struct {
        int local_rank, local_size;
        const char *list, *own, *error;
    } cases[] = {
        {1, 3, "4,GPU-5b1c,0", "GPU-5b1c", NULL},
        {0, 1, "7", "7", NULL},
        {2, 3, "4,5,6", "6", NULL},
        {0, 2, "4,5,6", NULL, "CUDA_VISIBLE_DEVICES=4,5,6: 3 GPUs, expected 2"},
        {1, 2, "4,", NULL, "nothing at place 1"},
        {-1, 2, "4,5", NULL, "local rank -1 of 2: expected both from the launcher"},
        {0, -1, "4", NULL, "local rank 0 of -1: expected both"},
    };
    bool has_gpu;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct dp_process process = {"torchrun", cases[i].local_rank, cases[i].local_size,
                                           cases[i].local_rank, cases[i].local_size,
                                           -1};
        setenv("CUDA_VISIBLE_DEVICES", cases[i].list, 1);
        has_gpu = false;
        const int err = dp_process_keep_own_gpu(&process, &has_gpu);
        assert_int_equal(err, cases[i].error ? DP_EINVAL : 0);
        assert_int_equal(has_gpu, !err);
        assert_string_equal(getenv("CUDA_VISIBLE_DEVICES"), err ? cases[i].list : cases[i].own);
        if (err)
            assert_non_null(strstr(dp_last_error(), cases[i].error));
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(dp_process_keep_own_gpu(&(struct dp_process){.local_rank = -1}, &has_gpu), 0);
    assert_false(has_gpu);
    assert_null(getenv("CUDA_VISIBLE_DEVICES"));
    assert_int_equal(dp_process_keep_own_gpu(NULL, &has_gpu), DP_EINVAL);
}
