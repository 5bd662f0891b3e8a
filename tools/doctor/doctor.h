/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor.h - `dualpipe doctor`: a table of checks, each of which looks at one thing and adds findings.
 * A check decides nothing from what it cannot see: that is a finding of its own, DOCTOR_UNKNOWN.
 */
#ifndef DP_TOOLS_DOCTOR_DOCTOR_H
#define DP_TOOLS_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

/* ---- tree ------------------------------------------------------------------------------------ */

/* The files of a machine: this one's, or a captured one's below a directory of its own.
 * Paths are those of that machine, absolute, as printf formats. */

struct tree {
    const char *root; /* "": this machine */
};

enum { TREE_PATH_LEN = 1024 };
struct tree_path {
    char text[TREE_PATH_LEN];
};

#define TREE_PRINTF(fmt) __attribute__((format(printf, fmt, fmt + 1)))

/* The whole file with a 0 behind it, to be freed, or NULL with errno set. */
char *tree_read(const struct tree *tree, size_t *len, const char *path, ...) TREE_PRINTF(3);

/* The same without a copy and without the 0, for large files; NULL also if it is empty. */
const char *tree_map(const struct tree *tree, size_t *len, const char *path, ...) TREE_PRINTF(3);
void tree_unmap(const char *bytes, size_t len);

/* Its first line without blanks at the end, or false if there is none. */
bool tree_line(const struct tree *tree, char line[static 256], const char *path, ...) TREE_PRINTF(3);

/* The number that it begins with, hexadecimal after 0x; false if there is none. */
bool tree_number(const struct tree *tree, double *number, const char *path, ...) TREE_PRINTF(3);

bool tree_has(const struct tree *tree, const char *path, ...) TREE_PRINTF(2);

/* Where it is once all links are followed, still as a path of that machine. */
bool tree_real(const struct tree *tree, struct tree_path *real, const char *path, ...)
    TREE_PRINTF(3);

/* The files that match a pattern of the shell's, {} too, in order; free them with tree_list_free. */
struct tree_list {
    size_t count;
    char **paths;
};
struct tree_list tree_glob(const struct tree *tree, const char *pattern, ...) TREE_PRINTF(2);
void tree_list_free(struct tree_list *list);

/* What comes after the last slash. */
const char *tree_base(const char *path);

/* ---- doctor ---------------------------------------------------------------------------------- */

enum doctor_severity {
    DOCTOR_FINE,    /* as it should be */
    DOCTOR_NOTE,    /* works as configured; something else could be had */
    DOCTOR_UNKNOWN, /* could not be seen */
    DOCTOR_WARNING, /* works, but slower, or otherwise than meant */
    DOCTOR_FAULT    /* does not work, or is not used */
};

/* What NCCL will read, and where that is from. */
struct variable {
    char *name, *value;
    const char *origin;
};
struct variables {
    struct variable *list;
    size_t count;
    const char *unseen; /* the file with the environment, which cannot be read; NULL: it was */
};

/* The library, as far as it is known. */
struct nccl {
    struct tree_path path; /* "": none found */
    int version;           /* 22809; 0: not known */
    char version_text[32], cuda[16];
    char *strings; /* every NCCL_... and nccl...Plugin_v... in it, a line each; NULL: none */
};

/* What a check looks at, and where it says what it finds. */
struct doctor {
    struct tree tree;
    char process[16]; /* "self", or the number of a process: below /proc */
    struct variables variables;
    struct report *report; /* doctor.c */
    /* What earlier checks have learned for later ones. */
    struct nccl nccl;
    struct tree_path net_plugin; /* that NCCL would load; "": none */
};

/* In the order in which they run: doctor_nccl and doctor_plugin come first. */
void doctor_nccl(struct doctor *d);
void doctor_plugin(struct doctor *d);
void doctor_tuner(struct doctor *d);
void doctor_versions(struct doctor *d);
void doctor_variables(struct doctor *d);
void doctor_gpu(struct doctor *d);
void doctor_limits(struct doctor *d);
void doctor_memory(struct doctor *d);
void doctor_rdma(struct doctor *d);
void doctor_links(struct doctor *d);
void doctor_isolation(struct doctor *d);
void doctor_places(struct doctor *d);
void doctor_placement(struct doctor *d);

/* Add a finding: after each other what, evidence, consequence and remedy, with a \v between. Those at
 * the end may be left out, and one that is empty is NULL. What is fine has the first two. Only a \v of
 * the format counts, none of what it takes. */
void doctor_say(struct doctor *d, enum doctor_severity severity, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether the check at work has said something. */
bool doctor_has_said(const struct doctor *d);

/* A text that lives as long as d. */
const char *doctor_text(struct doctor *d, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A variable as NCCL would see it: the process's environment, then its files. NULL: not set, or,
 * where `unseen` is set, not known. The second is for evidence: "NCCL_NET in the environment". */
const char *doctor_variable(const struct doctor *d, const char *name);
const char *doctor_origin(struct doctor *d, const char *name);
void doctor_variables_read(struct doctor *d);

#endif
