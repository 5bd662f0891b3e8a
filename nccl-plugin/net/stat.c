/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.c - the page of this process: made with its first connection, gone with its end.
 */
#include "nccl-plugin/net/stat.h"

#include "base/fail.h"
#include "nccl-plugin/net/comm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* All below, and which thread has which place. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dpn_stat_page *page;                       /* NULL: none yet, or none to be had */
static bool was_tried;
static unsigned generation; /* of processes, each forked from the one before */
static char path[4096]; /* of the page's file */
static uint32_t last_number;

static int64_t real_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * DP_NS_PER_S + t.tv_nsec;
}

/* ---- a file of its own ----------------------------------------------------------------------- */

static void no_page(const char *what, const char *where, const char *why)
{
    dp_log(DP_LOG_WARN, "DUALPIPE_NET_STAT: nothing is counted: cannot %s %s: %s", what, where,
           why);
}

/* The directory must be this user's, and closed to all others. -1: it cannot be used. */
static int open_directory(const char *name)
{
    struct stat st;
    int fd = mkdir(name, 0700) && errno != EEXIST
                 ? -1
                 : open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st))
        no_page("open", name, dp_errno_text(errno));
    else if (st.st_uid != geteuid() || st.st_mode & 077)
        no_page("use", name, "it is not this user's alone (mode 0700)");
    else
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void sweep_entry(int dir, const char *name)
{
    struct dpn_stat_head head;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return;
    if (dpn_stat_read_head(fd, &head) && !dpn_stat_is_live(fd))
        unlinkat(dir, name, 0);
    close(fd);
}

/* Processes that were killed leave their pages behind. Those that carry our own number are left
 * alone: one may be ours, of a copy of this library. */
static void sweep(int dir)
{
    char own[32];
    int copy = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);

    snprintf(own, sizeof(own), "%ld-", (long)getpid());
    for (struct dirent *e; list && (e = readdir(list));)
        if (dpn_stat_is_name(e->d_name) && strncmp(e->d_name, own, strlen(own)) != 0)
            sweep_entry(dir, e->d_name);
    if (list)
        closedir(list);
    else if (copy >= 0)
        close(copy);
}

/* The lock shows that the process lives; it is its own even after a fork. */
static int map_file(int fd, size_t bytes, void **out)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int err = fcntl(fd, F_SETLK, &all) ? errno : posix_fallocate(fd, 0, (off_t)bytes);

    if (err)
        return err;
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return *out == MAP_FAILED ? errno : 0;
}

static void read_command(char *out, size_t len)
{
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t got = f ? fread(out, 1, len - 1, f) : 0;

    if (f)
        fclose(f);
    for (size_t i = 0; i < got; i++)
        if ((unsigned char)out[i] < ' ' || out[i] == 127)
            out[i] = ' ';
    while (got && out[got - 1] == ' ')
        got--;
    out[got] = '\0';
}

/* Fused devices may be made later. */
static void list_devices(struct dpn_stat_page *p)
{
    const struct dpn_device *device;
    int count = 0;

    (void)dpn_net_devices(&count);
    for (int i = (int)p->device_count; i < count && i < DPN_STAT_DEVICES; i++)
        if (!dpn_net_device(i, &device)) {
            snprintf(p->devices[i].name, DPN_STAT_DEVICE_LEN, "%.*s", DPN_STAT_DEVICE_LEN - 1,
                     device->name);
            p->devices[i].speed_mbps = device->speed_mbps;
            p->device_count = (uint32_t)i + 1;
        }
}

static void fill_page(struct dpn_stat_page *p)
{
    p->head = (struct dpn_stat_head){DPN_STAT_MAGIC, DPN_STAT_VERSION, sizeof(*p)};
    p->pid = getpid();
    p->opened_ns = real_ns();
    read_command(p->command, sizeof(p->command));
    list_devices(p);
}

/* Map a new file, fill it, and only then let it be called like a page. It stays open, and its lock
 * with it. */
static int make_file(int dir, const char *name, struct dpn_stat_page **out)
{
    char early[64];
    void *at = MAP_FAILED;

    snprintf(early, sizeof(early), "%s.new", name);
    int fd = openat(dir, early, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    int err = map_file(fd, sizeof(**out), &at);
    if (!err) {
        fill_page(at);
        err = renameat(dir, early, dir, name) ? errno : 0;
    }
    if (!err) {
        *out = at;
        return 0;
    }
    if (at != MAP_FAILED)
        munmap(at, sizeof(**out));
    unlinkat(dir, early, 0);
    close(fd);
    return err;
}

static void make_page(const char *directory)
{
    char name[48];
    uint32_t salt = 0;
    int dir = open_directory(directory);

    if (dir < 0)
        return;
    sweep(dir);
    if (getrandom(&salt, sizeof(salt), 0) < 0)
        salt = 0; /* the number of the process will do */
    snprintf(name, sizeof(name), "%ld-%08x" DPN_STAT_SUFFIX, (long)getpid(), salt);
    int err = make_file(dir, name, &page);
    if (err)
        no_page("make a page in", directory, dp_errno_text(err));
    else
        snprintf(path, sizeof(path), "%s/%s", directory, name);
    close(dir);
}

/* ---- fork, and the end of the process -------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The page stays the parent's: what the child inherits counts where nothing looks. Its own first
 * connection makes it a page of its own. */
static void after_fork_in_child(void)
{
    if (page)
        (void)mmap(page, sizeof(*page), PROT_READ | PROT_WRITE,
                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page = NULL;
    generation++;
    was_tried = false;
    path[0] = '\0';
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void remove_page(void)
{
    if (page && path[0])
        unlink(path);
}

/* ---- connections ----------------------------------------------------------------------------- */

static void ensure_page(void)
{
    static bool is_watching;
    char directory[64];

    if (page || was_tried)
        return;
    was_tried = true;
    if (!is_watching)
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    is_watching = true;
    snprintf(directory, sizeof(directory), DPN_STAT_DIRECTORY "%ld", (long)geteuid());
    make_page(dpn_options.stat_dir ? dpn_options.stat_dir : directory);
}

static struct dpn_stat_connection *find_place(void)
{
    for (int i = 0; i < DPN_STAT_CONNECTIONS; i++)
        if (!atomic_load_explicit(&page->connections[i].in_use, memory_order_relaxed))
            return &page->connections[i]; /* a low one: a reader looks at the first ones only */
    return NULL;
}

/* Around what a reader must not see half done. */
static void begin_change(void)
{
    dpn_stat_add(&page->changes, 1);
    dpn_stat_fence();
}

static void end_change(void)
{
    atomic_store_explicit(&page->changes,
                          atomic_load_explicit(&page->changes, memory_order_relaxed) + 1,
                          memory_order_release);
}

static void fill_connection(struct dpn_stat_connection *c, int dev, bool is_sender,
                            const char *transport, const char *peer)
{
    c->device = (uint32_t)dev;
    c->way = is_sender ? DPN_STAT_SEND : DPN_STAT_RECEIVE;
    c->number = ++last_number;
    c->opened_ns = real_ns();
    snprintf(c->transport, sizeof(c->transport), "%s", transport);
    snprintf(c->peer, sizeof(c->peer), "%s", peer);
    memset(&c->counters, 0, sizeof(c->counters));
}

static void take_place(struct dpn_stat *stat, int dev, bool is_sender, const char *transport,
                       const char *peer)
{
    struct dpn_stat_connection *c = find_place();

    stat->is_private = !c;
    if (!c)
        c = calloc(1, sizeof(*c));
    if (!c)
        return;
    begin_change();
    if ((uint32_t)dev >= page->device_count)
        list_devices(page);
    fill_connection(c, dev, is_sender, transport, peer);
    atomic_store_explicit(&c->in_use, 1, memory_order_relaxed);
    if (!stat->is_private && c >= &page->connections[page->connection_count])
        page->connection_count = (uint32_t)(c - page->connections) + 1;
    dpn_stat_add(&page->opened, 1);
    dpn_stat_add(&page->left_out, stat->is_private);
    end_change();
    stat->on = c;
    stat->generation = generation;
}

void dpn_stat_open(struct dpn_stat *stat, int dev, bool is_sender, const char *transport,
                   const char *peer)
{
    if (!dpn_options.stat || dev < 0 || dev >= DPN_STAT_DEVICES)
        return;
    pthread_mutex_lock(&lock);
    ensure_page();
    if (page)
        take_place(stat, dev, is_sender, transport, peer);
    pthread_mutex_unlock(&lock);
}

static void move_to_device(const struct dpn_stat_connection *c)
{
    const dpn_stat_counter *from = c->counters.counts;
    dpn_stat_counter *to = page->devices[c->device].closed[c->way].counts;

    for (size_t i = 0; i < offsetof(struct dpn_stat_counters, rest) / sizeof(*to); i++)
        dpn_stat_add(&to[i], atomic_load_explicit(&from[i], memory_order_relaxed));
}

void dpn_stat_close(struct dpn_stat *stat)
{
    struct dpn_stat_connection *c = stat->on;

    if (!c)
        return;
    pthread_mutex_lock(&lock);
    /* A child that was forked may close what it inherited. */
    const bool is_here = page && stat->generation == generation;
    if (is_here) {
        begin_change();
        move_to_device(c);
        atomic_store_explicit(&c->in_use, 0, memory_order_relaxed);
        if (stat->is_private)
            dpn_stat_add(&page->left_out, (uint64_t)-1);
        end_change();
    }
    pthread_mutex_unlock(&lock);
    if (stat->is_private)
        free(c);
    *stat = (struct dpn_stat){0};
}
