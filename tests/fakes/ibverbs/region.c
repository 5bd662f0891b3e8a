/* SPDX-License-Identifier: Apache-2.0
 *
 * region.c - memory regions. A key is the region's index and an age, so that an old one is found
 * out; the remote key differs from the local one, so that one is not taken for the other.
 */
#include "config.h" /* GNU extensions: process_vm_readv */

#include "verbs_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static const uint32_t remote_bit = 1u << 31;

uint64_t fv_translate(uint32_t key, bool remote, pid_t pid, uint64_t pd, uint64_t addr, uint64_t len,
                      unsigned access)
{
    const uint32_t index = (key & ~remote_bit) >> 8;
    const struct fv_region *r = index < FV_REGIONS ? &fv->regions[index] : NULL;

    if (!r || !r->used || r->age != (key & 0xff) || !(key & remote_bit) == remote || r->pid != pid ||
        r->pd != pd || (r->access & access) != access)
        return 0;
    if (addr < r->iova || len > r->len || addr - r->iova > r->len - len)
        return 0;
    return r->at + (addr - r->iova);
}

/* Pinning fails where there is no memory. */
static bool is_mapped(const void *at, size_t len)
{
    const uintptr_t begin = (uintptr_t)at, end = begin + len;
    char byte;

    for (uintptr_t p = begin; p < end; p = (p | 4095) + 1) {
        const struct iovec here = {&byte, 1}, there = {(void *)p, 1};
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != 1 && errno == EFAULT)
            return false;
    }
    return true;
}

static int chance_error(void)
{
    const uint64_t n = ++fv_me.reg_serial;

    if (!fv_strikes(FV_REG, 0, n))
        return 0;
    return fv_draw(FV_REG, 0, n, 2) ? EINVAL : ENOMEM;
}

static int find_free(const struct fv_device *d)
{
    int i = 1;

    if (d->mrs_used >= d->mrs)
        return -1;
    while (i < FV_REGIONS && fv->regions[i].used)
        i++;
    return i < FV_REGIONS ? i : -1;
}

static int enter(struct fv_my_pd *pd, struct fv_my_region *m, uint64_t iova, unsigned access)
{
    int err = fv_call_error("ibv_reg_mr");

    err = err ? err : chance_error();
    const int index = err ? -1 : find_free(fv_context(pd->ib.context)->device);
    if (index < 0)
        return err ? err : ENOMEM;
    struct fv_region *r = &fv->regions[index];
    const uint8_t age = (uint8_t)(r->age + 1) ? (uint8_t)(r->age + 1) : 1;
    *r = (struct fv_region){.used = true,
                            .age = age,
                            .pid = fv_me.pid,
                            .pd = pd->id,
                            .iova = iova,
                            .len = m->ib.length,
                            .at = (uintptr_t)m->ib.addr,
                            .access = access};
    m->ib.handle = (uint32_t)index;
    m->ib.lkey = (uint32_t)index << 8 | age;
    m->ib.rkey = m->ib.lkey | remote_bit;
    fv_context(pd->ib.context)->device->mrs_used++;
    pd->users++;
    fv_me.alive++;
    return 0;
}

static bool is_access(unsigned access)
{
    const unsigned known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                           IBV_ACCESS_RELAXED_ORDERING;
    const unsigned need_local = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

    return !(access & ~known) && (!(access & need_local) || access & IBV_ACCESS_LOCAL_WRITE);
}

static struct ibv_mr *fail(struct fv_my_region *m, int err)
{
    if (m && m->mapped)
        munmap(m->mapped, m->mapped_bytes);
    free(m);
    errno = err;
    return NULL;
}

static struct ibv_mr *make(struct ibv_pd *pd, struct fv_my_region *m, uint64_t iova, unsigned access)
{
    if (!is_access(access))
        return fail(m, EINVAL);
    fv_wait_if_held("ibv_reg_mr");
    m->ib.context = pd->context;
    m->ib.pd = pd;
    fv_lock();
    const int err = fv_context(pd->context)->device->is_dead
                        ? EIO
                        : enter((struct fv_my_pd *)(void *)pd, m, iova, access);
    fv_unlock();
    return err ? fail(m, err) : &m->ib;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova,
                                       unsigned access)
{
    struct fv_my_region *m = calloc(1, sizeof(*m));

    if (!m)
        return fail(m, ENOMEM);
    if (!len)
        return fail(m, EINVAL);
    if (!is_mapped(addr, len))
        return fail(m, EFAULT);
    m->ib.addr = addr;
    m->ib.length = len;
    return make(pd, m, iova, access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova,
                                      int access)
{
    return ibv_reg_mr_iova2(pd, addr, len, iova, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
    return ibv_reg_mr_iova2(pd, addr, len, (uintptr_t)addr, (unsigned)access);
}

/* Any file that can be mapped stands for a buffer of another device. */
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                        int fd, int access)
{
    const size_t skip = offset & 4095;
    struct fv_my_region *m = calloc(1, sizeof(*m));

    if (!m)
        return fail(m, ENOMEM);
    if (fcntl(fd, F_GETFD) < 0)
        return fail(m, EBADF); /* first, as the kernel does: callers ask with -1 what is known */
    if (!len || skip != (iova & 4095))
        return fail(m, EINVAL);
    const size_t bytes = len + skip;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
    if (at == MAP_FAILED)
        return fail(m, errno);
    m->mapped = at;
    m->mapped_bytes = bytes;
    if (!is_mapped(at, bytes))
        return fail(m, EINVAL); /* the file is shorter */
    m->ib.addr = (char *)at + skip;
    m->ib.length = len;
    return make(pd, m, iova, (unsigned)access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *ib)
{
    struct fv_my_region *m = (struct fv_my_region *)(void *)ib;

    fv_wait_if_held("ibv_dereg_mr");
    fv_lock();
    fv->regions[ib->handle].used = false;
    ((struct fv_my_pd *)(void *)ib->pd)->users--;
    fv_context(ib->context)->device->mrs_used--;
    fv_me.alive--;
    fv_unlock();
    if (m->mapped)
        munmap(m->mapped, m->mapped_bytes);
    free(m);
    return 0;
}
