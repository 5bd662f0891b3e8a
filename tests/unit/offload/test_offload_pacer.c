/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies give way to the network: a pacer reads the net plugin's counters out of files that this test
 * writes as the plugin does, at times that it makes up.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/net/stat_page.h"
#include "offload/pacer.h"
#include "page_head.h"
#include "scratch.h"

#include <sys/mman.h>
#include <sys/stat.h>

enum { CHUNK = 1000000 };

static char folder[SCRATCH_LEN];

/* ---- a process that counts ------------------------------------------------------------------- */

struct process {
    char path[SCRATCH_LEN + 64];
    int fd;
    struct dpn_stat_page *page;
};

static void begin_process(struct process *p, long pid)
{
    snprintf(p->path, sizeof(p->path), "%s/%ld-abc%s", folder, pid, dpn_stat_kind.suffix);
    p->fd = open(p->path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(p->fd >= 0);
    assert_int_equal(ftruncate(p->fd, sizeof(*p->page)), 0);
    p->page = mmap(NULL, sizeof(*p->page), PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    assert_true(p->page != MAP_FAILED);
    page_head_fill(&dpn_stat_kind, &p->page->head);
    strcpy(p->page->rows[0].label, "mlx5_1+mlx5_2\tsend");
    strcpy(p->page->rows[2].label, "mlx5_10\tsend");
    for (uint32_t i = 0; i < 3; i++) {
        struct dpn_stat_row *row = &p->page->rows[DPN_STAT_FIRST_CONNECTION + i];
        row->use = 100 + i;
        row->values[DPN_STAT_DEVICE] = i ? 3 : 1;
        snprintf(row->label, sizeof(row->label), "%u\t%s\tpeer", i, i == 2 ? "shm" : "verbs");
    }
}

static void end_process(struct process *p)
{
    munmap(p->page, sizeof(*p->page));
    close(p->fd);
    unlink(p->path);
}

static void move(struct process *p, int connection, uint64_t bytes)
{
    dp_page_add(&p->page->rows[DPN_STAT_FIRST_CONNECTION + connection].values[DPN_STAT_BYTES], bytes);
}

static struct dpo_pacer *new_pacer(const char *device, double switch_rate, double least)
{
    const struct dpo_pacer_config config = {.directory = folder, .devices = &device,
                                            .device_count = device != NULL,
                                            .switch_bytes_per_s = switch_rate,
                                            .least_bytes_per_s = least};
    struct dpo_pacer *pacer;

    assert_int_equal(dpo_pacer_new(&config, &pacer), 0);
    return pacer;
}

/* Chunks that pass from one ms to the next, asked for every 10 us. */
static int passed_in_ms(struct dpo_pacer *p, int64_t *now_ns)
{
    int count = 0;

    for (int i = 0; i < 100; i++, *now_ns += 10 * DP_NS_PER_US)
        count += dpo_pacer_pass_at(p, 0, CHUNK, *now_ns);
    return count;
}

/* ---- tests ----------------------------------------------------------------------------------- */

CASE(a_network_at_rest_holds_nothing_up)
{
    struct process peer;
    int64_t now_ns = DP_NS_PER_S;

    begin_process(&peer, 1);
    move(&peer, 0, 1 << 30); /* long ago */
    struct dpo_pacer *p = new_pacer(NULL, 0, 0);
    for (int ms = 0; ms < 5; ms++)
        assert_int_equal(passed_in_ms(p, &now_ns), 100);
    dpo_pacer_free(p);
    end_process(&peer);
}

CASE(copies_have_what_a_busy_network_leaves)
{
    struct process peer;
    int64_t now_ns = DP_NS_PER_S;
    int count = 0;

    begin_process(&peer, 1);
    struct dpo_pacer *p = new_pacer(NULL, 20e9, 1e9);
    assert_int_equal(passed_in_ms(p, &now_ns), 100);
    for (int ms = 0; ms < 20; ms++) { /* 12 GB/s: 8 are left, 8 chunks of 1 MB a ms */
        move(&peer, 0, 12000000);
        count += passed_in_ms(p, &now_ns);
    }
    assert_in_range(count, 150, 161);
    assert_true(dpo_pacer_pass_at(p, 1, CHUNK, now_ns - 10 * DP_NS_PER_US)); /* the other way */
    count = 0;
    for (int ms = 0; ms < 20; ms++) { /* 25 GB/s: 1 is left all the same */
        move(&peer, 0, 25000000);
        count += passed_in_ms(p, &now_ns);
    }
    assert_in_range(count, 19, 21);
    passed_in_ms(p, &now_ns); /* what was counted last shows */
    assert_int_equal(passed_in_ms(p, &now_ns), 100);
    dpo_pacer_free(p);
    end_process(&peer);
}

CASE(only_bytes_over_the_NICs_on_the_switch_count)
{
    static const struct {
        const char *device;
        int connection;
        bool counts;
    } cases[] = {
        {"mlx5_1", 0, true}, {"mlx5_2", 0, true}, {"mlx5_0", 0, false}, {"mlx5_1", 1, false},
        {"mlx5_10", 1, true}, {"no NIC", 0, false}, {NULL, 1, true},
        {NULL, 2, false}, /* through the memory of this host */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct process peer;
        int64_t now_ns = DP_NS_PER_S;
        begin_process(&peer, 1);
        struct dpo_pacer *p = new_pacer(cases[i].device, 0, 1e9);
        passed_in_ms(p, &now_ns);
        move(&peer, cases[i].connection, 1 << 20);
        assert_int_equal(passed_in_ms(p, &now_ns), cases[i].counts ? 1 : 100);
        dpo_pacer_free(p);
        end_process(&peer);
    }
}

CASE(processes_come_and_go)
{
    struct process first, second;
    int64_t now_ns = DP_NS_PER_S;

    begin_process(&first, 1);
    struct dpo_pacer *p = new_pacer(NULL, 0, 1e9);
    passed_in_ms(p, &now_ns);
    begin_process(&second, 2);
    now_ns += 2 * DP_NS_PER_S; /* the directory is read again */
    assert_int_equal(passed_in_ms(p, &now_ns), 100);
    move(&second, 1, 1 << 20);
    assert_int_equal(passed_in_ms(p, &now_ns), 1);
    end_process(&first);
    end_process(&second);
    now_ns += 2 * DP_NS_PER_S;
    passed_in_ms(p, &now_ns);
    assert_int_equal(passed_in_ms(p, &now_ns), 100);
    dpo_pacer_free(p);
}

CASE(other_files_are_passed_over)
{
    char path[SCRATCH_LEN + 64];
    int64_t now_ns = DP_NS_PER_S;
    struct process other_version;

    snprintf(path, sizeof(path), "%s/7-x%s", folder, dpn_stat_kind.suffix);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "nothing", 7), 7);
    close(fd);
    begin_process(&other_version, 8);
    other_version.page->head.version++;
    struct dpo_pacer *p = new_pacer(NULL, 0, 1e9);
    passed_in_ms(p, &now_ns);
    move(&other_version, 0, 1 << 20);
    assert_int_equal(passed_in_ms(p, &now_ns), 100);
    dpo_pacer_free(p);
    end_process(&other_version);
    unlink(path);
    p = NULL;
    assert_int_equal(dpo_pacer_new(&(struct dpo_pacer_config){.directory = "/no/such"}, &p), 0);
    assert_true(dpo_pacer_pass(p, 0, CHUNK));
    dpo_pacer_free(p);
}

static int lowest_free_descriptor(void)
{
    const int fd = dup(0);

    close(fd);
    return fd;
}

/* A process that closes any descriptor of a file loses its lock on it, by which others see that it
 * lives. Nor does it open one again and again. */
CASE(the_plugin_of_the_same_process_keeps_its_lock)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    for (int is_other_version = 0; is_other_version < 2; is_other_version++) {
        struct process own;
        int64_t now_ns = DP_NS_PER_S;
        begin_process(&own, (long)getpid());
        own.page->head.version += (uint32_t)is_other_version;
        assert_int_equal(fcntl(own.fd, F_SETLK, &all), 0);
        struct dpo_pacer *p = new_pacer(NULL, 0, 1e9);
        passed_in_ms(p, &now_ns);
        move(&own, 0, 1 << 20);
        assert_int_equal(passed_in_ms(p, &now_ns), is_other_version ? 100 : 1);
        const int free_before = lowest_free_descriptor();
        for (int listings = 0; listings < 3; listings++) {
            now_ns += DP_NS_PER_S;
            passed_in_ms(p, &now_ns);
        }
        assert_int_equal(lowest_free_descriptor(), free_before);
        dpo_pacer_free(p);
        pid_t child = fork();
        if (!child)
            _exit(!dp_page_is_live(own.fd));
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        end_process(&own);
    }
}

CASE(what_cannot_be_is_refused)
{
    struct dpo_pacer *p;

    expect_error(dpo_pacer_new(&(struct dpo_pacer_config){.least_bytes_per_s = -1}, &p), DP_EINVAL,
                 "a rate of -1 bytes/s");
    assert_int_equal(dpo_pacer_new(&(struct dpo_pacer_config){.window_ns = -1}, &p), DP_EINVAL);
}

static int make_folder(void **state)
{
    return scratch_directory(folder, "pages") ? 0 : -1;
}

static int remove_folder(void **state)
{
    return rmdir(folder); /* nothing may be left in it */
}

int main(void)
{
    dp_log_set(NULL, NULL, DP_LOG_ERROR);
    return run_cases(make_folder, remove_folder);
}
