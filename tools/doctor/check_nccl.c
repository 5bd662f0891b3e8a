/* SPDX-License-Identifier: Apache-2.0
 *
 * check_nccl.c - which NCCL, and what is written in it: its version, the variables and the symbols
 * of plugins that it knows. They stand in the file as they are.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdio.h>
#include <string.h>

/* The one that the process has mapped; that of an active Python, since PyTorch brings one and
 * prefers it; else what the loader finds, or where packages put it. */
static bool find_nccl(struct doctor *d, struct tree_path *path, const char **rule)
{
    static const char name[] = "libnccl.so.2";

    *rule = "the map of the process";
    return library_mapped(d, "libnccl.so", path) ||
           library_find_packaged(d, name, true, path, rule) || library_find(d, name, path, rule) ||
           library_find_packaged(d, name, false, path, rule);
}

static bool is_word(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Every word of the file that begins so, a line each. */
static void list_words(const char *bytes, size_t len, const char *begin, FILE *out)
{
    const char *end = bytes + len, *word = bytes;

    while ((word = memmem(word, (size_t)(end - word), begin, strlen(begin)))) {
        size_t n = strlen(begin);
        while (word + n < end && is_word(word[n]))
            n++;
        fprintf(out, "%.*s\n", (int)n, word);
        word += n;
    }
}

static char *words_of(const char *bytes, size_t len)
{
    char *lines = NULL;
    size_t lines_len;
    FILE *out = open_memstream(&lines, &lines_len);

    if (!out)
        return NULL;
    fputc('\n', out);
    list_words(bytes, len, "NCCL_", out);
    list_words(bytes, len, "ncclNetPlugin_v", out);
    list_words(bytes, len, "ncclTunerPlugin_v", out);
    fclose(out);
    return lines;
}

/* "NCCL version 2.28.9+cuda13.0", which it prints when it starts. Others have a printf format
 * there. */
static void read_version(struct nccl *n, const char *bytes, size_t len)
{
    static const char before[] = "NCCL version ";
    const char *end = bytes + len, *p = bytes;
    int major, minor, patch;
    char text[64];

    while ((p = memmem(p, (size_t)(end - p), before, strlen(before)))) {
        p += strlen(before);
        snprintf(text, sizeof(text), "%.*s", (int)strnlen(p, (size_t)(end - p)), p);
        if (sscanf(text, "%d.%d.%d+cuda%15[0-9.]", &major, &minor, &patch, n->cuda) < 3)
            continue;
        n->version = 10000 * major + 100 * minor + patch;
        snprintf(n->version_text, sizeof(n->version_text), "%d.%d.%d", major, minor, patch);
        return;
    }
}

static void add_version(struct doctor *d, const char *rule)
{
    const struct nccl *n = &d->nccl;

    if (n->version)
        doctor_fine(d,
                    doctor_text(d, "NCCL %s for CUDA %s, found by %s", n->version_text,
                                *n->cuda ? n->cuda : "of an unknown release", rule),
                    n->path.text);
    else
        doctor_add(d, DOCTOR_UNKNOWN, "an NCCL that does not say its version", n->path.text,
                   "the rules of NCCL 2.28 are assumed", "NCCL_DEBUG=VERSION makes NCCL print it");
}

void doctor_nccl(struct doctor *d)
{
    struct nccl *n = &d->nccl;
    const char *rule, *bytes;
    size_t len;

    if (!find_nccl(d, &n->path, &rule)) {
        n->path.text[0] = 0;
        doctor_add(d, DOCTOR_UNKNOWN, "no libnccl.so.2",
                   "looked through the process, Python's packages, the loader's directories "
                   "and CUDA's",
                   "the rules of NCCL 2.28 are assumed, and every known variable is taken "
                   "for known",
                   "run this where the job runs, with its environment, or with --pid");
        return;
    }
    bytes = tree_map(&d->tree, &len, "%s", n->path.text);
    if (bytes) {
        n->strings = words_of(bytes, len);
        read_version(n, bytes, len);
    }
    tree_unmap(bytes, len);
    add_version(d, rule);
}
