/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/shm_mappings.h"

#include "base/shared.h"
#include "wire/fds.h"
#include "wire/sockets.h"

#include <string.h>
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
