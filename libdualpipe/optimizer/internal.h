/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_OPTIMIZER_INTERNAL_H
#define DP_OPTIMIZER_INTERNAL_H

#include <dualpipe/optimizer.h>

/* dp_gradient_squares of gradients in the memory of a device, behind what `stream` has been given: to
 * squares[count], in that memory, as `room` is, of so many bytes. Added up in another order than on
 * the host, which depends on the number of elements alone, too. DP_EUNSUPPORTED: a device without such
 * kernels. */
size_t dp_gradient_squares_room(int32_t count);
int dp_gradient_squares_queue(struct dp_device_stream *stream,
                              const struct dp_parameter *parameters, int32_t count,
                              void *room, double *squares);
/* Bytes of the state that dp_optimizer_tensors gives. */
size_t dp_optimizer_state_bytes(const struct dp_optimizer *optimizer);
/* After something else wrote the values (a broadcast, an average): masters become equal to them. */
void dp_optimizer_read_values(struct dp_optimizer *optimizer);
/* "sgd", "adam", "adamw", "accum-adam", "accum-adamw"; NULL for anything else. */
const char *dp_optimizer_kind_name(enum dp_optimizer_kind kind);

#endif
