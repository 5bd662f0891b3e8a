/* SPDX-License-Identifier: Apache-2.0
 *
 * `dualpipe stat` and the net plugin that counts: real processes, real pages.
 */
#include "config.h"

#ifndef HAVE_VERBS
#define HAVE_VERBS 0
#endif

#include "cmocka_all.h"
#include "nccl-plugin/net/stat_page.h"
#include "system/stat_command.h"
#include "system/stat_worker.h"

#include <dirent.h>
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

/* ---- what is counted ------------------------------------------------------------------------- */

enum { MESSAGES = STAT_SMALLS + STAT_LARGES + 4, REQUESTS = STAT_SMALLS + STAT_LARGES + 1 };
static const int64_t all_bytes = (STAT_SMALLS + 4) * STAT_SMALL + STAT_LARGES * STAT_LARGE;

static void check_way(json_t *c, int64_t requests, int open)
{
    assert_int_equal(stat_count(c, "messages"), MESSAGES);
    assert_int_equal(stat_count(c, "bytes"), all_bytes);
    assert_int_equal(stat_count(c, "requests"), requests);
    assert_int_equal(stat_count(c, "finished"), requests);
    assert_int_equal(stat_count(c, "open"), open);
    assert_int_equal(stat_count(c, "errors"), 0);
    assert_int_equal(stat_place(json_object_get(c, "size_bytes"), 128), STAT_SMALLS + 4);
    assert_int_equal(stat_place(json_object_get(c, "size_bytes"), 131072), STAT_LARGES);
    assert_int_equal(stat_sum(json_object_get(c, "size_bytes")), MESSAGES);
    /* All long ones are timed, and some of the others. */
    assert_in_range(stat_sum(json_object_get(c, "completion_ns")), STAT_LARGES + 1, MESSAGES);
    assert_true(stat_count(c, "timed_ns") > 0);
}

static void check_both_ways(json_t *process, int open)
{
    check_way(stat_way(process, "send"), MESSAGES, open);
    check_way(stat_way(process, "receive"), REQUESTS, open);
    assert_true(stat_count(stat_way(process, "send"), "stalls") >= REQUESTS);
    assert_true(stat_count(stat_way(process, "send"), "stall_ns") > 0);
    assert_int_equal(stat_count(stat_way(process, "receive"), "stalls"), 0);
}

static void check_connections(json_t *process, const char *wire)
{
    json_t *list = json_object_get(process, "connections");
    size_t i;
    json_t *c;

    assert_int_equal(json_array_size(list), 2);
    json_array_foreach(list, i, c) {
        assert_int_equal(stat_count(c, "number"), i + 1);
        assert_int_equal(stat_count(c, "messages"), MESSAGES);
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
    struct stat_worker w = stat_start(wire, stat_pages);

    stat_tell(&w, 't');
    json_t *all = stat_run_json();
    assert_int_equal(stat_process_count(all), 1);
    assert_int_equal(stat_count(stat_process_at(all, 0), "pid"), w.pid);
    check_both_ways(stat_process_at(all, 0), 1);
    check_connections(stat_process_at(all, 0), wire);
    json_decref(all);
    stat_stop(&w);
}

static void connections_over_shm_count_what_they_do(void **state)
{
    count_over("shm");
}

static void connections_over_tcp_count_what_they_do(void **state)
{
    count_over("tcp");
}

static void connections_over_rdma_count_failovers(void **state)
{
    if (!HAVE_VERBS)
        skip_because("built without infiniband/verbs.h");
    struct stat_worker w = stat_start("verbs", stat_pages);
    stat_tell(&w, 't');
    json_t *all = stat_run_json();
    check_both_ways(stat_process_at(all, 0), 1);
    json_decref(all);
    stat_tell(&w, 'b');
    all = stat_run_json();
    json_t *process = stat_process_at(all, 0);
    json_t *send = stat_way(process, "send"), *receive = stat_way(process, "receive");
    assert_int_equal(stat_count(send, "messages"), MESSAGES + 1);
    assert_int_equal(stat_count(receive, "messages"), MESSAGES + 1);
    assert_true(stat_count(send, "failovers") + stat_count(receive, "failovers") > 0);
    assert_int_equal(stat_count(send, "errors"), 0);
    assert_int_equal(stat_count(receive, "errors"), 0);
    json_decref(all);
    stat_stop(&w);
}

static void what_closed_connections_have_counted_stays(void **state)
{
    struct stat_worker w = stat_start("auto", stat_pages);
    stat_tell(&w, 't');
    stat_tell(&w, 'c');
    json_t *all = stat_run_json();
    check_both_ways(stat_process_at(all, 0), 0);
    assert_int_equal(json_array_size(json_object_get(stat_process_at(all, 0), "connections")), 0);
    assert_int_equal(stat_count(stat_process_at(all, 0), "opened"), 2);
    json_decref(all);
    stat_stop(&w);
}

static void a_forked_child_counts_for_itself(void **state)
{
    struct stat_worker w = stat_start("auto", stat_pages);
    stat_tell(&w, 'f');
    json_t *all = stat_run_json();
    /* The child takes its time; it is there once it has counted a message. */
    for (time_t end = time(NULL) + STAT_DEADLINE_S; time(NULL) < end;) {
        if (stat_process_count(all) == 2 &&
            stat_count(stat_way(stat_process_at(all, 1), "receive"), "messages") == 1)
            break;
        json_decref(all);
        all = stat_run_json();
    }
    assert_int_equal(stat_process_count(all), 2);
    assert_int_equal(stat_count(stat_way(stat_process_at(all, 0), "send"), "messages"), 0);
    assert_int_equal(stat_count(stat_way(stat_process_at(all, 1), "send"), "messages"), 1);
    assert_int_equal(stat_count(stat_process_at(all, 1), "opened"), 2);
    json_decref(all);
    stat_stop(&w);
}

/* ---- pages come and go ----------------------------------------------------------------------- */

/* The name of the only page; false: there is none. */
static bool find_page(char *path, size_t len)
{
    DIR *list = opendir(stat_pages);
    bool found = false;

    assert_non_null(list);
    for (struct dirent *e; (e = readdir(list));)
        if (strstr(e->d_name, dpn_stat_kind.suffix)) {
            snprintf(path, len, "%s/%s", stat_pages, e->d_name);
            found = true;
        }
    closedir(list);
    return found;
}

static void a_page_is_its_users_alone(void **state)
{
    struct stat_worker w = stat_start("auto", stat_pages);
    char path[512];
    struct stat st;
    assert_true(find_page(path, sizeof(path)));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, sizeof(struct dpn_stat_page));
    assert_int_equal(stat(stat_pages, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    stat_stop(&w);
}

static void the_page_of_a_killed_process_is_removed(void **state)
{
    struct stat_worker w = stat_start("auto", stat_pages);
    char path[512];
    stat_stop(&w);
    assert_true(find_page(path, sizeof(path)));
    json_t *all = stat_run_json();
    assert_int_equal(stat_process_count(all), 0);
    json_decref(all);
    assert_false(find_page(path, sizeof(path)));
}

static void the_next_process_sweeps_too(void **state)
{
    struct stat_worker w = stat_start("auto", stat_pages), next;
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    stat_stop(&w);
    next = stat_start("auto", stat_pages);
    assert_int_equal(access(path, F_OK), -1);
    stat_stop(&next);
}

static void a_process_that_ends_takes_its_page_along(void **state)
{
    struct stat_worker w = stat_start("auto", stat_pages);
    char path[512];
    assert_int_equal(write(w.orders, "e", 1), 1);
    int status;
    waitpid(w.pid, &status, 0);
    assert_int_equal(status, 0);
    assert_false(find_page(path, sizeof(path)));
    stat_stop(&w);
}

static void a_directory_of_others_is_not_used(void **state)
{
    char open_to_all[256], path[512];
    snprintf(open_to_all, sizeof(open_to_all), "%s/open", stat_work);
    mkdir(open_to_all, 0755);
    struct stat_worker w = stat_start("auto", open_to_all);
    stat_tell(&w, 't'); /* works, and counts nothing */
    stat_stop(&w);
    assert_false(find_page(path, sizeof(path)));
    rmdir(open_to_all);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refuse(const char *sentence)
{
    assert_int_equal(stat_run(""), 1);
    if (!strstr(stat_err, sentence))
        fail_msg("'%s' does not say '%s'", stat_err, sentence);
    assert_ptr_equal(strchr(stat_err, '\n'), stat_err + strlen(stat_err) - 1);
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
    char path[512];
    static char garbage[sizeof(struct dpn_stat_page)];
    memset(garbage, 'x', sizeof(garbage));
    snprintf(path, sizeof(path), "%s/1-garbage%s", stat_pages, dpn_stat_kind.suffix);
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
    struct stat_worker w = stat_start("auto", stat_pages);
    const uint32_t version = DP_PAGE_VERSION + 6;
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    overwrite(path, offsetof(struct dp_page_head, version), &version, sizeof(version));
    refuse("has layout 10, expected 4: another version of dualpipe writes it");
    stat_stop(&w);
}

/* A command line is what a user typed, cut where the page has no more room for it. */
static void a_command_that_is_no_utf8_is_shown_as_far_as_it_is(void **state)
{
    static const char typed[] = "tr\303\244in \377 \355\240\200 \302\233 \xf0\x9f\x8e\x89 \303";
    static const char shown[] = "tr\303\244in ? ??? ?? \xf0\x9f\x8e\x89 ?";
    struct stat_worker w = stat_start("auto", stat_pages);
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    overwrite(path, offsetof(struct dp_page_head, command), typed, sizeof(typed));
    json_t *all = stat_run_json();
    assert_int_equal(stat_process_count(all), 1);
    assert_string_equal(json_string_value(json_object_get(stat_process_at(all, 0), "command")), shown);
    json_decref(all);
    assert_int_equal(stat_run("--prometheus -"), 0);
    assert_null(strstr(stat_out, "tr\303\244in")); /* no command line in labels */
    stat_stop(&w);
}

static void a_damaged_page_is_refused(void **state)
{
    struct stat_worker w = stat_start("auto", stat_pages);
    const uint32_t wild = 7777;
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    overwrite(path, offsetof(struct dpn_stat_page, rows[DPN_STAT_FIRST_CONNECTION].values), &wild,
              sizeof(wild));
    refuse("is damaged: a row is of another one that it does not have");
    overwrite(path, offsetof(struct dpn_stat_page, columns[1].places), &wild, sizeof(uint16_t));
    refuse("has not all its columns");
    overwrite(path, offsetof(struct dp_page_head, rows), &wild, sizeof(wild));
    refuse("expected 1045248 with 7777 rows of 960");
    overwrite(path, offsetof(struct dp_page_head, bytes), &wild, sizeof(wild));
    refuse("is damaged: it has ");
    stat_stop(&w);
}

static void what_belongs_to_another_user_is_not_read(void **state)
{
    if (geteuid())
        skip_because("only root can give a file away");
    struct stat_worker w = stat_start("auto", stat_pages);
    char path[512];
    assert_true(find_page(path, sizeof(path)));
    assert_int_equal(chown(path, 65534, 65534), 0);
    refuse("belongs to user 65534: it is not read");
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(stat_pages, 65534, 65534), 0);
    refuse("belongs to user 65534: only your own processes are shown");
    assert_int_equal(chown(stat_pages, 0, 0), 0);
    stat_stop(&w);
}

/* ---- forms of output ------------------------------------------------------------------------- */

static void a_table_has_processes_devices_and_connections(void **state)
{
    assert_int_equal(stat_run(""), 0);
    assert_non_null(strstr(stat_out, "0 processes of this user count\n"));
    assert_non_null(strstr(stat_out, "DUALPIPE_NET_STAT=1"));
    struct stat_worker w = stat_start("tcp", stat_pages);
    stat_tell(&w, 't');
    assert_int_equal(stat_run("--connections"), 0);
    char process[64];
    snprintf(process, sizeof(process), "\nprocess %d: ", (int)w.pid);
    assert_non_null(strstr(stat_out, "1 process of this user counts\n"));
    assert_non_null(strstr(stat_out, process));
    assert_non_null(strstr(stat_out, "\nlo                       send       1         29   502 kB"));
    assert_non_null(strstr(stat_out, "tcp 127.0.0.1:"));
    stat_stop(&w);
}

static void a_table_is_followed_until_a_signal(void **state)
{
    char program[4096], text[4096];
    int ends[2], status, looks = 0;
    assert_int_equal(pipe(ends), 0);
    snprintf(program, sizeof(program), "%s/tools/dualpipe", getenv("DP_TOP_BUILDDIR"));
    pid_t pid = fork();
    if (pid == 0) {
        alarm(STAT_DEADLINE_S);
        signal(SIGINT, SIG_DFL);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl(program, program, "stat", "--dir", stat_pages, "-f", "--interval", "10ms", NULL);
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

/* Every line is a comment or a sample; TYPE stands before its samples; buckets grow up to the
 * count. */
static void check_prometheus(char *text, int samples_at_least)
{
    static const char pattern[] =
        "^dualpipe_net_[a-z_]+\\{pid=\"[0-9]+\",process=\"[0-9]+-[0-9a-f]{8}\",device=\"[^\"]+\","
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
    assert_int_equal(stat_run("--prometheus -"), 0);
    check_prometheus(stat_out, 0);
    struct stat_worker w = stat_start("shm", stat_pages);
    stat_tell(&w, 't');
    assert_int_equal(stat_run("--prometheus -"), 0);
    assert_non_null(strstr(stat_out, "device=\"lo\",way=\"send\"} 502400\n"));
    assert_non_null(strstr(stat_out, ",le=\"127\"} 24\n"));
    check_prometheus(stat_out, 2 * (1 + 11 + 70));
    stat_stop(&w);
}

static void a_prometheus_file_appears_whole(void **state)
{
    char arguments[512], path[256];
    snprintf(path, sizeof(path), "%s/file.prom", stat_work);
    snprintf(arguments, sizeof(arguments), "--prometheus '%s'", path);
    assert_int_equal(stat_run(arguments), 0);
    stat_read_file("file.prom", stat_out, sizeof(stat_out));
    check_prometheus(stat_out, 0);
    unlink(path);
    snprintf(arguments, sizeof(arguments), "--prometheus '%s/nowhere/file'", stat_work);
    assert_int_equal(stat_run(arguments), 1);
    assert_non_null(strstr(stat_err, "cannot write"));
}

static void mistakes_of_the_command_line_are_told(void **state)
{
    assert_int_equal(stat_run("--json --prometheus -"), 2);
    assert_non_null(strstr(stat_err, "expected one of them"));
    assert_int_equal(stat_run("--dir /nowhere/at/all"), 2);
    assert_non_null(strstr(stat_err, "cannot open the directory /nowhere/at/all"));
    assert_int_equal(stat_run("--interval 0"), 2);
    assert_non_null(strstr(stat_err, "(a bare number is in ms) from 10ms to 1000s\n"));
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
        cmocka_unit_test(a_command_that_is_no_utf8_is_shown_as_far_as_it_is),
        cmocka_unit_test(a_damaged_page_is_refused),
        cmocka_unit_test(what_belongs_to_another_user_is_not_read),
        cmocka_unit_test(a_table_has_processes_devices_and_connections),
        cmocka_unit_test(a_table_is_followed_until_a_signal),
        cmocka_unit_test(prometheus_reads_what_is_counted),
        cmocka_unit_test(a_prometheus_file_appears_whole),
        cmocka_unit_test(mistakes_of_the_command_line_are_told),
    };

    return cmocka_run_group_tests(tests, stat_make_directory, stat_remove_directory);
}
