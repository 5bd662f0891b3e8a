/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_sum.c - sums in the order of a stream, by kernels of the library's own. They are text of
 * PTX, which the driver compiles for whatever GPU there is, so that the library needs no nvcc.
 *
 *      to[i] += from[i], or to[i] = keep to[i] + take from[i],
 *
 * for i = block * threads + thread, and so on in steps of the whole grid.
 */
#include "device/cuda_device.h"

#include "base/fail.h"

enum { THREADS = 256, MOST_BLOCKS = 2048 };

/* What each kernel takes. */
struct sum_args {
    uint64_t to, from, count;
    double keep, take; /* of those that mix */
};

/* Around the addition: the element %i of the two, at %a and %b. Source: NVIDIA's PTX ISA, 6.4. */
#define BEGIN(name, to_shift, from_shift)                                                          \
    ".visible .entry " name "(.param .align 8 .b8 p[40])\n"                                        \
    "{\n"                                                                                          \
    ".reg .pred %q; .reg .b16 %h; .reg .b32 %t, %n, %x, %y;\n"                                      \
    ".reg .f32 %f, %g, %k, %l; .reg .f64 %d, %e, %m, %o;\n"                                       \
    ".reg .b64 %i, %s, %c, %to, %from, %a, %b;\n"                                                  \
    "ld.param.u64 %to, [p]; ld.param.u64 %from, [p+8]; ld.param.u64 %c, [p+16];\n"                 \
    "cvta.to.global.u64 %to, %to; cvta.to.global.u64 %from, %from;\n"                              \
    "mov.u32 %n, %ntid.x; mov.u32 %t, %ctaid.x; mul.wide.u32 %i, %t, %n;\n"                        \
    "mov.u32 %t, %tid.x; cvt.u64.u32 %s, %t; add.u64 %i, %i, %s;\n"                                \
    "mov.u32 %t, %nctaid.x; mul.wide.u32 %s, %t, %n;\n"                                            \
    "NEXT: setp.ge.u64 %q, %i, %c; @%q bra END;\n"                                                 \
    "shl.b64 %a, %i, " to_shift "; add.u64 %a, %to, %a;\n"                                         \
    "shl.b64 %b, %i, " from_shift "; add.u64 %b, %from, %b;\n"
#define END                                                                                        \
    "add.u64 %i, %i, %s; bra NEXT;\n"                                                              \
    "END: ret;\n"                                                                                  \
    "}\n"

/* bfloat16 is rounded by hand, to nearest, ties to even, and a NaN stays one, as fp16.h does it. */
#define LOAD_BF16(to, address)                                                                     \
    "ld.global.u16 %h, [" address "]; cvt.u32.u16 %x, %h; shl.b32 %x, %x, 16; mov.b32 " to ", %x;\n"
#define STORE_BF16_SUM                                                                             \
    "add.rn.f32 %f, %f, %g; mov.b32 %x, %f;\n"                                                     \
    "shr.u32 %y, %x, 16; and.b32 %y, %y, 1; add.u32 %y, %y, 0x7fff; add.u32 %y, %y, %x;\n"         \
    "or.b32 %x, %x, 0x400000; testp.notanumber.f32 %q, %f; selp.b32 %x, %x, %y, %q;\n"             \
    "shr.u32 %x, %x, 16; cvt.u16.u32 %h, %x; st.global.u16 [%a], %h;\n"
#define LOAD_F16(to, address) "ld.global.b16 %h, [" address "]; cvt.f32.f16 " to ", %h;\n"
#define STORE_F16_SUM                                                                              \
    "add.rn.f32 %f, %f, %g; cvt.rn.f16.f32 %h, %f; st.global.b16 [%a], %h;\n"

const char dp_cuda_sum_ptx[] =
    ".version 6.4\n.target sm_60\n.address_size 64\n"
    BEGIN("dp_add_f32", "2", "2")
    "ld.global.f32 %f, [%a]; ld.global.f32 %g, [%b]; add.rn.f32 %f, %f, %g; st.global.f32 [%a], %f;\n"
    END
    BEGIN("dp_add_f64", "3", "3")
    "ld.global.f64 %d, [%a]; ld.global.f64 %e, [%b]; add.rn.f64 %d, %d, %e; st.global.f64 [%a], %d;\n"
    END
    BEGIN("dp_add_bf16", "1", "2")
    LOAD_BF16("%f", "%a") "ld.global.f32 %g, [%b];\n" STORE_BF16_SUM
    END
    BEGIN("dp_add_f16", "1", "2")
    LOAD_F16("%f", "%a") "ld.global.f32 %g, [%b];\n" STORE_F16_SUM
    END
    BEGIN("dp_add_bf16_bf16", "1", "1")
    LOAD_BF16("%f", "%a") LOAD_BF16("%g", "%b") STORE_BF16_SUM
    END
    BEGIN("dp_add_f16_f16", "1", "1")
    LOAD_F16("%f", "%a") LOAD_F16("%g", "%b") STORE_F16_SUM
    END
    BEGIN("dp_mix_f32", "2", "2")
    "ld.param.f64 %d, [p+24]; cvt.rn.f32.f64 %k, %d; ld.param.f64 %d, [p+32]; cvt.rn.f32.f64 %l, %d;\n"
    "ld.global.f32 %f, [%a]; ld.global.f32 %g, [%b]; mul.rn.f32 %f, %f, %k;\n"
    "fma.rn.f32 %f, %g, %l, %f; st.global.f32 [%a], %f;\n"
    END
    BEGIN("dp_mix_f64", "3", "3")
    "ld.param.f64 %m, [p+24]; ld.param.f64 %o, [p+32];\n"
    "ld.global.f64 %d, [%a]; ld.global.f64 %e, [%b]; mul.rn.f64 %d, %d, %m;\n"
    "fma.rn.f64 %d, %e, %o, %d; st.global.f64 [%a], %d;\n"
    END;

static const struct sum_kernel {
    const char *name;
    uint8_t code, bits, from_code, from_bits;
    bool mixes;
} kernels[DP_CUDA_SUMS] = {
    {"dp_add_f32", kDLFloat, 32, kDLFloat, 32, false},
    {"dp_add_f64", kDLFloat, 64, kDLFloat, 64, false},
    {"dp_add_bf16", kDLBfloat, 16, kDLFloat, 32, false},
    {"dp_add_f16", kDLFloat, 16, kDLFloat, 32, false},
    {"dp_add_bf16_bf16", kDLBfloat, 16, kDLBfloat, 16, false},
    {"dp_add_f16_f16", kDLFloat, 16, kDLFloat, 16, false},
    {"dp_mix_f32", kDLFloat, 32, kDLFloat, 32, true},
    {"dp_mix_f64", kDLFloat, 64, kDLFloat, 64, true},
};

static int find_kernel(DLDataType type, DLDataType from, bool mixes)
{
    for (int i = 0; i < DP_CUDA_SUMS; i++)
        if (kernels[i].mixes == mixes && kernels[i].code == type.code && kernels[i].bits == type.bits &&
            kernels[i].from_code == from.code && kernels[i].from_bits == from.bits)
            return i;
    return -1;
}

/* With the lock. */
static void load(struct cuda *cuda)
{
    struct dp_device_module *module = NULL;
    int err = 0;

    if (cuda->sums_tried)
        return;
    cuda->sums_tried = true;
    if (!cuda->cu.cuModuleLoadData || dp_cuda_module_new(&cuda->base, dp_cuda_sum_ptx, &module))
        return;
    for (int i = 0; i < DP_CUDA_SUMS && !err; i++)
        err = dp_cuda_kernel_find(module, kernels[i].name, &cuda->sum_kernels[i]);
    if (err)
        dp_cuda_module_free(module);
    else
        cuda->sums = module;
}

static bool has_sums(struct cuda *cuda)
{
    pthread_mutex_lock(&cuda->base.lock);
    load(cuda);
    const bool has = cuda->sums;
    pthread_mutex_unlock(&cuda->base.lock);
    return has;
}

/* Of a count of 0, too: the first launch of a kernel may load it (nccl.h). */
static int launch(struct dp_device_stream *stream, int kernel, const struct sum_args *args)
{
    struct cuda *cuda = dp_cuda_of(stream->dev);
    const uint64_t blocks = args->count ? (args->count + THREADS - 1) / THREADS : 1;

    return dp_cuda_launch(stream->dev,
                          &(struct dp_device_launch){
                              .kernel = cuda->sum_kernels[kernel],
                              .stream = dp_cuda_stream_of(stream),
                              .blocks = {(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), 1, 1},
                              .threads = THREADS,
                              .args = args,
                              .args_bytes = sizeof(*args)});
}

int dp_cuda_add(struct dp_device_stream *stream, DLDataType type, void *to, DLDataType from_type,
                const void *from, size_t count)
{
    struct cuda *cuda = dp_cuda_of(stream->dev);
    const int i = find_kernel(type, from_type, false);

    if (i < 0 || !has_sums(cuda))
        return dp_fail_quietly(DP_EUNSUPPORTED, "cuda:%d: no kernel that adds %d bits to %d bits",
                               cuda->cu.ordinal, from_type.bits, type.bits);
    return launch(stream, i,
                  &(struct sum_args){.to = (uintptr_t)to, .from = (uintptr_t)from, .count = count});
}

int dp_cuda_mix(struct dp_device_stream *stream, DLDataType type, void *to, double keep,
                const void *from, double take, size_t count)
{
    struct cuda *cuda = dp_cuda_of(stream->dev);
    const int i = find_kernel(type, type, true);

    if (i < 0 || !has_sums(cuda))
        return dp_fail_quietly(DP_EUNSUPPORTED, "cuda:%d: no kernel that mixes %d bits",
                               cuda->cu.ordinal, type.bits);
    return launch(stream, i, &(struct sum_args){(uintptr_t)to, (uintptr_t)from, count, keep, take});
}
