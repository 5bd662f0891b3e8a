/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/pacer.h"

#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/net/stat_page.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- pages of the net plugin --------------------------------------------------------------------- */

/* How many bytes the net plugin has moved over a network, in all processes of this user on this
 * machine: read out of the pages that it counts in (nccl-plugin/net/stat_page.h), without a system
 * call but once a second. */
enum { PAGES = 64, DEVICES = 32 };

/* A process. Its file may be gone by now: what is mapped stays. */
struct page {
    char name[64];
    const struct dpn_stat_page *at;
    uint64_t bytes; /* when it was last looked at */
    bool listed;
};

struct dpo_network_pages {
    char directory[256];
    char devices[DEVICES][DPN_STAT_NAME_LEN];
    int device_count;
    struct page pages[PAGES];
    int page_count;
    uint64_t bytes;
    int64_t listed_ns; /* when the directory was last read; 0: never */
};

/* ---- a page ---------------------------------------------------------------------------------- */

/* Whether `name` is a word of `text`: "mlx5_1" of "mlx5_1+mlx5_2", not of "mlx5_10". */
static bool has_word(const char *text, const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const size_t len = strlen(name);

    while (*text) {
        size_t word = strspn(text, letters);
        if (word == len && !memcmp(text, name, len))
            return true;
        text += word ? word : 1;
    }
    return false;
}

static bool counts(const struct dpo_network_pages *p, const struct dpn_stat_page *page,
                   uint32_t device)
{
    char name[DPN_STAT_DEVICE_LEN];

    if (device >= DPN_STAT_DEVICES)
        return false;
    memcpy(name, page->devices[device].name, sizeof(name));
    name[sizeof(name) - 1] = '\0';
    for (int i = 0; i < p->device_count; i++)
        if (has_word(name, p->devices[i]))
            return true;
    return !p->device_count;
}

static uint64_t bytes_of(const struct dpn_stat_counters *counters)
{
    return atomic_load_explicit(&counters->counts[DPN_STAT_BYTES], memory_order_relaxed);
}

/* Of connections that are open: those that are closed had their share when they were. */
static uint64_t sum_of(const struct dpo_network_pages *p, const struct dpn_stat_page *page)
{
    uint32_t count = page->connection_count;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < count && i < DPN_STAT_CONNECTIONS; i++) {
        const struct dpn_stat_connection *c = &page->connections[i];
        if (atomic_load_explicit(&c->in_use, memory_order_relaxed) &&
            memcmp(c->transport, "shm", 4) != 0 && counts(p, page, c->device))
            sum += bytes_of(&c->counters);
    }
    return sum;
}

/* ---- the directory --------------------------------------------------------------------------- */

static bool is_page(int fd)
{
    static const struct dp_page_kind kind = {DPN_STAT_KIND};
    struct dp_page_head head;
    struct stat st;

    return !fstat(fd, &st) && st.st_uid == geteuid() &&
           (size_t)st.st_size >= kind.bytes &&
           pread(fd, &head, sizeof(head), 0) == sizeof(head) &&
           !memcmp(head.magic, kind.magic, sizeof(head.magic)) && head.version == kind.version;
}

/* The file of this process must stay open: closing it would take away the plugin's lock on it. */
static bool is_own(const char *name)
{
    return atol(name) == (long)getpid();
}

static void open_page(struct dpo_network_pages *p, int dir, const char *name)
{
    struct page *page = &p->pages[p->page_count];
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    void *at = MAP_FAILED;

    if (fd < 0)
        return;
    if (is_page(fd))
        at = mmap(NULL, sizeof(struct dpn_stat_page), PROT_READ, MAP_SHARED, fd, 0);
    if (!is_own(name))
        close(fd);
    if (at == MAP_FAILED)
        return;
    *page = (struct page){.at = at, .listed = true};
    memcpy(page->name, name, strlen(name) + 1);
    page->bytes = sum_of(p, at);
    p->page_count++;
}

static struct page *find_page(struct dpo_network_pages *p, const char *name)
{
    for (int i = 0; i < p->page_count; i++)
        if (!strcmp(p->pages[i].name, name))
            return &p->pages[i];
    return NULL;
}

static void see_file(struct dpo_network_pages *p, int dir, const char *name)
{
    struct page *page = find_page(p, name);

    if (page)
        page->listed = true;
    else if (p->page_count < PAGES && dp_page_is_name(name, DPN_STAT_SUFFIX) &&
             strlen(name) < sizeof(page->name))
        open_page(p, dir, name);
}

static void drop_unlisted(struct dpo_network_pages *p)
{
    int kept = 0;

    for (int i = 0; i < p->page_count; i++) {
        if (p->pages[i].listed)
            p->pages[kept++] = p->pages[i];
        else
            munmap((void *)(uintptr_t)p->pages[i].at, sizeof(*p->pages[i].at));
    }
    p->page_count = kept;
}

static void list_pages(struct dpo_network_pages *p)
{
    DIR *dir = opendir(p->directory);

    for (int i = 0; i < p->page_count; i++)
        p->pages[i].listed = false;
    for (struct dirent *e; dir && (e = readdir(dir));)
        see_file(p, dirfd(dir), e->d_name);
    if (dir)
        closedir(dir);
    drop_unlisted(p);
}

/* Bytes sent and received since it was first asked, of all processes that it finds; never less than
 * before. Messages through memory of this host do not count. now_ns: of dp_now_ns. One thread at a
 * time. */
static uint64_t network_pages_bytes(struct dpo_network_pages *p, int64_t now_ns)
{
    if (!p->listed_ns || now_ns - p->listed_ns >= DP_NS_PER_S) {
        list_pages(p);
        p->listed_ns = now_ns;
    }
    for (int i = 0; i < p->page_count; i++) {
        struct page *page = &p->pages[i];
        uint64_t bytes = sum_of(p, page->at);
        if (bytes > page->bytes)
            p->bytes += bytes - page->bytes;
        page->bytes = bytes;
    }
    return p->bytes;
}

/* ---- new and free ---------------------------------------------------------------------------- */

/* directory: NULL, or DUALPIPE_NET_STAT_DIR. devices[count]: names of NICs as the plugin has them
 * ("mlx5_0", "eth0"), copied; those fused of several count for each of them. count 0: all. DP_ENOMEM. */
static int network_pages_new(const char *directory, const char *const *devices, int count,
                          struct dpo_network_pages **out)
{
    struct dpo_network_pages *p = calloc(1, sizeof(*p));

    if (!p)
        return dp_fail(DP_ENOMEM, "no memory for the counters of the net plugin");
    if (directory)
        snprintf(p->directory, sizeof(p->directory), "%s", directory);
    else
        snprintf(p->directory, sizeof(p->directory), DP_PAGE_DIRECTORY "%ld", (long)geteuid());
    for (; p->device_count < count && p->device_count < DEVICES; p->device_count++)
        snprintf(p->devices[p->device_count], DPN_STAT_NAME_LEN, "%s", devices[p->device_count]);
    *out = p;
    return 0;
}

/* p may be NULL. */
static void network_pages_free(struct dpo_network_pages *p)
{
    for (int i = 0; p && i < p->page_count; i++)
        munmap((void *)(uintptr_t)p->pages[i].at, sizeof(*p->pages[i].at));
    free(p);
}

/* ---- the pace -------------------------------------------------------------------------------- */

struct dpo_pacer {
    double switch_bytes_per_s, least_bytes_per_s;
    int64_t window_ns;
    pthread_mutex_t lock; /* of all below */
    struct dpo_network_pages *network;
    bool looked; /* the next two are known */
    int64_t looked_ns;
    uint64_t bytes;                        /* of the network, then */
    double network_bytes_per_s;            /* in the window before; 0: it is idle */
    int64_t free_ns[DPO_PACER_DIRECTIONS]; /* when the chunk that passed last has had its time */
};

static void look(struct dpo_pacer *p, int64_t now_ns)
{
    if (p->looked && now_ns - p->looked_ns < p->window_ns)
        return;
    uint64_t bytes = network_pages_bytes(p->network, now_ns);
    if (p->looked)
        p->network_bytes_per_s =
            (double)(bytes - p->bytes) * DP_NS_PER_S / (double)(now_ns - p->looked_ns);
    p->bytes = bytes;
    p->looked_ns = now_ns;
    p->looked = true;
}

static double allowed_bytes_per_s(const struct dpo_pacer *p)
{
    double left = p->switch_bytes_per_s - p->network_bytes_per_s;

    return left > p->least_bytes_per_s ? left : p->least_bytes_per_s;
}

/* A chunk takes its time while the network is at work, whether that goes on or not. */
static bool pass(struct dpo_pacer *p, int direction, size_t bytes, int64_t now_ns)
{
    look(p, now_ns);
    if (p->network_bytes_per_s <= 0) {
        p->free_ns[direction] = now_ns;
        return true;
    }
    if (now_ns < p->free_ns[direction])
        return false;
    p->free_ns[direction] =
        now_ns + (int64_t)((double)bytes / allowed_bytes_per_s(p) * DP_NS_PER_S);
    return true;
}

bool dpo_pacer_pass_at(struct dpo_pacer *p, int direction, size_t bytes, int64_t now_ns)
{
    pthread_mutex_lock(&p->lock);
    bool may = pass(p, direction, bytes, now_ns);
    pthread_mutex_unlock(&p->lock);
    return may;
}

bool dpo_pacer_pass(struct dpo_pacer *p, int direction, size_t bytes)
{
    return dpo_pacer_pass_at(p, direction, bytes, dp_now_ns());
}

int dpo_pacer_new(const struct dpo_pacer_config *config, struct dpo_pacer **out)
{
    const double *rates[] = {&config->switch_bytes_per_s, &config->least_bytes_per_s};

    for (int i = 0; i < 2; i++)
        if (!isfinite(*rates[i]) || *rates[i] < 0)
            return dp_fail(DP_EINVAL, "pacer: a rate of %g bytes/s, expected a finite one from 0 on",
                           *rates[i]);
    if (config->window_ns < 0)
        return dp_fail(DP_EINVAL, "pacer: a window of %lld ns, expected one from 0 on",
                       (long long)config->window_ns);
    struct dpo_pacer *p = calloc(1, sizeof(*p));
    if (!p)
        return dp_fail(DP_ENOMEM, "no memory for a pacer");
    int err = network_pages_new(config->directory, config->devices, config->device_count,
                                    &p->network);
    if (err) {
        free(p);
        return err;
    }
    p->switch_bytes_per_s = config->switch_bytes_per_s;
    p->least_bytes_per_s = config->least_bytes_per_s > 0 ? config->least_bytes_per_s : 1e9;
    p->window_ns = config->window_ns ? config->window_ns : DP_NS_PER_MS;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return 0;
}

void dpo_pacer_free(struct dpo_pacer *p)
{
    if (!p)
        return;
    network_pages_free(p->network);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
