/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_mappings.h - the mapping cache of a shared memory wire: memory of dp_shared_alloc (memory.h)
 * of one side that the other side has mapped too.
 *
 *      owner                                                    peer
 *      announces a piece: an announcement, with its file  ->    maps it
 *      refers to it: announcement number and offset       ->    finds it
 *
 * Announcements travel over the wire's socket, among the bytes that wake the peer; references are
 * in the segment. A piece is announced when a message in it is sent or received for the first time.
 * Each side has DP_SHM_MAPPINGS slots at the peer and manages them itself: a further piece takes
 * the slot that was referred to longest ago.
 */
#ifndef DP_WIRE_SHM_MAPPINGS_H
#define DP_WIRE_SHM_MAPPINGS_H

#include <dualpipe/dualpipe.h>

enum { DP_SHM_MAPPINGS = 16 };

/* An address in an announced piece. Zeroed memory: none. */
struct dp_shm_location {
    uint64_t offset;
    uint32_t announcement; /* number of the announcement, from 1 */
    uint32_t slot;
};

struct dp_shm_announcement {
    uint8_t kind; /* not 0, which only wakes */
    uint8_t slot;
    uint32_t number;
    uint64_t bytes; /* of the file passed with it */
};

struct dp_shm_mappings {
    struct dp_shm_announced {
        uint64_t id; /* of struct dp_shared_place */
        uint32_t announcement;
        uint64_t used; /* value of uses at the last reference */
        bool is_lent;  /* keeps its slot */
    } mine[DP_SHM_MAPPINGS];
    struct dp_shm_map {
        char *at; /* NULL: nothing */
        size_t bytes;
        uint32_t announcement;
    } theirs[DP_SHM_MAPPINGS];
    uint32_t announcements; /* sent */
    uint64_t uses;
    unsigned received; /* announcements of the peer */

    struct dp_shm_announcement coming;
    size_t got;    /* bytes of it */
    int passed_fd; /* passed with it; -1: none */
};

void dp_shm_mappings_init(struct dp_shm_mappings *maps);
/* Unmap everything of the peer. Zeroed memory is fine. */
void dp_shm_mappings_fini(struct dp_shm_mappings *maps);

/* Announce the piece that holds buf[len], if it is not yet. false if buf is not in shared memory or
 * it cannot be announced. */
bool dp_shm_mappings_name(struct dp_shm_mappings *maps, int socket, const void *buf, size_t len,
                          struct dp_shm_location *out);

/* Take what was read from the socket into bytes and passed_fd. */
void dp_shm_mappings_receive(struct dp_shm_mappings *maps, const char *bytes, size_t len);

/* The len bytes that the peer refers to, mapped here; NULL if they are not. Valid until the next
 * dp_shm_mappings_receive. */
char *dp_shm_mappings_find(const struct dp_shm_mappings *maps, const struct dp_shm_location *place,
                           size_t len);

#endif
