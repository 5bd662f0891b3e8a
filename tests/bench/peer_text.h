/* SPDX-License-Identifier: Apache-2.0
 *
 * peer_text.h - the words of a command, or of an order, for a peer's program: one space between
 * two; those that begin with "@" are filled in.
 */
#ifndef DP_TESTS_BENCH_PEER_TEXT_H
#define DP_TESTS_BENCH_PEER_TEXT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { PEER_WORDS_MAX = 32 };

/* What it is to move. */
struct peer_load {
    size_t size;
    int times;
};

struct peer_text {
    char *text;                      /* the caller's to free */
    char *words[PEER_WORDS_MAX + 1]; /* NULL behind the last */
    char port[16], size[32], times[16], warmup[16];
    char mpi_peer[PATH_MAX + 32];
};

/* Whether the command's program is found in PATH. */
bool peer_text_is_installed(const char *command);
/* w->words are the text's, @port, @size, @times, @warmup and @mpi-peer filled in. */
void peer_text_split(struct peer_text *w, const char *text, struct peer_load load, int port);

#endif
