/* SPDX-License-Identifier: Apache-2.0
 *
 * `dualpipe stat` and the profiler plugin that counts, in this process: what a chunk waits for can be seen
 * while it waits.
 */
#include "config.h"

#include "cmocka_all.h"
#include "nccl-plugin/profiler/profiler.h"
#include "system/stat_command.h"

#include <dirent.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GPU_WAIT = 8, SEND_WAIT, RECV_WAIT, PEER_WAIT = 20 };

static void *context;
static struct dpn_network_comm comm;

static void *start_step(int peer, bool is_send, unsigned channel, const char *rail)
{
    void *part = dpn_network_part(
        &comm, &(struct dpn_network_part){.peer = peer, .channel = channel, .is_send = is_send});
    void *step = dpn_network_step(part, 0);

    assert_non_null(step);
    dpn_network_rail(step, rail);
    return step;
}

static void send_one(int peer, unsigned channel, const char *rail, uint64_t bytes)
{
    void *step = start_step(peer, true, channel, rail);

    dpn_network_state(step, SEND_WAIT, &bytes);
    dpn_network_stop(step);
}

static json_t *profile(json_t *all)
{
    json_t *list = json_object_get(all, "profiles");

    assert_int_equal(json_array_size(list), 1);
    assert_int_equal(stat_count(json_array_get(list, 0), "pid"), getpid());
    return json_array_get(list, 0);
}

static json_t *flow(json_t *all, size_t at, size_t expected)
{
    json_t *comms = json_object_get(profile(all), "communicators");

    assert_int_equal(json_array_size(comms), 1);
    json_t *flows = json_object_get(json_array_get(comms, 0), "flows");
    assert_int_equal(json_array_size(flows), expected);
    return json_array_get(flows, at);
}

static const char *text(json_t *of, const char *name)
{
    return json_string_value(json_object_get(of, name));
}

static void find(const char *pattern)
{
    regex_t regex;

    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB | REG_NEWLINE), 0);
    if (regexec(&regex, stat_out, 0, NULL, 0))
        fail_msg("no '%s' in:\n%s", pattern, stat_out);
    regfree(&regex);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void flows_are_shown_by_rank_and_rail(void **state)
{
    dpn_profiler_sent(context, 2, 4096);
    dpn_profiler_collective(context, DPN_ALL_REDUCE, 100);
    send_one(2, 0, "mlx5_0", 1000);
    send_one(2, 1, "mlx5_0", 500);
    send_one(2, 2, "mlx5_1", 7);
    json_t *all = stat_run_json(), *of_0 = flow(all, 0, 2), *of_1 = flow(all, 1, 2);
    assert_string_equal(text(of_0, "rail"), "mlx5_0");
    assert_string_equal(text(of_0, "way"), "send");
    assert_int_equal(stat_count(of_0, "peer"), 2);
    assert_int_equal(stat_count(of_0, "bytes"), 1500);
    assert_int_equal(stat_count(of_0, "chunks"), 2);
    assert_int_equal(stat_count(of_0, "channels"), 2);
    assert_string_equal(text(of_1, "rail"), "mlx5_1");
    assert_int_equal(stat_count(of_1, "bytes"), 7);
    json_t *c = json_array_get(json_object_get(profile(all), "communicators"), 0);
    assert_string_equal(text(c, "comm"), "000000000000feed");
    assert_int_equal(stat_count(c, "rank"), 1);
    json_t *sends = json_object_get(json_object_get(c, "functions"), "Send");
    assert_int_equal(json_integer_value(json_array_get(sends, 1)), 4096);
    json_decref(all);
}

static void what_a_chunk_waits_for_is_shown_while_it_waits(void **state)
{
    void *step = start_step(3, false, 0, "mlx5_1"), *second = start_step(3, false, 1, "mlx5_1");

    dpn_network_state(step, RECV_WAIT, NULL);
    dpn_network_state(second, RECV_WAIT, NULL);
    json_t *all = stat_run_json(), *f = flow(all, 2, 3);
    assert_string_equal(text(f, "way"), "receive");
    assert_int_equal(stat_count(json_object_get(f, "waiting"), "peer"), 2);
    assert_int_equal(stat_count(json_object_get(f, "waiting"), "gpu"), 0);
    const int64_t still_ns = stat_count(f, "still_ns");
    assert_true(still_ns > 0);
    json_decref(all);
    all = stat_run_json();
    assert_true(stat_count(flow(all, 2, 3), "still_ns") > still_ns); /* nothing moved */
    json_decref(all);
    assert_int_equal(stat_run(""), 0);
    find("^communicator 000000000000feed one, rank 1 of 4: 1 AllReduce of 100 B, 1 Send of 4.1 kB$");
    find("^  to +2 mlx5_0 +1.5 kB +2 .* -$");
    find("^  from +3 mlx5_1 .* peer, 2 chunks, [0-9.]+ [a-z]+$");
    dpn_network_stop(step);
    dpn_network_stop(second);
    all = stat_run_json();
    assert_int_equal(stat_count(flow(all, 2, 3), "still_ns"), 0);
    assert_true(stat_count(json_object_get(flow(all, 2, 3), "wait_ns"), "peer") >= 2 * still_ns);
    json_decref(all);
}

static void prometheus_has_the_same(void **state)
{
    assert_int_equal(stat_run("--prometheus -"), 0);
    find("^dualpipe_nccl_bytes_total\\{pid=\"[0-9]+\",process=\"[0-9a-f-]+\",comm=\"000000000000feed\","
         "rank=\"1\",peer=\"2\",way=\"send\",rail=\"mlx5_0\"\\} 1500$");
    find("^dualpipe_nccl_chunks_total\\{.*rail=\"mlx5_1\"\\} 1$");
    find("^dualpipe_nccl_wait_seconds_total\\{.*way=\"receive\".*,for=\"peer\"\\} [0-9.]+$");
    find("^dualpipe_nccl_waiting\\{.*,for=\"network\"\\} 0$");
}

static int pages(void)
{
    DIR *dir = opendir(stat_pages);
    int count = 0;

    for (struct dirent *e; dir && (e = readdir(dir));)
        count += strstr(e->d_name, ".profile") != NULL;
    closedir(dir);
    return count;
}

/* Its own counters are on a page of its own, and the parent's stays. */
static void a_forked_child_counts_on_its_own(void **state)
{
    const pid_t pid = fork();

    if (!pid) {
        void *own;
        send_one(2, 0, "mlx5_0", 1u << 30);
        int err = dpn_profiler_open(&(struct dpn_profiled){.hash = 1, .ranks = 2}, &own);
        _exit(err || pages() != 2);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    json_t *all = stat_run_json();
    assert_int_equal(stat_count(flow(all, 0, 3), "bytes"), 1500);
    json_decref(all);
}

static void a_communicator_that_ends_is_shown_no_more(void **state)
{
    dpn_profiler_close(context);
    json_t *all = stat_run_json();
    assert_int_equal(json_array_size(json_object_get(profile(all), "communicators")), 0);
    json_decref(all);
}

static int set_up(void **state)
{
    if (stat_make_directory(state))
        return -1;
    setenv("DUALPIPE_PROFILER_STAT", "1", 1);
    setenv("DUALPIPE_PROFILER_STAT_DIR", stat_pages, 1);
    return dpn_profiler_open(
               &(struct dpn_profiled){.hash = 0xfeed, .name = "one", .rank = 1, .ranks = 4, .nodes = 2},
               &context) ||
           !dpn_profiler_comm(context, &comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flows_are_shown_by_rank_and_rail),
        cmocka_unit_test(what_a_chunk_waits_for_is_shown_while_it_waits),
        cmocka_unit_test(prometheus_has_the_same),
        cmocka_unit_test(a_forked_child_counts_on_its_own),
        cmocka_unit_test(a_communicator_that_ends_is_shown_no_more),
    };
    return cmocka_run_group_tests(tests, set_up, stat_remove_directory);
}
