/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_placement.c - which worker a process is, and which NICs a flow takes, by the file that
 * DUALPIPE_PLACEMENT names.
 */
#include "config.h" /* asprintf */

#include "cmocka_all.h"
#include "scratch.h"

#include "nccl-plugin/net/placement.h"

/* Two workers on hosts a and b; the NICs of a are 2 and 3, those of b 12 and 13. */
#define NIC(id, host, rdma, pci) \
    "node id=" #id " kind=nic host=" host " pci=" pci "\nport number=1 rdma=" rdma "\n"
#define FLOW(kind, from, to, nic_from, nic_to, more) \
    "flow kind=" kind " from=" #from " to=" #to " bytes=8 nic_from=" #nic_from " nic_to=" #nic_to more "\n"
#define FILE_OF(host) \
    "dualpipe assignment 1\nplacement ranks=2 replicas=1\nnode id=1 kind=gpu host=" host "\n" \
    NIC(2, "a", "mlx5_0", "0000:01:00.0") NIC(3, "a", "mlx5_1", "0000:02:00.0") \
    "node id=11 kind=gpu host=b.org\n" \
    NIC(12, "b", "", "0000:01:00.0") NIC(13, "b", "", "0000:02:00.0") \
    "worker replica=0 rank=0 gpu=1 came_as=1 nics=2,3 qps=1,4\n" \
    "worker replica=0 rank=1 gpu=11 came_as=0\n" \
    FLOW("activation", 0, 1, 3, 13, " traffic_class=104") FLOW("gradient", 0, 1, 3, 13, "") \
    FLOW("mirror", 0, 1, 2, 12, "") FLOW("activation", 1, 0, 12, 2, "") "end\n"

/* ---- worker numbers ------------------------------------------------------------------------- */

static const char *name_set, *value_set, *size_name, *size_set;

static const char *get(const char *name)
{
    if (size_name && !strcmp(name, size_name))
        return size_set;
    if (!strcmp(name, "SLURM_STEP_ID"))
        return "0";
    return name_set && !strcmp(name, name_set) ? value_set : NULL;
}

CASE(a_process_is_found_by_its_rank_and_host)
{
    static const struct {
        const char *name, *value, *host;
        int worker;
        const char *why;
    } cases[] = {
        {"RANK", "1", "a", 0, ""},
        {"RANK", "0", "b", 1, ""},
        {"OMPI_COMM_WORLD_RANK", "1", "a.cluster.org", 0, ""},
        {"PMI_RANK", "1", "a", 0, ""},
        {"PMIX_RANK", "1", "a", 0, ""},
        {"SLURM_PROCID", "0", "b.org", 1, ""},
        {NULL, NULL, "a", -1, "no rank in the environment"},
        {"RANK", "one", "a", -1, "no rank in the environment"},
        {"RANK", "2", "a", -1, "rank 2, expected one from 0 to 1"},
        {"RANK", "1", "c", -1, "rank 1 belongs on host a, and this is c"},
        {"RANK", "0", "bb", -1, "rank 0 belongs on host b.org, and this is bb"},
    };
    OWNED(dp_assignment) *s = NULL;

    assert_int_equal(dp_assignment_read(FILE_OF("a"), strlen(FILE_OF("a")), "two", &s), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char why[256] = "";
        name_set = cases[i].name;
        value_set = cases[i].value;
        assert_int_equal(dpn_placement_find(s, get, cases[i].host, why, sizeof(why)),
                         cases[i].worker);
        if (!strstr(why, cases[i].why))
            fail_msg("'%s' does not say '%s'", why, cases[i].why);
    }
}

CASE(several_gpus_a_process_follow_from_the_size_of_the_job)
{
    static const struct {
        const char *rank, *size, *value;
        int worker;
        const char *why;
    } cases[] = {
        {"RANK", "WORLD_SIZE", "2", 0, ""},
        {"RANK", "WORLD_SIZE", "1", -1, "WORLD_SIZE is 1, expected 2: a process with one GPU for each"},
        {"RANK", "WORLD_SIZE", "", 0, ""},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "4", -1, "OMPI_COMM_WORLD_SIZE is 4, expected 2"},
        {"SLURM_PROCID", "SLURM_NTASKS", "16", -1, "SLURM_NTASKS is 16, expected 2"},
    };
    OWNED(dp_assignment) *s = NULL;

    assert_int_equal(dp_assignment_read(FILE_OF("a"), strlen(FILE_OF("a")), "two", &s), 0);
    value_set = "1";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char why[256] = "";
        name_set = cases[i].rank;
        size_name = cases[i].size;
        size_set = cases[i].value;
        assert_int_equal(dpn_placement_find(s, get, "a", why, sizeof(why)), cases[i].worker);
        if (!strstr(why, cases[i].why))
            fail_msg("'%s' does not say '%s'", why, cases[i].why);
    }
    size_name = NULL;
}

/* ---- the file ------------------------------------------------------------------------------- */

static char path[SCRATCH_LEN];
static int lines;

static void count_line(void *user, enum dp_log_level level, const char *line)
{
    lines += level <= DP_LOG_WARN;
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* As it is on this host, where this process is the one that came as 1. */
static void open_file(void)
{
    char host[64] = "", *text = NULL;

    gethostname(host, sizeof(host) - 1);
    assert_true(asprintf(&text, FILE_OF("%s"), host) > 0);
    write_file(text);
    free(text);
    setenv("DUALPIPE_PLACEMENT", path, 1);
    setenv("RANK", "1", 1);
    dpn_placement_open();
    assert_int_equal(dpn_placement_worker(), 0);
}

CASE(a_flow_has_its_nics_queue_pairs_and_class)
{
    struct dpn_flow f;

    open_file();
    dpn_placement_flow(0, 1, DPN_TRAFFIC_PIPELINE, &f);
    assert_int_equal(f.count, 1); /* two flows, one pair */
    assert_int_equal(f.qps, 4);
    assert_int_equal(f.traffic_class, 104);
    assert_true(dpn_placement_is_port(f.nics[0].from, "mlx5_1", 1, NULL));
    dpn_placement_flow(0, 1, DPN_TRAFFIC_GRADIENT, &f);
    assert_int_equal(f.count, 1);
    assert_int_equal(f.qps, 1);
    assert_int_equal(f.traffic_class, 0);
    assert_true(dpn_placement_is_port(f.nics[0].from, "mlx5_0", 1, NULL));
    dpn_placement_flow(0, 1, DPN_TRAFFIC_ANY, &f);
    assert_int_equal(f.count, 2);
    dpn_placement_flow(1, 0, DPN_TRAFFIC_GRADIENT, &f);
    assert_int_equal(f.count, 0);
    dpn_placement_flow(-1, 0, DPN_TRAFFIC_ANY, &f);
    assert_int_equal(f.count, 0);
    dpn_placement_flow(0, 2, DPN_TRAFFIC_ANY, &f);
    assert_int_equal(f.count, 0);
}

CASE(a_port_is_known_by_its_device_or_its_place_on_the_bus)
{
    struct dpn_flow f;

    open_file();
    dpn_placement_flow(0, 1, DPN_TRAFFIC_PIPELINE, &f);
    assert_false(dpn_placement_is_port(f.nics[0].from, "mlx5_1", 2, NULL));
    assert_false(dpn_placement_is_port(f.nics[0].from, "mlx5_0", 1, "/sys/0000:02:00.0"));
    assert_true(dpn_placement_is_port(f.nics[0].to, "bnxt_re1", 1, "/sys/0000:02:00.0"));
    assert_false(dpn_placement_is_port(f.nics[0].to, "bnxt_re0", 1, "/sys/0000:01:00.0"));
    assert_false(dpn_placement_is_port(f.nics[0].to, "rxe0", 1, NULL));
}

CASE(without_a_file_there_is_none)
{
    unsetenv("DUALPIPE_PLACEMENT");
    lines = 0;
    dpn_placement_open();
    assert_int_equal(dpn_placement_worker(), -1);
    assert_int_equal(lines, 0);
}

CASE(a_wrong_file_is_reported_and_ignored)
{
    struct dpn_flow f;

    open_file();
    write_file("dualpipe assignment 1\n");
    lines = 0;
    dpn_placement_open();
    assert_int_equal(lines, 1);
    assert_int_equal(dpn_placement_worker(), -1);
    dpn_placement_flow(0, 1, DPN_TRAFFIC_ANY, &f);
    assert_int_equal(f.count, 0);
    write_file(FILE_OF("elsewhere"));
    lines = 0;
    dpn_placement_open();
    assert_int_equal(lines, 1);
    assert_int_equal(dpn_placement_worker(), -1);
}

static int set_up(void **state)
{
    dp_log_set(count_line, NULL, DP_LOG_INFO);
    return scratch_file(path, "placement") ? 0 : -1;
}

static int tear_down(void **state)
{
    return unlink(path);
}

RUN_CASES(set_up, tear_down)
