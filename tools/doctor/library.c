/* SPDX-License-Identifier: Apache-2.0
 *
 * library.c - where dlopen would find a library; see ld.so(8) for the order.
 */
#include "config.h"

#include "doctor/library.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has(struct doctor *d, const char *dir, size_t len, const char *name,
                struct tree_path *path)
{
    if (!len || !tree_has(&d->tree, "%.*s/%s", (int)len, dir, name) ||
        tree_has(&d->tree, "%.*s/%s/.", (int)len, dir, name)) /* a directory */
        return false;
    return (size_t)snprintf(path->text, sizeof(path->text), "%.*s/%s", (int)len, dir, name) <
           sizeof(path->text);
}

/* Directories with colons between. */
static bool find_in_path(struct doctor *d, const char *dirs, const char *name,
                         struct tree_path *path)
{
    for (; dirs; dirs = strchr(dirs, ':') ? strchr(dirs, ':') + 1 : NULL)
        if (has(d, dirs, strcspn(dirs, ":"), name, path))
            return true;
    return false;
}

static bool find_in_conf(struct doctor *d, const char *file, const char *name, int depth,
                         struct tree_path *path);

static bool find_in_included(struct doctor *d, const char *pattern, const char *name, int depth,
                             struct tree_path *path)
{
    struct tree_list files = tree_glob(&d->tree, "%s%s", *pattern == '/' ? "" : "/etc/", pattern);
    bool found = false;

    for (size_t i = 0; i < files.count && !found; i++)
        found = find_in_conf(d, files.paths[i], name, depth - 1, path);
    tree_list_free(&files);
    return found;
}

/* What ldconfig puts into the cache: a directory a line, or files with more of them. */
static bool find_in_conf(struct doctor *d, const char *file, const char *name, int depth,
                         struct tree_path *path)
{
    size_t len;
    char *lines = depth ? tree_read(&d->tree, &len, "%s", file) : NULL, *rest = lines, *line;
    bool found = false;

    while (lines && !found && (line = strsep(&rest, "\n"))) {
        char pattern[256];
        if (sscanf(line, " include %255s", pattern) == 1)
            found = find_in_included(d, pattern, name, depth, path);
        else if (*line == '/')
            found = has(d, line, strcspn(line, " \t#"), name, path);
    }
    free(lines);
    return found;
}

bool library_find(struct doctor *d, const char *name, struct tree_path *path, const char **rule)
{
    const char *dirs = doctor_variable(d, "LD_LIBRARY_PATH");

    if (strchr(name, '/')) {
        *rule = "its path";
        snprintf(path->text, sizeof(path->text), "%s", name);
        return tree_has(&d->tree, "%s", name);
    }
    *rule = "LD_LIBRARY_PATH";
    if (dirs && find_in_path(d, dirs, name, path))
        return true;
    *rule = "ld.so.conf, where ldconfig has been run";
    if (find_in_conf(d, "/etc/ld.so.conf", name, 4, path))
        return true;
    *rule = "the system's directories";
    return find_in_path(d, "/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu:"
                           "/lib/aarch64-linux-gnu:/usr/lib/aarch64-linux-gnu:"
                           "/lib64:/usr/lib64:/lib:/usr/lib", name, path);
}

static bool find_below(struct doctor *d, const char *dir, const char *below, const char *name,
                       struct tree_path *path)
{
    struct tree_list files = tree_glob(&d->tree, "%s/%s/%s", dir, below, name);
    bool found = files.count;

    if (found)
        snprintf(path->text, sizeof(path->text), "%s", files.paths[0]);
    tree_list_free(&files);
    return found;
}

/* The directory of PATH with python3, and the one above it. */
static const char *python_prefix(struct doctor *d)
{
    const char *dirs = doctor_variable(d, "PATH");

    for (; dirs; dirs = strchr(dirs, ':') ? strchr(dirs, ':') + 1 : NULL) {
        const int len = (int)strcspn(dirs, ":");
        if (len && tree_has(&d->tree, "%.*s/python3", len, dirs))
            return doctor_text(d, "%.*s/..", len, dirs);
    }
    return NULL;
}

bool library_find_packaged(struct doctor *d, const char *name, bool active, struct tree_path *path,
                           const char **rule)
{
    static const char python[] = "lib*/python3*/*-packages/nvidia/*/lib", cuda[] = "lib64";
    static const struct {
        bool active;
        const char *dir, *below, *rule; /* dir: a path, or the variable that has it */
    } places[] = {
        {true, "VIRTUAL_ENV", python, "VIRTUAL_ENV"},
        {true, "CONDA_PREFIX", python, "CONDA_PREFIX"},
        {true, "PATH", python, "the packages of python3"},
        {false, "/usr/local", python, "the packages of Python"},
        {false, "CUDA_HOME", cuda, "CUDA_HOME"},
        {false, "CUDA_PATH", cuda, "CUDA_PATH"},
        {false, "/usr/local", "cuda*/lib*", "the directory of CUDA"},
    };

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *dir = places[i].dir;
        if (places[i].active != active)
            continue;
        if (*dir != '/')
            dir = strcmp(dir, "PATH") ? doctor_variable(d, dir) : python_prefix(d);
        *rule = places[i].rule;
        if (dir && find_below(d, dir, places[i].below, name, path))
            return true;
    }
    return false;
}

bool library_mapped(struct doctor *d, const char *prefix, struct tree_path *path)
{
    size_t len;
    char *lines = tree_read(&d->tree, &len, "/proc/%s/maps", d->process), *rest = lines, *line;
    bool found = false;

    while (lines && !found && (line = strsep(&rest, "\n"))) {
        const char *file = strchr(line, '/');
        found = file && !strncmp(tree_base(file), prefix, strlen(prefix));
        if (found)
            snprintf(path->text, sizeof(path->text), "%s", file);
    }
    free(lines);
    return found;
}

/* Is there a line that is symbol and number? */
static bool has_line(const char *lines, const char *symbol, int number)
{
    char line[64];

    snprintf(line, sizeof(line), "\n%s%d\n", symbol, number);
    return strstr(lines, line);
}

int library_common(const char *lines, const char *others, const char *symbol)
{
    for (int n = 99; n > 0; n--)
        if (has_line(lines, symbol, n) && has_line(others, symbol, n))
            return n;
    return 0;
}

int library_newest(const char *lines, const char *symbol)
{
    return library_common(lines, lines, symbol);
}

/* ---- what is in it --------------------------------------------------------------------------- */

struct image {
    const char *bytes;
    size_t len;
    const Elf64_Shdr *sections;
    size_t section_count;
};

/* count things of `size` bytes at an offset, or NULL if the file has not so much. */
static const void *at(const struct image *i, uint64_t offset, uint64_t size, uint64_t count)
{
    if (offset > i->len || offset % 8 || (size && count > (i->len - offset) / size))
        return NULL;
    return i->bytes + offset;
}

static bool open_image(struct image *i)
{
    const Elf64_Ehdr *head = at(i, 0, sizeof(*head), 1);

    if (!head || memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_ident[EI_CLASS] != ELFCLASS64 ||
        head->e_shentsize != sizeof(Elf64_Shdr))
        return false;
    i->section_count = head->e_shnum;
    i->sections = at(i, head->e_shoff, sizeof(Elf64_Shdr), i->section_count);
    return i->sections;
}

static const Elf64_Shdr *section(const struct image *i, uint32_t type)
{
    for (size_t k = 0; k < i->section_count; k++)
        if (i->sections[k].sh_type == type)
            return &i->sections[k];
    return NULL;
}

/* A text of the strings that go with a section, or "". */
static const char *name_at(const struct image *i, const Elf64_Shdr *of, uint64_t offset)
{
    if (of->sh_link >= i->section_count)
        return "";
    const Elf64_Shdr *s = &i->sections[of->sh_link];
    if (s->sh_offset > i->len || s->sh_size > i->len - s->sh_offset || offset >= s->sh_size)
        return "";
    const char *name = i->bytes + s->sh_offset + offset;
    return memchr(name, 0, s->sh_size - offset) ? name : "";
}

static void list_exports(const struct image *i, FILE *out)
{
    const Elf64_Shdr *s = section(i, SHT_DYNSYM);
    const Elf64_Sym *symbol = s ? at(i, s->sh_offset, 1, s->sh_size) : NULL;

    for (uint64_t k = 0; symbol && k < s->sh_size / sizeof(*symbol); k++)
        if (symbol[k].st_shndx != SHN_UNDEF)
            fprintf(out, "%s\n", name_at(i, s, symbol[k].st_name));
}

static void list_needs(const struct image *i, FILE *out)
{
    const Elf64_Shdr *s = section(i, SHT_DYNAMIC);
    const Elf64_Dyn *entry = s ? at(i, s->sh_offset, 1, s->sh_size) : NULL;

    for (uint64_t k = 0; entry && k < s->sh_size / sizeof(*entry); k++)
        if (entry[k].d_tag == DT_NEEDED)
            fprintf(out, "%s\n", name_at(i, s, entry[k].d_un.d_val));
}

static char *lines_of(const struct image *i, void (*list)(const struct image *, FILE *))
{
    char *lines = NULL;
    size_t len;
    FILE *out = open_memstream(&lines, &len);

    if (!out)
        return NULL;
    fputc('\n', out);
    list(i, out);
    fclose(out);
    return lines;
}

bool library_read(struct doctor *d, const char *path, struct library *out)
{
    struct image i = {0};

    *out = (struct library){0};
    i.bytes = tree_map(&d->tree, &i.len, "%s", path);
    if (i.bytes && open_image(&i)) {
        out->exports = lines_of(&i, list_exports);
        out->needs = lines_of(&i, list_needs);
    }
    tree_unmap(i.bytes, i.len);
    if (out->exports && out->needs)
        return true;
    library_free(out);
    return false;
}

void library_free(struct library *library)
{
    free(library->exports);
    free(library->needs);
    *library = (struct library){0};
}
