/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/bench/peer_text.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where mpi-peer is: beside this program in its build tree, where libtool may have put it into
 * .libs. */
static const char *mpi_peer(void)
{
    static const char *const beside[] = {"/../mpi-peer", "/mpi-peer"};
    static char path[PATH_MAX + 32];
    char self[PATH_MAX];
    const ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    const char *slash = len > 0 ? (self[len] = '\0', strrchr(self, '/')) : NULL;

    for (int i = 0; slash && i < 2; i++) {
        snprintf(path, sizeof(path), "%.*s%s", (int)(slash - self), self, beside[i]);
        if (!access(path, X_OK))
            return path;
    }
    return "mpi-peer";
}

bool peer_text_is_installed(const char *command)
{
    if (strstr(command, "@mpi-peer") && access(mpi_peer(), X_OK))
        return false;

    const int len = (int)strcspn(command, " ");
    const char *path = getenv("PATH");
    bool found = false;

    for (const char *dir = path ? path : ""; *dir && !found;) {
        const int dir_len = (int)strcspn(dir, ":");
        char *file;
        if (asprintf(&file, "%.*s/%.*s", dir_len, dir, len, command) < 0)
            return false;
        found = !access(file, X_OK);
        free(file);
        dir += dir_len + (dir[dir_len] == ':');
    }
    return found;
}

static char *fill_in(struct peer_text *w, char *word)
{
    const struct {
        const char *name;
        char *value;
    } known[] = {{"@port", w->port},
                 {"@size", w->size},
                 {"@times", w->times},
                 {"@warmup", w->warmup},
                 {"@mpi-peer", w->mpi_peer}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(word, known[i].name))
            return known[i].value;
    return word;
}

void peer_text_split(struct peer_text *w, const char *text, struct peer_load load, int port)
{
    char *rest;
    int count = 0;

    snprintf(w->port, sizeof(w->port), "%d", port);
    snprintf(w->size, sizeof(w->size), "%zu", load.size);
    snprintf(w->times, sizeof(w->times), "%d", load.times);
    snprintf(w->warmup, sizeof(w->warmup), "%d", 1 + load.times / 8);
    snprintf(w->mpi_peer, sizeof(w->mpi_peer), "%s", mpi_peer());
    w->text = strdup(text);
    for (char *word = w->text ? strtok_r(w->text, " ", &rest) : NULL;
         word && count < PEER_WORDS_MAX; word = strtok_r(NULL, " ", &rest))
        w->words[count++] = fill_in(w, word);
    w->words[count] = NULL;
}
