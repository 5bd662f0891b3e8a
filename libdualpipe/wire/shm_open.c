/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_open.c - how a wire over shared memory comes to be: the connecting process makes the segment and
 * passes it on over a unix socket, once it is welcome there. The name of the socket is
 *
 *      $XDG_RUNTIME_DIR/dualpipe-0123456789abcdef/s        or in P_tmpdir, where that is not set
 *
 * The folder lets only the listener's user in: a process that connects to a unix socket may pass files,
 * and a kernel before 6.16 closes those that are not wanted in the thread that reads. So it reaches
 * processes of the same user that see the same folder.
 */
#include "wire/shm.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/options.h"
#include "base/shared.h"
#include "wire/sockets.h"
#include "wire/wire.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct shm_address {
    uint8_t reach[DP_HOST_ID_BYTES]; /* the same where the folder can be entered */
    uint8_t cookie[DP_COOKIE_BYTES];
    uint64_t name;
};
_Static_assert(sizeof(struct shm_address) <= sizeof(struct dp_wire_address), "an address fits");

enum { NAME = sizeof("/dualpipe-0123456789abcdef") - 1 };
/* Modes of the folder: until the socket listens, and then. */
enum { UNREADY = 0300, READY = 0700 };

/* ---- where ----------------------------------------------------------------------------------- */

/* Where the folder is; not in that of the user if its name is too long or no file can be made there. */
static const char *find_base(void)
{
    const char *dir = dp_foreign_variable("XDG_RUNTIME_DIR");

    if (dir && dir[0] == '/' && strlen(dir) < DP_ACCEPTOR_FOLDER - NAME &&
        !access(dir, W_OK | X_OK))
        return dir;
    return P_tmpdir;
}

/* Which host, which user, and which folder: of that a container may have one of its own. */
static int find_reach(uint8_t reach[DP_HOST_ID_BYTES])
{
    struct stat base = {.st_dev = 0};
    uint64_t hash = dp_hash_number(DP_HASH_BEGIN, geteuid());
    int err = dp_host_id("", reach);

    stat(find_base(), &base);
    hash = dp_hash_number(dp_hash_number(hash, (int64_t)base.st_dev), (int64_t)base.st_ino);
    for (size_t i = 0; i < sizeof(hash); i++)
        reach[i] ^= (uint8_t)(hash >> (8 * i));
    return err;
}

bool dp_wire_shm_reaches(const struct dp_wire_address *from, const struct dp_wire_address *to)
{
    static const uint8_t none[DP_HOST_ID_BYTES];

    return !memcmp(from, to, DP_HOST_ID_BYTES) && memcmp(to, none, sizeof(none));
}

/* ---- making it ----------------------------------------------------------------------------- */

static int new_wire(struct dp_shm_wire **out)
{
    struct dp_wire_options options;
    int err = dp_options_read(&dp_wire_option_area, &options);

    if (err)
        return err;
    struct dp_shm_wire *w = calloc(1, sizeof(*w));
    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a wire");
    dp_wire_init(&w->base, &dp_wire_shm);
    w->base.buffer_bytes = (size_t)DP_SHM_SLOTS * DP_SHM_SLOT_BYTES;
    w->fd = w->connector.fd = w->connector.passed_fd = -1;
    w->may_use_cma = options.cma;
    w->measures = options.measure;
    dp_shm_mappings_init(&w->mappings);
    *out = w;
    return 0;
}

/* `first`: the process that connects. */
static int map_segment(struct dp_shm_wire *w, int fd, bool first)
{
    void *at = mmap(NULL, sizeof(*w->segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return dp_fail(DP_ENOMEM, "cannot map %zu bytes of shared memory: %s", sizeof(*w->segment),
                       strerror(errno));
    w->segment = at;
    w->out = &w->segment->sides[!first];
    w->in = &w->segment->sides[first];
    return 0;
}

static bool is_segment(int fd)
{
    struct stat st;

    return fd >= 0 && !fstat(fd, &st) && st.st_size == sizeof(struct dp_shm_segment) &&
           dp_shared_is_sealed(fd);
}

static void fill_folder(char folder[DP_ACCEPTOR_FOLDER], uint64_t name)
{
    snprintf(folder, DP_ACCEPTOR_FOLDER, "%s/dualpipe-%016" PRIx64, find_base(), name);
}

static void fill_name(struct sockaddr_un *un, const char *folder)
{
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(un->sun_path, sizeof(un->sun_path), "%s/s", folder);
}

static int start_call(struct dp_shm_wire *w, const struct shm_address *a, uint64_t label)
{
    struct dp_hello hello = {
        .kind = DP_HELLO_SHM, .label = label, .extra = sizeof(struct dp_shm_segment)};
    char folder[DP_ACCEPTOR_FOLDER];
    struct sockaddr_un un;
    int fd = -1, err = dp_shared_file(sizeof(struct dp_shm_segment), &fd);

    fill_folder(folder, a->name);
    fill_name(&un, folder);
    if (err)
        return err;
    err = map_segment(w, fd, true);
    if (err) {
        close(fd);
        return err;
    }
    err = dp_connector_start(&w->connector, (struct sockaddr *)&un, sizeof(un), un.sun_path, &hello,
                             a->cookie, fd);
    if (err)
        dp_wire_fail(&w->base.wire, err, "%s", dp_last_error());
    return 0;
}

static int shm_connect(const struct dp_wire_address *address, uint64_t label, struct dp_wire **out)
{
    struct dp_wire_address here = {{0}};
    struct shm_address a;

    memcpy(&a, address, sizeof(a));
    int err = find_reach(here.bytes);
    if (err)
        return err;
    if (!dp_wire_shm_reaches(&here, address))
        return dp_fail_quietly(DP_EUNSUPPORTED,
                               "shared memory does not reach another host, container or user");
    struct dp_shm_wire *w;
    err = new_wire(&w);
    if (err)
        return err;
    err = start_call(w, &a, label);
    if (err) {
        dp_wire_close(&w->base.wire);
        return err;
    }
    *out = &w->base.wire;
    return 0;
}

/* ---- listening ----------------------------------------------------------------------------- */

static void remove_folder(const char *folder)
{
    struct sockaddr_un un;

    fill_name(&un, folder);
    unlink(un.sun_path);
    rmdir(folder);
}

/* What a process that was killed has left: a name on which no process listens any more. */
static void remove_if_dead(const char *folder)
{
    struct sockaddr_un un;
    struct stat st;
    int fd = lstat(folder, &st) || st.st_mode != (S_IFDIR | READY) || st.st_uid != geteuid()
                 ? -1
                 : dp_socket_open(AF_UNIX);

    fill_name(&un, folder);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&un, sizeof(un)) && errno == ECONNREFUSED)
        remove_folder(folder);
    dp_fd_close(fd);
}

/* Once in a process. */
static void sweep(void)
{
    static atomic_int last;
    const char *base = find_base();
    DIR *dir = atomic_exchange(&last, getpid()) == getpid() ? NULL : opendir(base);
    char folder[DP_ACCEPTOR_FOLDER];

    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (!strncmp(e->d_name, "dualpipe-", 9) && strlen(e->d_name) == NAME - 1) {
            snprintf(folder, sizeof(folder), "%s/%.*s", base, NAME, e->d_name);
            remove_if_dead(folder);
        }
    if (dir)
        closedir(dir);
}

/* Without shared memory messages are slower, and the warning is for one who wonders. */
static int fail_to_listen(const char *folder, int error)
{
    static atomic_bool has_warned;
    const bool lacks_files = error == EMFILE || error == ENFILE;
    const int err = dp_fail_quietly(lacks_files ? DP_EIO : DP_EUNSUPPORTED,
                                    "no shared memory between processes, as there can be no socket "
                                    "in %s: %s", folder, dp_errno_text(error));

    if (!lacks_files && !atomic_exchange(&has_warned, true))
        dp_log(DP_LOG_WARN, "%s", dp_last_error());
    return err;
}

/* No other user can put anything into the folder. */
static int bind_in(const char *folder, int *out)
{
    struct sockaddr_un un;
    int fd = dp_socket_open(AF_UNIX), error = errno;

    fill_name(&un, folder);
    if (fd >= 0 && !mkdir(folder, UNREADY)) {
        if (!bind(fd, (struct sockaddr *)&un, sizeof(un)) && !listen(fd, SOMAXCONN) &&
            !chmod(folder, READY)) {
            *out = fd;
            return 0;
        }
        error = errno;
        remove_folder(folder);
    } else if (fd >= 0) {
        error = errno;
    }
    dp_fd_close(fd);
    return fail_to_listen(folder, error);
}

static int shm_listen(const struct dp_wire_config *config, struct dp_wire_listener **out,
                      struct dp_wire_address *address)
{
    char folder[DP_ACCEPTOR_FOLDER];
    struct shm_address a;
    int fd = -1, err = find_reach(a.reach);

    if (!err)
        err = dp_random_bytes(&a.name, sizeof(a.name));
    if (!err)
        err = dp_acceptor_choose_cookie(config, a.cookie);
    if (err)
        return err;
    sweep();
    fill_folder(folder, a.name);
    err = bind_in(folder, &fd);
    if (!err) {
        err = dp_acceptor_open(fd, DP_HELLO_SHM, a.cookie, config, out);
        if (err)
            remove_folder(folder);
    }
    if (err)
        return err;
    memcpy((*out)->folder, folder, sizeof(folder));
    (*out)->owner = getpid();
    memset(address, 0, sizeof(*address));
    memcpy(address, &a, sizeof(a));
    return 0;
}

static void shm_unlisten(struct dp_wire_listener *listener)
{
    if (listener && listener->owner == getpid())
        remove_folder(listener->folder);
    dp_acceptor_close(listener);
}

/* A process that knows the cookie but is of another build is refused: DP_EAGAIN. */
static int welcome(const struct dp_pending *pending, struct dp_shm_wire **out)
{
    if (pending->hello.extra != sizeof(struct dp_shm_segment) || !is_segment(pending->passed_fd)) {
        if (pending->passed_fd < 0) /* the kernel lets go of a file that there is no number for */
            dp_log(DP_LOG_WARN, "the shared memory of a peer has not arrived: %s",
                   dp_errno_text(EMFILE));
        return DP_EAGAIN;
    }
    int err = new_wire(out);
    if (err)
        return err;
    err = map_segment(*out, pending->passed_fd, false);
    if (err)
        free(*out);
    return err;
}

static int shm_accept(struct dp_wire_listener *listener, uint64_t *label, struct dp_wire **out)
{
    struct dp_pending pending;
    struct dp_shm_wire *w;
    int err = dp_acceptor_admit(listener, &pending);

    if (err)
        return err;
    err = welcome(&pending, &w);
    dp_fd_close(pending.passed_fd);
    if (err) {
        dp_fd_close(pending.fd);
        return err;
    }
    w->fd = pending.fd;
    w->base.wire.connected = true;
    dp_shm_meet(w);
    *label = pending.hello.label;
    *out = &w->base.wire;
    return 0;
}

const struct dp_wire_ops dp_wire_shm = {
    .name = "shm",
    .address_bytes = sizeof(struct shm_address),
    .listen = shm_listen,
    .accept = shm_accept,
    .unlisten = shm_unlisten,
    .connect = shm_connect,
    .progress = dp_shm_progress,
    .has_message = dp_shm_has_message,
    .arm = dp_shm_arm,
    .disarm = dp_shm_disarm,
    .quiesce = dp_shm_drop_requests,
    .close = dp_shm_close,
    .loans = &dp_shm_loans,
};
