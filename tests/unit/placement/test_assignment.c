/* SPDX-License-Identifier: Apache-2.0
 *
 * test_assignment.c - a placement's file as one process reads it: it is read as it was written,
 * errors are refused, and the process is bound as the file requires.
 */
#include "config.h"

#include "cmocka_all.h"
#include "scratch.h"
#include "placement/assignment_bind.h"

#include <dualpipe/placement.h>

#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* ---- what was written ----------------------------------------------------------------------- */

struct fixture {
    struct dp_topology *t;
    struct dp_placement *p;
    struct dp_assignment *s;
    char *text;
    size_t len;
};

static void must(int err)
{
    if (err)
        fail_msg("%s", dp_last_error());
}

static struct fixture make(const char *description, int ranks, int replicas)
{
    const struct dp_schedule_spec schedule = {
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = ranks, .microbatches = 2 * ranks, .mirror_reduce = true};
    struct fixture f = {0};
    OWNED(dp_schedule) *s = NULL;

    must(dp_topology_new_synthetic(description, &f.t));
    must(dp_schedule_new(&schedule, &s));
    must(dp_placement_new(&(struct dp_placement_spec){
        .topology = f.t, .schedule = s, .replicas = replicas, .activation_bytes = 64e6,
        .parameter_bytes = 1e9, .offload_bytes = 1e9, .effort = 50,
        .traffic_class = {[DP_FLOW_ACTIVATION] = 104}}, &f.p));
    must(dp_placement_write(f.p, f.t, &f.text, &f.len));
    must(dp_assignment_read(f.text, f.len, "made", &f.s));
    return f;
}

static void unmake(struct fixture *f)
{
    dp_assignment_free(f->s);
    free(f->text);
    dp_placement_free(f->p);
    dp_topology_free(f->t);
}

static void same_node(const struct fixture *f, int32_t read, int32_t written)
{
    char label[DP_TOPO_LABEL_LEN];

    assert_int_equal(read < 0, written < 0);
    if (read < 0)
        return;
    const struct dp_assigned_node *n = &f->s->nodes[read];
    assert_int_equal(n->id, written);
    assert_string_equal(dp_assignment_text(f->s, n->label), dp_topology_label(f->t, written, label));
    assert_string_equal(dp_assignment_text(f->s, n->cpus),
                        dp_topology_text(f->t, f->t->nodes[written].cpus));
}

static void same_assignment(const struct fixture *f, int32_t w)
{
    const struct dp_assigned_worker *read = &f->s->workers[w];
    const struct dp_placed_worker *written = &f->p->workers[w];

    assert_int_equal(read->replica * f->p->ranks + read->rank, w);
    assert_int_equal(read->process, written->came_as);
    same_node(f, read->gpu, written->gpu);
    same_node(f, read->memory, written->memory);
    assert_int_equal(read->nic_count, written->nic_count);
    for (int32_t i = 0; i < read->nic_count; i++) {
        same_node(f, read->nics[i], written->nics[i]);
        assert_int_equal(read->qps[i], written->qps[i]);
    }
    assert_int_equal(dp_assignment_find(f->s, read->process), w);
}

static void same_flow(const struct fixture *f, int32_t i)
{
    const struct dp_assigned_flow *read = &f->s->flows[i];
    const struct dp_flow *written = &f->p->flows[i];

    assert_int_equal(read->kind, written->kind);
    assert_int_equal(read->from, written->from);
    assert_int_equal(read->to, written->to);
    assert_true(read->bytes == written->bytes);
    same_node(f, read->nic_from, written->nic_from);
    same_node(f, read->nic_to, written->nic_to);
    same_node(f, read->rail, written->rail);
    assert_int_equal(read->traffic_class,
                     read->kind == DP_FLOW_ACTIVATION && read->nic_from >= 0 ? 104 : 0);
}

CASE(a_process_reads_what_was_placed)
{
    struct fixture f = make("dgx-h100 host:2", 4, 4);

    assert_int_equal(f.s->ranks, 4);
    assert_int_equal(f.s->replicas, 4);
    assert_true(f.s->intra_gbs == 450 && f.s->inter_gbs == 400);
    assert_int_equal(f.s->node_total, 2);
    for (int32_t w = 0; w < 16; w++)
        same_assignment(&f, w);
    assert_int_equal(f.s->flow_count, f.p->flow_count);
    for (int32_t i = 0; i < f.s->flow_count; i++)
        same_flow(&f, i);
    assert_int_equal(dp_assignment_find(f.s, 16), -1);
    unmake(&f);
}

CASE(hosts_that_nvlink_joins_are_one_node)
{
    struct fixture f = make("gb200-nvl72 host:4 domain=2", 4, 4);

    assert_int_equal(f.s->node_total, 2);
    assert_true(f.s->intra_gbs == 900 && f.s->inter_gbs == 400);
    unmake(&f);
}

CASE(the_ports_of_a_nic_have_their_names)
{
    struct fixture f = make("host:2 numa:1 gpu:2 nic:1 net=100Gb/s", 4, 1);
    const struct dp_assigned_node *nic = &f.s->nodes[f.s->workers[0].nics[0]];

    assert_int_equal(nic->port_count, 1);
    assert_string_equal(dp_assignment_text(f.s, f.s->ports[nic->first_port].rdma), "mlx5_0");
    assert_int_equal(f.s->ports[nic->first_port].number, 1);
    unmake(&f);
}

/* ---- the map -------------------------------------------------------------------------------- */

#define HEAD(ranks, replicas) \
    "dualpipe assignment 1\nplacement ranks=" #ranks " replicas=" #replicas "\n" \
    "node id=7 kind=gpu label=gpu0 host=a\n"
#define WORKER(replica, rank, came_as) \
    "worker replica=" #replica " rank=" #rank " gpu=7 came_as=" #came_as "\n"
#define MAPPED HEAD(2, 2) WORKER(0, 0, 3) WORKER(0, 1, 0) WORKER(1, 0, 1) WORKER(1, 1, 2) "end\n"

static struct dp_assignment *read_text(const char *text)
{
    struct dp_assignment *s;

    must(dp_assignment_read(text, strlen(text), "text", &s));
    return s;
}

CASE(processes_of_a_replica_are_mapped_as_they_came)
{
    OWNED(dp_assignment) *s = read_text(MAPPED);
    int map[2];

    must(dp_assignment_map(s, 0, map));
    assert_true(map[0] == 1 && map[1] == 0); /* process 0 is rank 1, process 3 is rank 0 */
    must(dp_assignment_map(s, 1, map));
    assert_true(map[0] == 0 && map[1] == 1);
    expect_error(dp_assignment_map(s, 2, map), DP_EINVAL, "replica 2, expected one from 0 to 1");
}

CASE(another_number_of_ranks_is_refused_with_both_numbers)
{
    OWNED(dp_assignment) *s = read_text(MAPPED);

    must(dp_assignment_check(s, 2, 2));
    expect_error(dp_assignment_check(s, 1, 8), DP_EINVAL,
                 "text: places 2 x 2 workers (replicas x ranks), " "expected 1 x 8");
}

/* ---- what is wrong -------------------------------------------------------------------------- */

CASE(a_wrong_file_is_refused_with_the_place)
{
#define ONE HEAD(1, 1)
#define NODES "dualpipe assignment 1\nplacement ranks=1 replicas=1\n"
    static const struct {
        const char *text, *sentence;
    } wrong[] = {
        {"", "text:1: '', expected 'dualpipe assignment 1', as `dualpipe topo place -f assignment` begins"},
        {"\n#\ndualpipe assignment 2\n", "text:3: 'dualpipe assignment 2', expected 'dualpipe assignment 1'"},
        {"{}", "text: JSON, expected lines of text: `dualpipe topo place --convert text` writes them"},
        {"dualpipe assignment 1\n", "text: no row end, expected all of the file"},
        {"dualpipe assignment 1\nend\n", "text:2: end: expected the row placement above it"},
        {"dualpipe assignment 1\ngpu 7\n", "text:2: 'gpu', expected placement, node, port, worker, flow or end"},
        {ONE "end\n", "text:4: end: 0 workers above it, expected 1"},
        {ONE WORKER(0, 0, 0) "end\nflow kind=mirror from=0 to=0\n", "text:6: 'flow', expected nothing behind"},
        {ONE "placement ranks=1 replicas=1\n", "text:4: placement: twice"},
        {"dualpipe assignment 1\nworker replica=0\n", "text:2: worker: expected the row placement above it"},
        {"dualpipe assignment 1\nplacement ranks=60000000 replicas=60000000\n", "text:2: placement: ranks, replicas: "},
        {"dualpipe assignment 1\nplacement ranks=1\n", "text:2: placement: ranks, replicas: "},
        {"dualpipe assignment 1\nplacement intra_gbs=-1\n",
         "text:2: placement: intra_gbs: '-1', expected a number that is not negative"},
        {"dualpipe assignment 1\nplacement inter_gbs=1e301\n", "expected a number that is not negative"},
        {ONE "worker rank\n", "text:4: worker: 'rank', expected KEY=VALUE"},
        {ONE "worker rnak=0\n", "text:4: worker: 'rnak' is no key of such a row; did you mean rank?"},
        {ONE "worker rank=0 rank=0\n", "text:4: worker: rank twice, expected once"},
        {ONE "worker rank=x\n", "text:4: worker: rank: 'x', expected a whole number from 0 to 67108864"},
        {ONE "worker gpu=-1\n", "text:4: worker: gpu: '-1', expected a whole number"},
        {ONE "worker gpu=1.5\n", "expected a whole number"},
        {ONE "worker gpu=67108865\n", "expected a whole number"},
        {ONE "worker gpu=\n", "worker: gpu: '', expected a whole number"},
        {ONE "worker nics=7, qps=1\n", "worker: nics: '7,', expected a whole number"},
        {ONE "worker nics=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\n", "expected at most 16 numbers"},
        {ONE "worker replica=0 rank=1 gpu=7 came_as=0\n",
         "text:4: worker: replica, rank: expected workers in order"},
        {ONE "worker replica=0 rank=0 gpu=6 came_as=0\n", "worker: gpu: expected the id of a GPU above"},
        {ONE WORKER(0, 0, 1) "end\n", "worker 0: came_as: 1, expected each of 0 to 0 once"},
        {ONE "worker replica=0 rank=0 gpu=7\nend\n", "worker 0: came_as: -1, expected each of 0 to 0 once"},
        {ONE "worker nics=7 replica=0 rank=0 gpu=7 came_as=0\n", "worker: qps: expected as many as nics"},
        {ONE "worker nics=7 qps=1 replica=0 rank=0 gpu=7\n", "worker: nics: expected ids of NICs above"},
        {ONE "node id=8 kind=nic\nworker nics=8 qps=257 replica=0 rank=0 gpu=7\n", "qps: expected numbers from 1 to 256"},
        {ONE "worker memory=7 replica=0 rank=0 gpu=7\n", "memory: expected the id of a NUMA node above"},
        {ONE WORKER(0, 0, 0) "flow from=0 to=0\n", "text:5: flow: kind is missing"},
        {ONE WORKER(0, 0, 0) "flow kind=miror\n", "flow: kind: 'miror', expected activation, gradient"},
        {ONE WORKER(0, 0, 0) "flow kind=mirror from=1 to=0\n", "flow: from, to: expected workers"},
        {ONE WORKER(0, 0, 0) "flow kind=mirror from=0\n", "flow: from, to: expected workers"},
        {ONE WORKER(0, 0, 0) "flow kind=mirror from=0 to=0 nic_to=7\n", "nic_from, nic_to: expected ids of NICs"},
        {ONE WORKER(0, 0, 0) "flow kind=mirror from=0 to=0 rail=7\n", "flow: rail: expected the id of a rail"},
        {ONE WORKER(0, 0, 0) "flow kind=mirror from=0 to=0 traffic_class=256\n",
         "flow: traffic_class: expected a number from 0 to 255"},
        {NODES "node id=1\nnode id=1\n", "text:4: node: id: expected a number, more than that of the node above"},
        {NODES "node\n", "text:3: node: id: expected a number"},
        {NODES "port number=1\n", "text:3: port: expected a node above it"},
        {NODES "node id=1 label=a%2\n", "text:3: node: label: 'a%2', expected two digits from 01 to 7f"},
        {NODES "node id=1 label=%00\n", "expected two digits from 01 to 7f"},
        {NODES "node id=1 label=%80\n", "expected two digits from 01 to 7f"},
        {NODES "node id=1 label=%\n", "expected two digits from 01 to 7f"},
    };
    struct dp_assignment *s;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(dp_assignment_read(wrong[i].text, strlen(wrong[i].text), "text", &s), DP_EINVAL);
        if (!strstr(dp_last_error(), wrong[i].sentence))
            fail_msg("'%s' does not say '%s'", dp_last_error(), wrong[i].sentence);
    }
}

/* Whatever a label is, a row ends where it should. */
CASE(a_text_may_have_blanks_and_signs)
{
    OWNED(dp_assignment) *s = read_text(HEAD(1, 1) "node id=8 kind=numa label=a%20%23%25b=\xc3\xa9%0a # blank\n"
                                        "\t worker\treplica=0   rank=0 gpu=7 came_as=0 memory=8\r\nend");

    assert_string_equal(dp_assignment_text(s, s->nodes[1].label), "a #%b=\xc3\xa9\n");
    assert_string_equal(dp_assignment_text(s, s->nodes[1].host), "");
    assert_int_equal(s->workers[0].memory, 1);
}

CASE(every_beginning_of_a_file_is_refused)
{
    struct fixture f = make("host:2 numa:1 gpu:1 nic:1 net=100Gb/s", 2, 1);
    const char *end = strrchr(f.text, 'd');
    struct dp_assignment *s;

    for (const char *at = f.text; at <= end; at++)
        assert_int_equal(dp_assignment_read(f.text, (size_t)(at - f.text), "part", &s), DP_EINVAL);
    unmake(&f);
}

/* ---- the environment ------------------------------------------------------------------------ */

CASE(the_environment_names_the_file)
{
    char path[SCRATCH_LEN];
    FILE *file = scratch_file(path, "assignment") ? fopen(path, "w") : NULL;
    struct dp_assignment *s = NULL;

    assert_non_null(file);
    fputs(MAPPED, file);
    fclose(file);
    unsetenv("DUALPIPE_PLACEMENT");
    must(dp_assignment_from_env(&s));
    assert_null(s);
    setenv("DUALPIPE_PLACEMENT", path, 1);
    must(dp_assignment_from_env(&s));
    assert_string_equal(s->name, path);
    assert_int_not_equal(dp_assignment_find(s, 0), 0);
    dp_assignment_free(s);
    setenv("DUALPIPE_PLACEMENT_NUMBERED", "1", 1);
    must(dp_assignment_from_env(&s));
    for (int32_t w = 0; w < s->worker_count; w++)
        assert_int_equal(dp_assignment_find(s, w), w);
    dp_assignment_free(s);
    unsetenv("DUALPIPE_PLACEMENT_NUMBERED");
    unlink(path);
    expect_error(dp_assignment_from_env(&s), DP_ENOENT, "DUALPIPE_PLACEMENT=/");
    assert_non_null(strstr(dp_last_error(), ": No such file"));
    setenv("DUALPIPE_PLACEMENT_BINT", "1", 1);
    expect_error(dp_assignment_from_env(&s), DP_EINVAL, "did you mean DUALPIPE_PLACEMENT_BIND?");
    unsetenv("DUALPIPE_PLACEMENT_BINT");
    unsetenv("DUALPIPE_PLACEMENT");
}

/* ---- sites ---------------------------------------------------------------------------------- */

/* A machine with these CPUs in NUMA node 1, and no other node. */
static void make_machine(char root[SCRATCH_LEN], const char *cpus)
{
    static const char *const dirs[] = {"/sys", "/sys/devices", "/sys/devices/system",
                                       "/sys/devices/system/node", "/sys/devices/system/node/node1"};
    char path[256];

    assert_true(scratch_directory(root, "site"));
    for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++) {
        snprintf(path, sizeof(path), "%s%s", root, dirs[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    strcat(path, "/cpulist");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", cpus);
    fclose(file);
}

/* One worker on host "home", next to this NUMA node. */
static struct dp_assignment *worker_at(int node)
{
    char text[512];

    snprintf(text, sizeof(text),
             "dualpipe assignment 1\nplacement ranks=1 replicas=1\nnode id=1 kind=gpu host=home.org\n"
             "node id=2 kind=numa os_index=%d\n"
             "worker replica=0 rank=0 gpu=1 came_as=0 memory=2\nend\n",
             node);
    return read_text(text);
}

static void allow(cpu_set_t *cpus, size_t from, size_t to)
{
    CPU_ZERO(cpus);
    for (size_t cpu = from; cpu <= to; cpu++)
        CPU_SET(cpu, cpus);
}

CASE(a_rank_is_next_to_the_cpus_that_may_be_used)
{
    char root[SCRATCH_LEN];
    OWNED(dp_assignment) *s = worker_at(1);
    struct dp_assigned_site site;
    cpu_set_t allowed;

    make_machine(root, "4-7,12");
    allow(&allowed, 6, 20);
    must(dp_assignment_site(s, 0, root, "home", &allowed, &site));
    assert_int_equal(site.node, 1);
    assert_int_equal(CPU_COUNT(&site.cpus), 3);
    assert_true(CPU_ISSET(6, &site.cpus) && CPU_ISSET(7, &site.cpus) && CPU_ISSET(12, &site.cpus));
    assert_int_equal(scratch_remove(root), 0);
}

static void expect_no_site(int node, const char *root, const char *host, size_t from, size_t to,
                           const char *sentence)
{
    OWNED(dp_assignment) *s = worker_at(node);
    struct dp_assigned_site site;
    cpu_set_t allowed;

    allow(&allowed, from, to);
    assert_int_equal(dp_assignment_site(s, 0, root, host, &allowed, &site), DP_ENODEV);
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' does not say '%s'", dp_last_error(), sentence);
}

CASE(where_there_is_no_such_site_the_error_names_the_reason)
{
    char root[SCRATCH_LEN];

    make_machine(root, "4-7");
    expect_no_site(1, root, "away", 0, 20, "this is away, and not home.org");
    expect_no_site(2, root, "home", 0, 20, "home has no NUMA node 2");
    expect_no_site(1, root, "home", 0, 3, "may use no CPU of NUMA node 1");
    assert_int_equal(scratch_remove(root), 0);
}

/* A node of memory alone keeps the CPUs. */
CASE(a_node_without_cpus_is_a_site)
{
    char root[SCRATCH_LEN];
    OWNED(dp_assignment) *s = worker_at(1);
    struct dp_assigned_site site;
    cpu_set_t allowed;

    make_machine(root, "");
    allow(&allowed, 0, 3);
    must(dp_assignment_site(s, 0, root, "home", &allowed, &site));
    assert_int_equal(CPU_COUNT(&site.cpus), 0);
    assert_int_equal(scratch_remove(root), 0);
}

/* ---- binding -------------------------------------------------------------------------------- */

/* On this machine, in a thread of its own. */
static void *bind_here(void *user)
{
    cpu_set_t *after = user;
    char host[256] = "", text[1024];
    struct dp_assignment *s;

    gethostname(host, sizeof(host) - 1);
    snprintf(text, sizeof(text),
             "dualpipe assignment 1\nplacement ranks=1 replicas=1\nnode id=1 kind=gpu host=%s\n"
             "node id=2 kind=numa os_index=0\n"
             "worker replica=0 rank=0 gpu=1 came_as=0 memory=2\nend\n",
             host);
    if (dp_assignment_read(text, strlen(text), "here", &s))
        return NULL;
    int err = dp_assignment_bind(s, 0);
    dp_assignment_free(s);
    return !err && !sched_getaffinity(0, sizeof(*after), after) ? user : NULL;
}

CASE(a_thread_stays_on_cpus_that_it_had)
{
    cpu_set_t before, after;
    pthread_t thread;
    void *done;

    if (sched_getaffinity(0, sizeof(before), &before))
        skip_because("the system does not tell the CPUs of a thread");
    assert_int_equal(pthread_create(&thread, NULL, bind_here, &after), 0);
    assert_int_equal(pthread_join(thread, &done), 0);
    assert_non_null(done);
    assert_true(CPU_COUNT(&after) > 0);
    CPU_OR(&after, &after, &before);
    assert_true(CPU_EQUAL(&after, &before));
}

CASE(a_worker_that_is_not_there_is_refused)
{
    OWNED(dp_assignment) *s = worker_at(0);

    expect_error(dp_assignment_bind(s, -1), DP_EINVAL, "worker -1, expected one from 0 to 0");
    setenv("DUALPIPE_PLACEMENT_BIND", "maybe", 1);
    assert_int_equal(dp_assignment_bind(s, 0), DP_EINVAL);
    setenv("DUALPIPE_PLACEMENT_BIND", "no", 1);
    assert_int_equal(dp_assignment_bind(s, -1), 0);
    unsetenv("DUALPIPE_PLACEMENT_BIND");
}

RUN_QUIET_CASES(NULL, NULL)
