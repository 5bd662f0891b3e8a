/* SPDX-License-Identifier: Apache-2.0 */
#include "base/copy.h"
#include "base/shared.h"
#include "wire/sockets.h"
#include "wire/shm.h"
#include "wire/sockets.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { ANNOUNCEMENT = 1 };

static void unmap(struct dp_shm_map *map)
{
    if (map->at)
        munmap(map->at, map->bytes);
    *map = (struct dp_shm_map){.at = NULL};
}

void dp_shm_mappings_init(struct dp_shm_mappings *maps)
{
    *maps = (struct dp_shm_mappings){.passed_fd = -1};
}

void dp_shm_mappings_fini(struct dp_shm_mappings *maps)
{
    for (int i = 0; i < DP_SHM_MAPPINGS; i++)
        unmap(&maps->theirs[i]);
    dp_fd_close(maps->passed_fd);
    dp_shm_mappings_init(maps);
}

/* ---- the owner ------------------------------------------------------------------------------- */

/* The slot of this piece, or of those that are not lent the one that was named longest ago. */
static struct dp_shm_announced *find_slot(struct dp_shm_mappings *maps, uint64_t id)
{
    struct dp_shm_announced *oldest = NULL;

    for (struct dp_shm_announced *s = maps->mine; s < maps->mine + DP_SHM_MAPPINGS; s++) {
        if (s->id == id)
            return s;
        if (!s->is_lent && (!oldest || s->used < oldest->used))
            oldest = s;
    }
    return oldest;
}

/* 16 bytes are sent whole or, where the peer does not read, or too many files are on their way, not
 * at all. */
static bool announce(struct dp_shm_mappings *maps, int socket, const struct dp_shared_place *place,
                     struct dp_shm_announced *slot)
{
    const struct dp_shm_announcement announcement = {
        .kind = ANNOUNCEMENT,
        .slot = (uint8_t)(slot - maps->mine),
        .number = maps->announcements == UINT32_MAX ? 1 : maps->announcements + 1,
        .bytes = place->bytes,
    };

    if (dp_fds_send(socket, &announcement, sizeof(announcement), place->fd) !=
        (ssize_t)sizeof(announcement))
        return false;
    maps->announcements = announcement.number;
    *slot = (struct dp_shm_announced){.id = place->id, .announcement = announcement.number};
    return true;
}

bool dp_shm_mappings_name(struct dp_shm_mappings *maps, int socket, const void *buf, size_t len,
                          struct dp_shm_location *out)
{
    struct dp_shared_place place;

    if (!dp_shared_find(buf, len, &place))
        return false;
    struct dp_shm_announced *slot = find_slot(maps, place.id);
    if (slot->id != place.id && !announce(maps, socket, &place, slot))
        return false;
    slot->used = ++maps->uses;
    *out = (struct dp_shm_location){.offset = place.offset,
                                    .announcement = slot->announcement,
                                    .slot = (uint32_t)(slot - maps->mine)};
    return true;
}

/* ---- the peer -------------------------------------------------------------------------------- */

/* As long as it says it is, and for ever. */
static bool is_piece(int fd, uint64_t bytes)
{
    struct stat st;

    return fd >= 0 && bytes && !fstat(fd, &st) && (uint64_t)st.st_size == bytes &&
           dp_shared_is_sealed(fd);
}

/* What cannot be mapped is not there: a reference to it finds nothing. */
static void open_announcement(struct dp_shm_mappings *maps,
                              const struct dp_shm_announcement *announcement)
{
    struct dp_shm_map *map = &maps->theirs[announcement->slot % DP_SHM_MAPPINGS];

    unmap(map);
    if (is_piece(maps->passed_fd, announcement->bytes)) {
        void *at = mmap(NULL, announcement->bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE, maps->passed_fd, 0);
        if (at != MAP_FAILED)
            *map = (struct dp_shm_map){at, announcement->bytes, announcement->number};
    }
    dp_fd_close(maps->passed_fd);
    maps->passed_fd = -1;
    maps->received++;
}

void dp_shm_mappings_receive(struct dp_shm_mappings *maps, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!maps->got && bytes[i] != ANNOUNCEMENT)
            continue; /* it rings */
        ((char *)&maps->coming)[maps->got++] = bytes[i];
        if (maps->got == sizeof(maps->coming)) {
            maps->got = 0;
            open_announcement(maps, &maps->coming);
        }
    }
}

char *dp_shm_mappings_find(const struct dp_shm_mappings *maps, const struct dp_shm_location *place,
                           size_t len)
{
    const struct dp_shm_map *map = &maps->theirs[place->slot % DP_SHM_MAPPINGS];

    if (!place->announcement || map->announcement != place->announcement ||
        place->offset > map->bytes || len > map->bytes - place->offset)
        return NULL;
    return map->at + place->offset;
}

/* ---- shm path -------------------------------------------------------------------------------- */

enum {
    /* Length of a try: the ring reaches its speed when all of it has been used a few times, and the
     * sender may be a message ahead. */
    STRETCH_BYTES = 8 * DP_SHM_SLOTS * DP_SHM_SLOT_BYTES,
    STRETCH_MESSAGES = 3,
    SHARE = 64,   /* the tries take 1/SHARE of the time */
    HOPELESS = 2, /* a try ends early once it costs HOPELESS times the best */
    SLOWER = 8    /* weight 1/SLOWER of a message that took longer than the average, ... */
};
/* ... which counts as twice as long at most, so that one delayed message changes little. A faster
 * one replaces the average. */

unsigned dp_shm_class(size_t len)
{
    unsigned class = 0;

    while (class + 1 < DP_SHM_CLASSES && len >= (size_t)DP_SHM_LARGE << (2 * class + 2))
        class ++;
    return class;
}

/* The same for all of a class. */
static int count_paths(size_t len)
{
    return len < DP_COPY_LARGE ? DP_SHM_RING_NT : DP_SHM_PATHS;
}

static void measure(int64_t *average, int64_t cost)
{
    int64_t more = cost - *average;

    if (!*average || more < 0)
        *average = cost;
    else
        *average += (more < *average ? more : *average) / SLOWER;
}

/* At least one is measured. */
static int find_best(const struct dp_shm_costs *c, int paths)
{
    int best = -1;

    for (int i = 0; i < paths; i++)
        if (c->cost[i] && (best < 0 || c->cost[i] < c->cost[best]))
            best = i;
    return best;
}

/* The paths other than the best, in turn; at first all of them. A path that is asked for need not
 * be taken: some messages are in flight already, and the sender may be unable to use it. */
static int next_try(struct dp_shm_costs *c, int best, size_t len, int paths)
{
    const int64_t messages = STRETCH_MESSAGES * (int64_t)len;

    do
        c->tried = (c->tried + 1) % paths;
    while (c->tried == best && c->is_known);
    c->is_known = c->is_known || c->tried == paths - 1;
    c->left_bytes = messages > STRETCH_BYTES ? messages : STRETCH_BYTES;
    return c->tried;
}

static int choose(struct dp_shm_costs *c, int came, size_t len, int64_t ns, int paths)
{
    const int best = find_best(c, paths);

    c->owed_ns += came == best ? -ns : SHARE * ns;
    c->left_bytes -= (int64_t)len;
    if (came == c->wanted && c->cost[came] / HOPELESS > c->cost[best])
        c->left_bytes = 0;
    if (c->left_bytes > 0)
        return c->wanted;
    if (c->is_known && c->owed_ns > 0)
        return best;
    return next_try(c, best, len, paths);
}

enum dp_shm_path dp_shm_paths_learn(struct dp_shm_paths *paths, size_t len, enum dp_shm_path path,
                                    int64_t ns)
{
    struct dp_shm_costs *c = &paths->classes[dp_shm_class(len)];
    const int64_t mib = 1 << 20, bytes = (int64_t)len;

    measure(&c->cost[path], (int64_t)((double)ns * (double)mib / (double)bytes) + 1);
    const int64_t average_ns = (int64_t)((double)c->cost[path] * (double)bytes / (double)mib) + 1;
    c->wanted = choose(c, (int)path, len, average_ns, count_paths(len));
    return (enum dp_shm_path)c->wanted;
}

/* ---- shm signal ------------------------------------------------------------------------------ */

/* What the two sides of a shared memory wire tell each other beside messages: which
 * memory is shared, that one has ended. Its wake-ups are in shm.h. */

enum { READS = 4096 /* of the socket in one look: more than it holds at a time */ };

void dp_shm_has_shared(struct dp_shm_wire *w)
{
    w->refusals[false] = w->refusals[true] = 0;
    w->base.buffer_bytes = DP_SHM_LARGE;
}

/* Read away what rang, hear what announcements there are, and notice if the peer has closed its
 * end. */
void dp_shm_look(struct dp_shm_wire *w)
{
    const unsigned before = w->mappings.received;
    char bytes[sizeof(struct dp_shm_announcement)];
    ssize_t n = 1;

    for (int i = 0; i < READS && n > 0; i++) {
        /* Never read beyond the end of an announcement: the next one's file would replace its own. */
        const size_t most = sizeof(bytes) - w->mappings.got;
        n = dp_fds_receive(w->fd, bytes, most, &w->mappings.passed_fd);
        if (n > 0)
            dp_shm_mappings_receive(&w->mappings, bytes, (size_t)n);
    }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        w->peer_gone = true;
    if (w->mappings.received != before)
        dp_shm_has_shared(w);
}

bool dp_shm_is_all_taken(struct dp_shm_wire *w)
{
    w->known_taken = atomic_load_explicit(&w->out->taken, memory_order_acquire);
    return w->known_taken == w->sent;
}
