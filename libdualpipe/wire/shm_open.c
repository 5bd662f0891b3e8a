/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_open.c - how a wire over shared memory comes to be: the connecting process makes the segment and
 * passes it along with its hello, over a unix socket with an abstract name.
 */
#include "wire/shm.h"

#include "base/fail.h"
#include "base/shared.h"
#include "wire/sockets.h"
#include "wire/wire_options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct shm_address {
    uint8_t host_id[DP_HOST_ID_BYTES];
    uint8_t name[16];
    uint8_t cookie[DP_COOKIE_BYTES];
};
_Static_assert(sizeof(struct shm_address) <= sizeof(struct dp_wire_address), "an address fits");
_Static_assert(sizeof(struct shm_address) == DP_SHM_ADDRESS_BYTES, "as shm.h says");

/* ---- making it ----------------------------------------------------------------------------- */

static int new_wire(const struct dp_wire_ops *ops, struct dp_shm_wire **out)
{
    struct dp_wire_options options;
    int err = dp_options_read(&dp_wire_option_area, &options);

    if (err)
        return err;
    struct dp_shm_wire *w = calloc(1, sizeof(*w));
    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a wire");
    dp_wire_init(&w->base, ops);
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

/* An abstract name: the first byte is 0, and it is gone with the socket. */
static socklen_t fill_name(struct sockaddr_un *un, const uint8_t name[16])
{
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t len = 1 + (size_t)snprintf(un->sun_path + 1, sizeof(un->sun_path) - 1, "dualpipe-");
    for (int i = 0; i < 16; i++)
        len += (size_t)snprintf(un->sun_path + len, sizeof(un->sun_path) - len, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static int start_call(struct dp_shm_wire *w, const struct shm_address *a, uint64_t label)
{
    struct dp_hello hello = {
        .kind = DP_HELLO_SHM, .label = label, .extra = sizeof(struct dp_shm_segment)};
    struct sockaddr_un un;
    socklen_t len = fill_name(&un, a->name);
    int fd = -1, err = dp_shared_file(sizeof(struct dp_shm_segment), &fd);

    if (err)
        return err;
    err = map_segment(w, fd, true);
    if (err) {
        close(fd);
        return err;
    }
    err = dp_connector_start(&w->connector, (struct sockaddr *)&un, len, un.sun_path + 1, &hello,
                             a->cookie, fd);
    if (err)
        dp_wire_fail(&w->base, err, "%s", dp_last_error());
    return 0;
}

int dp_shm_connect(const struct dp_wire_ops *ops, const struct dp_wire_address *address,
                   uint64_t label, struct dp_wire **out)
{
    uint8_t host_id[DP_HOST_ID_BYTES];
    struct shm_address a;

    memcpy(&a, address, sizeof(a));
    int err = dp_host_id("", host_id);
    if (err)
        return err;
    if (memcmp(host_id, a.host_id, sizeof(host_id)))
        return dp_fail_quietly(DP_EUNSUPPORTED, "shared memory does not reach another host");
    struct dp_shm_wire *w;
    err = new_wire(ops, &w);
    if (err)
        return err;
    err = start_call(w, &a, label);
    if (err) {
        dp_wire_close(&w->base);
        return err;
    }
    *out = &w->base;
    return 0;
}

/* ---- listening ----------------------------------------------------------------------------- */

static int bind_to_name(const uint8_t name[16], int *out)
{
    struct sockaddr_un un;
    socklen_t len = fill_name(&un, name);
    int fd = dp_socket_open(AF_UNIX);

    if (fd < 0 || bind(fd, (struct sockaddr *)&un, len) || listen(fd, SOMAXCONN)) {
        int err = dp_fail(DP_EIO, "cannot listen on a unix socket: %s",
                          dp_errno_text(errno));
        dp_fd_close(fd);
        return err;
    }
    *out = fd;
    return 0;
}

int dp_shm_listen(const struct dp_wire_config *config, struct dp_wire_listener **out,
                  struct dp_wire_address *address)
{
    struct shm_address a;
    int fd = -1, err = dp_host_id("", a.host_id);

    if (!err)
        err = dp_random_bytes(a.name, sizeof(a.name));
    if (!err)
        err = dp_acceptor_choose_cookie(config, a.cookie);
    if (!err)
        err = bind_to_name(a.name, &fd);
    if (!err)
        err = dp_acceptor_open(fd, DP_HELLO_SHM, a.cookie, config, out);
    if (err)
        return err;
    memset(address, 0, sizeof(*address));
    memcpy(address, &a, sizeof(a));
    return 0;
}

/* A process that knows the cookie but is of another build is refused: DP_EAGAIN. */
static int welcome(const struct dp_wire_ops *ops, const struct dp_pending *pending,
                   struct dp_shm_wire **out)
{
    if (pending->hello.extra != sizeof(struct dp_shm_segment) || !is_segment(pending->passed_fd)) {
        if (pending->passed_fd < 0) /* the kernel lets go of a file that there is no number for */
            dp_log(DP_LOG_WARN, "the shared memory of a peer has not arrived: %s",
                   dp_errno_text(EMFILE));
        return DP_EAGAIN;
    }
    int err = new_wire(ops, out);
    if (err)
        return err;
    err = map_segment(*out, pending->passed_fd, false);
    if (err)
        free(*out);
    return err;
}

int dp_shm_accept(const struct dp_wire_ops *ops, struct dp_wire_listener *listener,
                  uint64_t *label, struct dp_wire **out)
{
    struct dp_pending pending;
    struct dp_shm_wire *w;
    int err = dp_acceptor_admit(listener, &pending);

    if (err)
        return err;
    err = welcome(ops, &pending, &w);
    dp_fd_close(pending.passed_fd);
    if (err) {
        dp_fd_close(pending.fd);
        return err;
    }
    w->fd = pending.fd;
    w->base.connected = true;
    dp_shm_meet(w);
    *label = pending.hello.label;
    *out = &w->base;
    return 0;
}
