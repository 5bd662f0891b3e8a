/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_maps.h - shared memory (dualpipe/memory.h) of one side of a wire that the other one has mapped,
 * too.
 *
 *      owner                                           peer
 *      shows a piece: a letter, with the file  ->      maps it
 *      names a place: letter and offset        ->      finds it
 *
 * Letters go over the wire's socket, among the bytes that ring; places in the segment. A piece is shown
 * when something in it is named for the first time. Each side has DP_SHM_MAPS slots at the other one,
 * and looks after them itself: one more piece takes the slot of the one that was named longest ago.
 */
#ifndef DP_WIRE_SHM_MAPS_H
#define DP_WIRE_SHM_MAPS_H

#include <dualpipe/dualpipe.h>

enum { DP_SHM_MAPS = 16 };

/* Somewhere in what the writer has shown. Zeroed memory is nowhere. */
struct dp_shm_place {
    uint64_t offset;
    uint32_t letter; /* its number, from 1 */
    uint32_t slot;
};

struct dp_shm_letter {
    uint8_t kind; /* not 0, which rings */
    uint8_t slot;
    uint32_t number;
    uint64_t bytes; /* of the file that comes with it */
};

struct dp_shm_maps {
    struct dp_shm_shown {
        uint64_t id; /* of struct dp_shared_place */
        uint32_t letter;
        uint64_t named; /* when, by uses */
    } mine[DP_SHM_MAPS];
    struct dp_shm_map {
        char *at; /* NULL: nothing */
        size_t bytes;
        uint32_t letter;
    } theirs[DP_SHM_MAPS];
    uint32_t letters; /* written */
    uint64_t uses;
    unsigned heard; /* letters of the peer's */

    struct dp_shm_letter coming;
    size_t got;    /* bytes of it */
    int passed_fd; /* that came with it; -1 none */
};

void dp_shm_maps_init(struct dp_shm_maps *maps);
/* Nothing of the peer's is mapped any more. Zeroed memory is fine. */
void dp_shm_maps_fini(struct dp_shm_maps *maps);

/* Whether buf[len] is in a piece of shared memory that the peer has been shown, by now; where. */
bool dp_shm_maps_name(struct dp_shm_maps *maps, int socket, const void *buf, size_t len,
                      struct dp_shm_place *out);

/* What has been read of the socket into bytes and passed_fd. */
void dp_shm_maps_hear(struct dp_shm_maps *maps, const char *bytes, size_t len);

/* The len bytes that the peer has named, mapped; NULL if they are not. Until the next byte is heard. */
char *dp_shm_maps_find(const struct dp_shm_maps *maps, const struct dp_shm_place *place, size_t len);

#endif
