/* SPDX-License-Identifier: Apache-2.0
 *
 * library_read.c - the symbols that a shared object exports and the libraries it needs: elf(5).
 * Every offset is checked against the file's size, since any file may be called libnccl-net.so.
 */
#include "config.h"

#include "doctor/library.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
