/* SPDX-License-Identifier: Apache-2.0
 *
 * `dualpipe stat` and the net plugin that counts: real processes, real pages.
 */
#include "config.h"

#ifndef HAVE_VERBS
#define HAVE_VERBS 0
#endif

#include "cmocka_all.h"
#if HAVE_VERBS
#include "fakes/ibverbs/fake_verbs.h"
#endif
#include "nccl-plugin/net_caller.h"
#include "nccl-plugin/net_stat_page.h"

#include <jansson.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SMALL = 100, LARGE = 100000, SMALLS = 20, LARGES = 5, PATIENCE_S = 120 };

static char work[] = "/tmp/dualpipe-stat-XXXXXX"; /* and below it what a test needs */
static char pages[128];

/* ---- a process with connections ------------------------------------------------------------------ */

struct worker {
    pid_t pid;
    int orders, answers; /* a byte each */
};

/* In the worker: both ends of a connection. */
static const struct net_caller *net;
static void *ctx, *listener, *sender, *receiver, *memories[2];
static char buffer[2][LARGE];

static void must(bool so, const char *what)
{
    if (so)
        return;
    fprintf(stderr, "worker: %s\n", what);
    _exit(1);
}

static int lost_lanes; /* that the plugin has told of */

__attribute__((format(printf, 5, 6)))
static void note_lost_lanes(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                            const char *fmt, ...)
{
    char text[1024];
    va_list args;

    (void)level;
    (void)flags;
    (void)file;
    (void)line;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    lost_lanes += strstr(text, "lanes are left") != NULL;
}

static void open_pair(void)
{
    static char handle[NCCL_NET_HANDLE_MAXSIZE];

    sender = receiver = NULL;
    must(!net->listen(ctx, 0, handle, &listener), "listen");
    while (!sender || !receiver) {
        must(sender || !net->connect(ctx, 0, handle, &sender), "connect");
        must(receiver || !net->accept(listener, &receiver), "accept");
    }
    must(!net->reg(sender, buffer[0], LARGE, NCCL_PTR_HOST, &memories[0]), "regMr");
    must(!net->reg(receiver, buffer[1], LARGE, NCCL_PTR_HOST, &memories[1]), "regMr");
}

static void close_pair(void)
{
    net->dereg(sender, memories[0]);
    net->dereg(receiver, memories[1]);
    net->close_send(sender);
    net->close_recv(receiver);
    net->close_listen(listener);
}

#if HAVE_VERBS
/* The port of the only RDMA device. */
static const struct fake_verbs *fake;
static bool is_port_down;

static void set_port(bool up)
{
    is_port_down = !up;
    must(fake->set_port("fake0", 1, up), "the port");
}

/* In place of the library of that name: the plugin finds it loaded. */
static void load_stand_in(void)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/tests/fakes/ibverbs/.libs/libibverbs.so.1",
             getenv("DP_TOP_BUILDDIR"));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake_verbs") : NULL;
    must(fake, "the stand-in for libibverbs");
    setenv("DUALPIPE_NET_EAGER", "0", 1); /* so that the first send of a group stalls, as elsewhere */
}

/* The plugin has said that it cannot go on: from now on it can. */
static void mend_port(void)
{
    if (is_port_down && lost_lanes)
        set_port(true);
}
#else
static void set_port(bool up)
{
    (void)up;
}

static void load_stand_in(void)
{
}

static void mend_port(void)
{
}
#endif

/* `n` messages of a size, as one group of receives; the first send is tried before there is one. */
static void transfer(int n, size_t size)
{
    void *data[8], *into[8], *recv = NULL, *send = NULL;
    size_t sizes[8];
    int tags[8] = {0, 1, 2, 3, 4, 5, 6, 7}, done = 0, got[8];

    for (int i = 0; i < n; i++) {
        data[i] = buffer[1];
        into[i] = memories[1];
        sizes[i] = size;
    }
    must(!net->isend(sender, buffer[0], size, 0, memories[0], &send) && !send, "a send has a grant");
    must(!net->irecv(receiver, n, data, sizes, tags, into, &recv) && recv, "irecv");
    for (int sent = 0; sent < n || !done;) {
        mend_port();
        if (sent < n && !send)
            must(!net->isend(sender, buffer[0], size, sent, memories[0], &send), "isend");
        if (send) {
            must(!net->test(send, &done, got), "test of a send");
            sent += done;
            send = done ? NULL : send;
            done = 0;
        }
        if (recv)
            must(!net->test(recv, &done, got), "test of a receive");
        recv = done ? NULL : recv;
        done = !recv;
    }
}

static void load(void)
{
    char path[4096];

    if (getenv("FAKE_VERBS_FABRIC"))
        load_stand_in();

    snprintf(path, sizeof(path), "%s/nccl-plugin/.libs/libnccl-net-dualpipe.so",
             getenv("DP_TOP_BUILDDIR"));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    must(library, "the plugin");
    net = net_caller_find(library, NEWEST_VERSION);
    must(net && !net->init(&ctx, note_lost_lanes), "init");
}

static void transfer_all(void)
{
    for (int i = 0; i < SMALLS; i++)
        transfer(1, SMALL);
    for (int i = 0; i < LARGES; i++)
        transfer(1, LARGE);
    transfer(4, SMALL);
}

/* Its child opens a connection of its own, and counts on a page of its own. */
static void fork_another(void)
{
    pid_t child = fork();

    must(child >= 0, "fork");
    if (child)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_pair();
    transfer(1, SMALL);
    for (;;)
        pause();
}

/* Orders: t transfer, b one message more, over a port that is down for a while, c close, f fork, e end
 * by itself. Each is answered when it is done. */
static void serve(int orders, int answers)
{
    char order;

    load();
    open_pair();
    must(write(answers, "o", 1) == 1, "answer");
    while (read(orders, &order, 1) == 1) {
        if (order == 't')
            transfer_all();
        if (order == 'b') {
            set_port(false);
            transfer(1, SMALL);
        }
        if (order == 'c')
            close_pair();
        if (order == 'f')
            fork_another();
        if (order == 'e')
            exit(0);
        must(write(answers, &order, 1) == 1, "answer");
    }
    _exit(0);
}

static void expect(const struct worker *w, char answer)
{
    char c = 0;

    assert_int_equal(read(w->answers, &c, 1), 1);
    assert_int_equal(c, answer);
}

static void tell(const struct worker *w, char order)
{
    assert_int_equal(write(w->orders, &order, 1), 1);
    expect(w, order);
}

/* The worker has an RDMA device, of the stand-in for libibverbs. */
static void add_rdma(void)
{
    char fabric[128];

    snprintf(fabric, sizeof(fabric), "%s/fabric", work);
    mkdir(fabric, 0700);
    setenv("FAKE_VERBS_FABRIC", fabric, 1);
    setenv("FAKE_VERBS_RETRY_MS", "1", 1);
}

static struct worker start(const char *wire, const char *directory)
{
    int orders[2], answers[2];

    assert_int_equal(pipe(orders), 0);
    assert_int_equal(pipe(answers), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(PATIENCE_S);
        close(orders[1]);
        close(answers[0]);
        setenv("DUALPIPE_NET_STAT", "1", 1);
        setenv("DUALPIPE_NET_STAT_DIR", directory, 1);
        setenv("DUALPIPE_NET_WIRE", wire, 1);
        setenv("NCCL_SOCKET_IFNAME", "lo", 1);
        if (!strcmp(wire, "verbs"))
            add_rdma();
        serve(orders[0], answers[1]);
    }
    assert_true(pid > 0);
    close(orders[0]);
    close(answers[1]);
    struct worker w = {pid, orders[1], answers[0]};
    expect(&w, 'o');
    return w;
}

static void stop(struct worker *w)
{
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
    close(w->orders);
    close(w->answers);
}

/* ---- the command --------------------------------------------------------------------------------- */

static char out[1 << 20], err[1 << 14];

static void read_file(const char *name, char *text, size_t len)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", work, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t got = fread(text, 1, len - 1, f);
    fclose(f);
    text[got] = '\0';
}

/* Its exit status; what it wrote is in out and err. */
static int run(const char *arguments)
{
    char command[8192];

    snprintf(command, sizeof(command), "'%s/tools/dualpipe' stat --dir '%s' %s >'%s/out' 2>'%s/err'",
             getenv("DP_TOP_BUILDDIR"), pages, arguments, work, work);
    int status = system(command);
    read_file("out", out, sizeof(out));
    read_file("err", err, sizeof(err));
    return WEXITSTATUS(status);
}

static json_t *run_json(void)
{
    json_error_t why;

    assert_int_equal(run("--json"), 0);
    assert_string_equal(err, "");
    json_t *all = json_loads(out, 0, &why);
    assert_non_null(all);
    assert_int_equal(json_integer_value(json_object_get(all, "format")), 1);
    return all;
}

static json_t *process_at(json_t *all, size_t at)
{
    return json_array_get(json_object_get(all, "processes"), at);
}

static size_t process_count(json_t *all)
{
    return json_array_size(json_object_get(all, "processes"));
}

static int64_t count(json_t *of, const char *name)
{
    json_t *value = json_object_get(of, name);

    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* Of a process's first device. */
static json_t *way(json_t *process, const char *name)
{
    return json_object_get(json_array_get(json_object_get(process, "devices"), 0), name);
}

static int64_t sum(json_t *histogram)
{
    int64_t all = 0;
    size_t i;
    json_t *place;

    json_array_foreach(histogram, i, place)
        all += count(place, "count");
    return all;
}

static int64_t place(json_t *histogram, int64_t below)
{
    size_t i;
    json_t *one;

    json_array_foreach(histogram, i, one)
        if (count(one, "below") == below)
            return count(one, "count");
    return 0;
}

/* ---- what is counted ----------------------------------------------------------------------------- */

enum { MESSAGES = SMALLS + LARGES + 4, REQUESTS = SMALLS + LARGES + 1 };
static const int64_t all_bytes = (SMALLS + 4) * SMALL + LARGES * LARGE;

static void check_way(json_t *c, int64_t requests, int open)
{
    assert_int_equal(count(c, "messages"), MESSAGES);
    assert_int_equal(count(c, "bytes"), all_bytes);
    assert_int_equal(count(c, "requests"), requests);
    assert_int_equal(count(c, "finished"), requests);
    assert_int_equal(count(c, "open"), open);
    assert_int_equal(count(c, "errors"), 0);
    assert_int_equal(place(json_object_get(c, "size_bytes"), 128), SMALLS + 4);
    assert_int_equal(place(json_object_get(c, "size_bytes"), 131072), LARGES);
    assert_int_equal(sum(json_object_get(c, "size_bytes")), MESSAGES);
    /* All long ones are timed, and some of the others. */
    assert_in_range(sum(json_object_get(c, "completion_ns")), LARGES + 1, MESSAGES);
    assert_true(count(c, "timed_ns") > 0);
}

static void check_both_ways(json_t *process, int open)
{
    check_way(way(process, "send"), MESSAGES, open);
    check_way(way(process, "receive"), REQUESTS, open);
    assert_true(count(way(process, "send"), "stalls") >= REQUESTS);
    assert_true(count(way(process, "send"), "stall_ns") > 0);
    assert_int_equal(count(way(process, "receive"), "stalls"), 0);
}

static void check_connections(json_t *process, const char *wire)
{
    json_t *list = json_object_get(process, "connections");
    size_t i;
    json_t *c;

    assert_int_equal(json_array_size(list), 2);
    json_array_foreach(list, i, c) {
        assert_int_equal(count(c, "number"), i + 1);
        assert_int_equal(count(c, "messages"), MESSAGES);
        assert_string_equal(json_string_value(json_object_get(c, "transport")), wire);
        assert_string_equal(json_string_value(json_object_get(c, "device")), "lo");
        const char *peer = json_string_value(json_object_get(c, "peer"));
        if (strcmp(wire, "tcp"))
            assert_string_equal(peer, "this host");
        else
            assert_memory_equal(peer, "127.0.0.1:", 10);
    }
}

static void count_over(const char *wire)
{
    struct worker w = start(wire, pages);

    tell(&w, 't');
    json_t *all = run_json();
    assert_int_equal(process_count(all), 1);
    assert_int_equal(count(process_at(all, 0), "pid"), w.pid);
    check_both_ways(process_at(all, 0), 1);
    check_connections(process_at(all, 0), wire);
    json_decref(all);
    stop(&w);
}

static void connections_over_shm_count_what_they_do(void **state)
{
    (void)state;
    count_over("shm");
}

static void connections_over_tcp_count_what_they_do(void **state)
{
    (void)state;
    count_over("tcp");
}

static void connections_over_rdma_count_failovers(void **state)
{
    (void)state;
    if (!HAVE_VERBS)
        skip_because("built without infiniband/verbs.h");
    struct worker w = start("verbs", pages);
    tell(&w, 't');
    json_t *all = run_json();
    check_both_ways(process_at(all, 0), 1);
    json_decref(all);
    tell(&w, 'b');
    all = run_json();
    json_t *send = way(process_at(all, 0), "send"), *receive = way(process_at(all, 0), "receive");
    assert_int_equal(count(send, "messages"), MESSAGES + 1);
    assert_int_equal(count(receive, "messages"), MESSAGES + 1);
    assert_true(count(send, "failovers") + count(receive, "failovers") > 0);
    assert_int_equal(count(send, "errors"), 0);
    assert_int_equal(count(receive, "errors"), 0);
    json_decref(all);
    stop(&w);
}

static void what_closed_connections_have_counted_stays(void **state)
{
    (void)state;
    struct worker w = start("auto", pages);
    tell(&w, 't');
    tell(&w, 'c');
    json_t *all = run_json();
    check_both_ways(process_at(all, 0), 0);
    assert_int_equal(json_array_size(json_object_get(process_at(all, 0), "connections")), 0);
    assert_int_equal(count(process_at(all, 0), "opened"), 2);
    json_decref(all);
    stop(&w);
}

static void a_forked_child_counts_for_itself(void **state)
{
    (void)state;
    struct worker w = start("auto", pages);
    tell(&w, 'f');
    json_t *all = run_json();
    /* The child takes its time; it is there once it has counted a message. */
    for (time_t end = time(NULL) + PATIENCE_S; time(NULL) < end;) {
        if (process_count(all) == 2 && count(way(process_at(all, 1), "receive"), "messages") == 1)
            break;
        json_decref(all);
        all = run_json();
    }
    assert_int_equal(process_count(all), 2);
    assert_int_equal(count(way(process_at(all, 0), "send"), "messages"), 0);
    assert_int_equal(count(way(process_at(all, 1), "send"), "messages"), 1);
    assert_int_equal(count(process_at(all, 1), "opened"), 2);
    json_decref(all);
    stop(&w);
}

/* ---- pages come and go --------------------------------------------------------------------------- */

/* The name of the only page; false: there is none. */
static bool find_page(char *path, size_t len)
{
    DIR *list = opendir(pages);
    bool found = false;

    assert_non_null(list);
    for (struct dirent *e; (e = readdir(list));)
        if (strstr(e->d_name, DPN_STAT_SUFFIX)) {
            snprintf(path, len, "%s/%s", pages, e->d_name);
            found = true;
        }
    closedir(list);
    return found;
}

static void a_page_is_its_users_alone(void **state)
{
    (void)state;
    struct worker w = start("auto", pages);
    char path[512];
    struct stat st;
    assert_true(find_page(path, sizeof(path)));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, sizeof(struct dpn_stat_page));
    assert_int_equal(stat(pages, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    stop(&w);
}

static void the_page_of_a_killed_process_is_removed(void **state)
{
    (void)state;
    struct worker w = start("auto", pages);
    char path[512];
    stop(&w);
    assert_true(find_page(path, sizeof(path)));
    json_t *all = run_json();
    assert_int_equal(process_count(all), 0);
    json_decref(all);
    assert_false(find_page(path, sizeof(path)));
}

static void the_next_process_sweeps_too(void **state)
{
    (void)state;
    struct worker w = start("auto", pages), next;
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    stop(&w);
    next = start("auto", pages);
    assert_int_equal(access(path, F_OK), -1);
    stop(&next);
}

static void a_process_that_ends_takes_its_page_along(void **state)
{
    (void)state;
    struct worker w = start("auto", pages);
    char path[512];
    assert_int_equal(write(w.orders, "e", 1), 1);
    int status;
    waitpid(w.pid, &status, 0);
    assert_int_equal(status, 0);
    assert_false(find_page(path, sizeof(path)));
    stop(&w);
}

static void a_directory_of_others_is_not_used(void **state)
{
    (void)state;
    char open_to_all[256], path[512];
    snprintf(open_to_all, sizeof(open_to_all), "%s/open", work);
    mkdir(open_to_all, 0755);
    struct worker w = start("auto", open_to_all);
    tell(&w, 't'); /* works, and counts nothing */
    stop(&w);
    assert_false(find_page(path, sizeof(path)));
    rmdir(open_to_all);
}

/* ---- what is refused ----------------------------------------------------------------------------- */

static void refuse(const char *sentence)
{
    assert_int_equal(run(""), 1);
    if (!strstr(err, sentence))
        fail_msg("'%s' does not say '%s'", err, sentence);
    assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
}

static void overwrite(const char *path, off_t at, const void *bytes, size_t len)
{
    int fd = open(path, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, len, at), len);
    close(fd);
}

static void garbage_is_refused_and_kept(void **state)
{
    (void)state;
    char path[512];
    static char garbage[sizeof(struct dpn_stat_page)];
    memset(garbage, 'x', sizeof(garbage));
    snprintf(path, sizeof(path), "%s/1-garbage" DPN_STAT_SUFFIX, pages);
    for (size_t len = 0; len <= sizeof(garbage); len += sizeof(garbage) / 2) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, garbage, len), len);
        close(fd);
        refuse("is no page of counters");
        assert_int_equal(access(path, F_OK), 0);
    }
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    refuse("cannot read");
    unlink(path);
}

static void a_page_of_another_version_is_refused(void **state)
{
    (void)state;
    struct worker w = start("auto", pages);
    const uint32_t version = DPN_STAT_VERSION + 6;
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    overwrite(path, offsetof(struct dpn_stat_head, version), &version, sizeof(version));
    refuse("has layout 8, expected 2: another version of dualpipe writes it");
    stop(&w);
}

static void a_damaged_page_is_refused(void **state)
{
    (void)state;
    struct worker w = start("auto", pages);
    const uint32_t wild = 77;
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    overwrite(path, offsetof(struct dpn_stat_page, connections[0].device), &wild, sizeof(wild));
    refuse("is damaged: it counts for a device that it does not have");
    overwrite(path, offsetof(struct dpn_stat_head, bytes), &wild, sizeof(wild));
    refuse("is damaged: it has ");
    stop(&w);
}

static void what_belongs_to_another_user_is_not_read(void **state)
{
    (void)state;
    if (geteuid())
        skip_because("only root can give a file away");
    struct worker w = start("auto", pages);
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    assert_int_equal(chown(path, 65534, 65534), 0);
    refuse("belongs to user 65534: it is not read");
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(pages, 65534, 65534), 0);
    refuse("belongs to user 65534: only your own processes are shown");
    assert_int_equal(chown(pages, 0, 0), 0);
    stop(&w);
}

/* ---- forms of output ----------------------------------------------------------------------------- */

static void a_table_has_processes_devices_and_connections(void **state)
{
    (void)state;
    assert_int_equal(run(""), 0);
    assert_non_null(strstr(out, "0 processes of this user count\n"));
    assert_non_null(strstr(out, "DUALPIPE_NET_STAT=1"));
    struct worker w = start("tcp", pages);
    tell(&w, 't');
    assert_int_equal(run("--connections"), 0);
    char process[64];
    snprintf(process, sizeof(process), "\nprocess %d: ", (int)w.pid);
    assert_non_null(strstr(out, "1 process of this user counts\n"));
    assert_non_null(strstr(out, process));
    assert_non_null(strstr(out, "\nlo                       send       1         29   502 kB"));
    assert_non_null(strstr(out, "tcp 127.0.0.1:"));
    stop(&w);
}

static void a_table_is_followed_until_a_signal(void **state)
{
    (void)state;
    char program[4096], text[4096];
    int ends[2], status, looks = 0;
    assert_int_equal(pipe(ends), 0);
    snprintf(program, sizeof(program), "%s/tools/dualpipe", getenv("DP_TOP_BUILDDIR"));
    pid_t pid = fork();
    if (pid == 0) {
        alarm(PATIENCE_S);
        signal(SIGINT, SIG_DFL);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl(program, program, "stat", "--dir", pages, "-f", "--interval", "10ms", NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *from = fdopen(ends[0], "r");
    while (looks < 3 && fgets(text, sizeof(text), from))
        looks += strstr(text, "0 processes of this user count") != NULL;
    assert_int_equal(looks, 3);
    kill(pid, SIGINT);
    while (fgets(text, sizeof(text), from))
        continue;
    fclose(from);
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

/* Every line is a comment or a sample; TYPE stands before its samples; buckets grow up to the count. */
static void check_prometheus(char *text, int samples_at_least)
{
    static const char pattern[] =
        "^dualpipe_net_[a-z_]+\\{pid=\"[0-9]+\",command=\"([^\"\\\\]|\\\\.)*\",device=\"[^\"]+\","
        "way=\"(send|receive)\"(,le=\"([0-9.e+-]+|\\+Inf)\")?\\} [0-9.e+-]+$";
    char *rest = NULL, type[128] = "";
    double last = 0;
    int samples = 0;
    regex_t sample;

    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_int_equal(regcomp(&sample, pattern, REG_EXTENDED | REG_NOSUB), 0);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (!strncmp(line, "# HELP ", 7))
            continue;
        if (sscanf(line, "# TYPE %127s", type) == 1)
            continue;
        if (regexec(&sample, line, 0, NULL, 0) || strncmp(line, type, strlen(type)) != 0)
            fail_msg("not a sample of %s: %s", type, line);
        const double value = atof(strrchr(line, ' '));
        const bool is_bucket = strstr(line, "_bucket{"), is_count = strstr(line, "_count{");
        assert_true(!is_bucket || value >= last);
        assert_true(!is_count || value == last);
        last = is_bucket ? value : is_count ? 0 : last;
        samples++;
    }
    regfree(&sample);
    assert_true(samples >= samples_at_least);
}

static void prometheus_reads_what_is_counted(void **state)
{
    (void)state;
    assert_int_equal(run("--prometheus -"), 0);
    check_prometheus(out, 0);
    struct worker w = start("shm", pages);
    tell(&w, 't');
    assert_int_equal(run("--prometheus -"), 0);
    assert_non_null(strstr(out, "device=\"lo\",way=\"send\"} 502400\n"));
    assert_non_null(strstr(out, ",le=\"127\"} 24\n"));
    check_prometheus(out, 2 * (1 + 11 + 70));
    stop(&w);
}

static void a_prometheus_file_appears_whole(void **state)
{
    (void)state;
    char arguments[512], path[256];
    snprintf(path, sizeof(path), "%s/file.prom", work);
    snprintf(arguments, sizeof(arguments), "--prometheus '%s'", path);
    assert_int_equal(run(arguments), 0);
    read_file("file.prom", out, sizeof(out));
    check_prometheus(out, 0);
    unlink(path);
    snprintf(arguments, sizeof(arguments), "--prometheus '%s/nowhere/file'", work);
    assert_int_equal(run(arguments), 1);
    assert_non_null(strstr(err, "cannot write"));
}

static void mistakes_of_the_command_line_are_told(void **state)
{
    (void)state;
    assert_int_equal(run("--json --prometheus -"), 2);
    assert_non_null(strstr(err, "expected one of them"));
    assert_int_equal(run("--dir /nowhere/at/all"), 2);
    assert_non_null(strstr(err, "cannot open the directory /nowhere/at/all"));
}

/* ---- all ----------------------------------------------------------------------------------------- */

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(work))
        return -1;
    snprintf(pages, sizeof(pages), "%s/pages", work);
    return mkdir(pages, 0700);
}

static int remove_directory(void **state)
{
    char command[256];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", work);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_over_shm_count_what_they_do),
        cmocka_unit_test(connections_over_tcp_count_what_they_do),
        cmocka_unit_test(connections_over_rdma_count_failovers),
        cmocka_unit_test(what_closed_connections_have_counted_stays),
        cmocka_unit_test(a_forked_child_counts_for_itself),
        cmocka_unit_test(a_page_is_its_users_alone),
        cmocka_unit_test(the_page_of_a_killed_process_is_removed),
        cmocka_unit_test(the_next_process_sweeps_too),
        cmocka_unit_test(a_process_that_ends_takes_its_page_along),
        cmocka_unit_test(a_directory_of_others_is_not_used),
        cmocka_unit_test(garbage_is_refused_and_kept),
        cmocka_unit_test(a_page_of_another_version_is_refused),
        cmocka_unit_test(a_damaged_page_is_refused),
        cmocka_unit_test(what_belongs_to_another_user_is_not_read),
        cmocka_unit_test(a_table_has_processes_devices_and_connections),
        cmocka_unit_test(a_table_is_followed_until_a_signal),
        cmocka_unit_test(prometheus_reads_what_is_counted),
        cmocka_unit_test(a_prometheus_file_appears_whole),
        cmocka_unit_test(mistakes_of_the_command_line_are_told),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
