/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_update.c - an optimizer's update and sums of squares, as kernels of the library's own (text of
 * PTX, as in cuda_sum.c). Every operation is rounded by itself, and fused where optimizer/kernels_type.h
 * has FMA: the bits are those of the host.
 */
#include "device/cuda_device.h"

#include "base/fail.h"

/* Element %i of x, g, a and b is at %px, %pg, %pa and %pb; T: f32 or f64. Constants are given as
 * f64, and rounded. */
#define BEGIN(name, T, shift, size)                                                                \
    ".visible .entry " name "_" T "(.param .align 8 .b8 p[128])\n"                                 \
    "{\n"                                                                                          \
    ".reg .pred %q, %z, %ahead; .reg .b32 %t, %n; .reg .f64 %c, %e;\n"                             \
    ".reg ." T " %x, %g, %a, %b, %u, %scale, %decay, %keep, %rate;\n"                             \
    ".reg ." T " %b1, %b2, %r1, %r2, %s1, %s2, %tiny;\n"                                          \
    ".reg .b64 %i, %s, %count, %o, %px, %pg, %pa, %pb, %x0, %g0, %a0, %b0;\n"                      \
    "ld.param.u64 %x0, [p]; ld.param.u64 %g0, [p+8]; ld.param.u64 %a0, [p+16];\n"                  \
    "ld.param.u64 %b0, [p+24]; ld.param.u64 %count, [p+32];\n"                                     \
    "ld.param.u64 %o, [p+40]; setp.ne.u64 %z, %o, 0;\n"                                            \
    "ld.param.u64 %o, [p+48]; setp.ne.u64 %ahead, %o, 0;\n"                                        \
    FIRST                                                                                          \
    NUMBER_##size("%scale", "56") NUMBER_##size("%decay", "64") NUMBER_##size("%keep", "72")       \
    NUMBER_##size("%rate", "80") NUMBER_##size("%b1", "88") NUMBER_##size("%b2", "96")             \
    NUMBER_##size("%s1", "104") NUMBER_##size("%s2", "112") NUMBER_##size("%tiny", "120")          \
    "NEXT: setp.ge.u64 %q, %i, %count; @%q bra END;\n"                                             \
    "shl.b64 %o, %i, " shift "; add.u64 %px, %x0, %o; add.u64 %pg, %g0, %o;\n"                     \
    "add.u64 %pa, %a0, %o; add.u64 %pb, %b0, %o;\n"                                                \
    "ld.global." T " %x, [%px]; ld.global." T " %g, [%pg]; mul.rn." T " %g, %g, %scale;\n"
#define END(T, zero)                                                                               \
    "st.global." T " [%px], %x; mov." T " %u, " zero "; @%z st.global." T " [%pg], %u;\n" LAST
#define FIRST                                                                                      \
    "mov.u32 %n, %ntid.x; mov.u32 %t, %ctaid.x; mul.wide.u32 %i, %t, %n;\n"                        \
    "mov.u32 %t, %tid.x; cvt.u64.u32 %s, %t; add.u64 %i, %i, %s;\n"                                \
    "mov.u32 %t, %nctaid.x; mul.wide.u32 %s, %t, %n;\n"
#define LAST                                                                                       \
    "add.u64 %i, %i, %s; bra NEXT;\n"                                                              \
    "END: ret;\n"                                                                                  \
    "}\n"
#define NUMBER_4(to, at) "ld.param.f64 %c, [p+" at "]; cvt.rn.f32.f64 " to ", %c;\n"
#define NUMBER_8(to, at) "ld.param.f64 " to ", [p+" at "];\n"

#define SGD(T, shift, size, zero, one)                                                             \
    BEGIN("dp_sgd", T, shift, size)                                                                \
    "fma.rn." T " %g, %decay, %x, %g; neg." T " %u, %rate; fma.rn." T " %x, %u, %g, %x;\n"         \
    END(T, zero)
#define MOMENTUM(T, shift, size, zero, one)                                                        \
    BEGIN("dp_momentum", T, shift, size)                                                           \
    "fma.rn." T " %g, %decay, %x, %g; ld.global." T " %a, [%pa]; mul.rn." T " %a, %b1, %a;\n"      \
    "add.rn." T " %a, %a, %g; st.global." T " [%pa], %a; @%ahead fma.rn." T " %a, %b1, %a, %g;\n"  \
    "neg." T " %u, %rate; fma.rn." T " %x, %u, %a, %x;\n"                                          \
    END(T, zero)
#define ADAM(T, shift, size, zero, one)                                                            \
    BEGIN("dp_adam", T, shift, size)                                                               \
    "mul.rn." T " %u, %decay, %x; add.rn." T " %g, %g, %u;\n"                                      \
    "mov." T " %u, " one "; sub.rn." T " %r1, %u, %b1; sub.rn." T " %r2, %u, %b2;\n"               \
    "ld.global." T " %a, [%pa]; mul.rn." T " %a, %b1, %a; mul.rn." T " %u, %r1, %g;\n"             \
    "add.rn." T " %a, %a, %u; st.global." T " [%pa], %a;\n"                                        \
    "ld.global." T " %b, [%pb]; mul.rn." T " %b, %b2, %b; mul.rn." T " %u, %r2, %g;\n"             \
    "mul.rn." T " %u, %u, %g; add.rn." T " %b, %b, %u; st.global." T " [%pb], %b;\n"               \
    "div.rn." T " %a, %a, %s1; div.rn." T " %b, %b, %s2; sqrt.rn." T " %b, %b;\n"                  \
    "add.rn." T " %b, %b, %tiny; div.rn." T " %a, %a, %b; mul.rn." T " %a, %rate, %a;\n"           \
    "mul.rn." T " %x, %x, %keep; sub.rn." T " %x, %x, %a;\n"                                       \
    END(T, zero)

/* to[i] = the sum over from[i], from[i + threads of all blocks] and so on, of squares in float64, or of
 * numbers that are sums already; of those one row for each block, to[block * threads + thread]. */
#define SUM(name, T, shift, row, number)                                                           \
    ".visible .entry " name "(.param .align 8 .b8 p[24])\n"                                        \
    "{\n"                                                                                          \
    ".reg .pred %q; .reg .b32 %t, %n; .reg .f32 %f; .reg .f64 %c, %e;\n"                           \
    ".reg .b64 %i, %s, %count, %o, %from, %to;\n"                                                  \
    "ld.param.u64 %from, [p]; ld.param.u64 %to, [p+8]; ld.param.u64 %count, [p+16];\n" FIRST       \
    "shl.b64 %o, %i, 3; add.u64 %to, %to, %o; mov.f64 %e, 0d0000000000000000;\n" row               \
    "NEXT: setp.ge.u64 %q, %i, %count; @%q bra DONE;\n"                                            \
    "shl.b64 %o, %i, " shift "; add.u64 %o, %from, %o; " number " add.rn.f64 %e, %e, %c;\n"        \
    "add.u64 %i, %i, %s; bra NEXT;\n"                                                              \
    "DONE: st.global.f64 [%to], %e; ret;\n"                                                        \
    "}\n"
#define ROW                                                                                        \
    "mov.u32 %t, %ctaid.x; cvt.u64.u32 %s, %t; mul.lo.u64 %s, %s, %count; shl.b64 %s, %s, 3;\n"    \
    "add.u64 %from, %from, %s; mov.u32 %t, %tid.x; cvt.u64.u32 %i, %t; cvt.u64.u32 %s, %n;\n"

#define BOTH(KIND)                                                                                 \
    KIND("f32", "2", 4, "0f00000000", "0f3F800000")                                                \
    KIND("f64", "3", 8, "0d0000000000000000", "0d3FF0000000000000")

const char dp_cuda_update_ptx[] =
    ".version 6.4\n.target sm_60\n.address_size 64\n"
    BOTH(SGD) BOTH(MOMENTUM) BOTH(ADAM)
    SUM("dp_squares_f32", "f32", "2", "",
        "ld.global.f32 %f, [%o]; cvt.f64.f32 %c, %f; mul.rn.f64 %c, %c, %c;")
    SUM("dp_squares_f64", "f64", "3", "", "ld.global.f64 %c, [%o]; mul.rn.f64 %c, %c, %c;")
    SUM("dp_sum_rows", "f64", "3", ROW, "ld.global.f64 %c, [%o];");

int dp_cuda_own_kernel(struct dp_device *dev, const char *name, void **out)
{
    struct cuda *cuda = dp_cuda_of(dev);
    int err = 0;

    pthread_mutex_lock(&dev->lock);
    if (!cuda->updates)
        err = dp_cuda_module_new(dev, dp_cuda_update_ptx, &cuda->updates);
    pthread_mutex_unlock(&dev->lock);
    return err ? err : dp_cuda_kernel_find(cuda->updates, name, out);
}
