/* SPDX-License-Identifier: Apache-2.0
 *
 * peer_words.h - the words of a command, or of an order, for somebody else's program: one space between
 * two; those that begin with "@" are filled in.
 */
#ifndef DP_TOOLS_BENCH_PEER_WORDS_H
#define DP_TOOLS_BENCH_PEER_WORDS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { PEER_WORDS_MAX = 32 };

/* What it is to move. */
struct peer_load {
    size_t size;
    int times;
};

struct peer_words {
    char *text; /* the caller's to free */
    char *words[PEER_WORDS_MAX + 1]; /* NULL behind the last */
    char port[16], size[32], times[16], warmup[16];
    char mpi_peer[PATH_MAX + 32];
};

/* Whether the command's program is found in PATH. */
bool peer_words_are_installed(const char *command);
/* w->words are the text's, @port, @size, @times, @warmup and @mpi-peer filled in. */
void peer_words_split(struct peer_words *w, const char *text, struct peer_load load, int port);

#endif
