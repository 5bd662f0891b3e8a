/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/shm_maps.h"

#include "base/shared.h"
#include "wire/fds.h"
#include "wire/sockets.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { LETTER = 1 };

static void unmap(struct dp_shm_map *map)
{
    if (map->at)
        munmap(map->at, map->bytes);
    *map = (struct dp_shm_map){.at = NULL};
}

void dp_shm_maps_init(struct dp_shm_maps *maps)
{
    *maps = (struct dp_shm_maps){.passed_fd = -1};
}

void dp_shm_maps_fini(struct dp_shm_maps *maps)
{
    for (int i = 0; i < DP_SHM_MAPS; i++)
        unmap(&maps->theirs[i]);
    dp_fd_close(maps->passed_fd);
    dp_shm_maps_init(maps);
}

/* ---- the owner ------------------------------------------------------------------------------- */

/* The slot of this piece, or the one that was named longest ago. */
static struct dp_shm_shown *find_slot(struct dp_shm_maps *maps, uint64_t id)
{
    struct dp_shm_shown *eldest = maps->mine;

    for (struct dp_shm_shown *s = maps->mine; s < maps->mine + DP_SHM_MAPS; s++) {
        if (s->id == id)
            return s;
        if (s->named < eldest->named)
            eldest = s;
    }
    return eldest;
}

/* 16 bytes are sent whole or, where the peer does not read, or too many files are on their way, not at
 * all. */
static bool show(struct dp_shm_maps *maps, int socket, const struct dp_shared_place *place,
                 struct dp_shm_shown *slot)
{
    const struct dp_shm_letter letter = {
        .kind = LETTER,
        .slot = (uint8_t)(slot - maps->mine),
        .number = maps->letters == UINT32_MAX ? 1 : maps->letters + 1,
        .bytes = place->bytes,
    };

    if (dp_fds_send(socket, &letter, sizeof(letter), place->fd) != (ssize_t)sizeof(letter))
        return false;
    maps->letters = letter.number;
    *slot = (struct dp_shm_shown){.id = place->id, .letter = letter.number};
    return true;
}

bool dp_shm_maps_name(struct dp_shm_maps *maps, int socket, const void *buf, size_t len,
                      struct dp_shm_place *out)
{
    struct dp_shared_place place;

    if (!dp_shared_find(buf, len, &place))
        return false;
    struct dp_shm_shown *slot = find_slot(maps, place.id);
    if (slot->id != place.id && !show(maps, socket, &place, slot))
        return false;
    slot->named = ++maps->uses;
    *out = (struct dp_shm_place){.offset = place.offset,
                                 .letter = slot->letter,
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

/* What cannot be mapped is not there: who names it will not be answered from it. */
static void open_letter(struct dp_shm_maps *maps, const struct dp_shm_letter *letter)
{
    struct dp_shm_map *map = &maps->theirs[letter->slot % DP_SHM_MAPS];

    unmap(map);
    if (is_piece(maps->passed_fd, letter->bytes)) {
        void *at = mmap(NULL, letter->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        maps->passed_fd, 0);
        if (at != MAP_FAILED)
            *map = (struct dp_shm_map){at, letter->bytes, letter->number};
    }
    dp_fd_close(maps->passed_fd);
    maps->passed_fd = -1;
    maps->heard++;
}

void dp_shm_maps_hear(struct dp_shm_maps *maps, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!maps->got && bytes[i] != LETTER)
            continue; /* it rings */
        ((char *)&maps->coming)[maps->got++] = bytes[i];
        if (maps->got == sizeof(maps->coming)) {
            maps->got = 0;
            open_letter(maps, &maps->coming);
        }
    }
}

char *dp_shm_maps_find(const struct dp_shm_maps *maps, const struct dp_shm_place *place, size_t len)
{
    const struct dp_shm_map *map = &maps->theirs[place->slot % DP_SHM_MAPS];

    if (!place->letter || map->letter != place->letter || place->offset > map->bytes ||
        len > map->bytes - place->offset)
        return NULL;
    return map->at + place->offset;
}
