/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_attach.c - NCCL's library carries CUDA's runtime inside it, yet keeps the names of all its
 * functions. So once it is loaded we write, in this process's memory alone, a jump to our function
 * at the start of each of the runtime's. The file stays as it was shipped. A function that we do
 * not have says so and returns "not supported".
 */
#include "config.h" /* GNU extensions: dladdr */
#include "simcuda/sim.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "the jumps are written for x86-64"
#endif

/* movabs $target, %rax; jmp *%rax */
struct jump {
    unsigned char load[2];
    unsigned char target[8];
    unsigned char go[2];
};
#define JUMP_BYTES 12
_Static_assert(sizeof(struct jump) == JUMP_BYTES, "no padding in machine code");

/* The same for a function without a stand-in, after movabs $name, %rdi. */
struct missing {
    unsigned char load_name[2];
    unsigned char name[8];
    struct jump jump;
};

struct library {
    const char *base;
    const char *file; /* its bytes, mapped; stays */
    const ElfW(Sym) * symbols;
    size_t count;
    const char *names;
};
static struct library nccl;

static struct jump jump_to(const void *target)
{
    struct jump jump = {.load = {0x48, 0xb8}, .go = {0xff, 0xe0}};

    memcpy(jump.target, &target, sizeof(target));
    return jump;
}

static int say_missing(const char *name)
{
    sim_say("%s is not simulated", name);
    return SIM_NOT_SUPPORTED;
}

/* Code that calls say_missing(name). */
static void *missing_function(const char *name)
{
    static struct missing *page, *at;
    enum { COUNT = 1024 };

    if (!page) {
        void *mem = mmap(NULL, COUNT * sizeof(*page), PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mem == MAP_FAILED)
            sim_die("no memory that code can be written to");
        at = page = mem;
    }
    if (at == page + COUNT)
        sim_die("more than %d functions of CUDA's runtime", COUNT);
    *at = (struct missing){.load_name = {0x48, 0xbf}, .jump = jump_to((const void *)say_missing)};
    memcpy(at->name, &name, sizeof(name));
    return at++;
}

void *sim_own_function(const char *name)
{
    static void *own;

    if (!own) {
        Dl_info info;
        if (!dladdr((const void *)sim_own_function, &info) ||
            !(own = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)))
            sim_die("cannot find this library itself: %s", dlerror());
    }
    return dlsym(own, name);
}

static const ElfW(Sym) * symbol_end(void)
{
    return nccl.symbols + nccl.count;
}

static const char *symbol_name(const ElfW(Sym) * symbol)
{
    return nccl.names + symbol->st_name;
}

static bool is_of_the_runtime(const ElfW(Sym) * symbol)
{
    const char *name = symbol_name(symbol);

    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_shndx != SHN_UNDEF &&
           symbol->st_size >= JUMP_BYTES && !strncmp(name, "cuda", 4) && name[4] >= 'A' &&
           name[4] <= 'Z';
}

static void redirect(const ElfW(Sym) * symbol)
{
    char *at = (char *)(uintptr_t)(nccl.base + symbol->st_value);
    char *page = (char *)((uintptr_t)at & ~(uintptr_t)4095);
    void *own = sim_own_function(symbol_name(symbol));
    struct jump jump = jump_to(own ? own : missing_function(symbol_name(symbol)));

    if (mprotect(page, (size_t)(at + sizeof(jump) - page), PROT_READ | PROT_WRITE | PROT_EXEC))
        sim_die("cannot write to the code of libnccl: %s", strerror(errno));
    memcpy(at, &jump, sizeof(jump));
}

/* Its file, mapped whole; NULL after a sentence. */
static const char *map_library(const char *path)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *file = fd < 0 || fstat(fd, &about)
                     ? MAP_FAILED
                     : mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

    if (fd >= 0)
        close(fd);
    return file == MAP_FAILED ? NULL : file;
}

static bool find_symbols(const char *file)
{
    const ElfW(Ehdr) *header = (const void *)file;
    const ElfW(Shdr) *sections = (const void *)(file + header->e_shoff);

    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        nccl.symbols = (const void *)(file + sections[i].sh_offset);
        nccl.count = sections[i].sh_size / sizeof(*nccl.symbols);
        nccl.names = file + sections[sections[i].sh_link].sh_offset;
        return true;
    }
    return false;
}

int sim_attach(const void *in_libnccl)
{
    Dl_info info;
    int count = 0;

    if (!dladdr(in_libnccl, &info))
        return -1;
    nccl.base = info.dli_fbase;
    nccl.file = map_library(info.dli_fname);
    if (!nccl.file || !find_symbols(nccl.file))
        return -1;
    for (const ElfW(Sym) *s = nccl.symbols; s < symbol_end(); s++)
        if (is_of_the_runtime(s)) {
            redirect(s);
            count++;
        }
    sim_say("%d functions of the runtime in %s redirected", count, info.dli_fname);
    return count ? 0 : -1;
}

const void *sim_nccl_symbol(const char *name)
{
    for (const ElfW(Sym) *s = nccl.symbols; s < symbol_end(); s++)
        if (s->st_shndx != SHN_UNDEF && !strcmp(symbol_name(s), name))
            return nccl.base + s->st_value;
    return NULL;
}
