/* SPDX-License-Identifier: Apache-2.0
 *
 * place.h - where a rank trains: the memory of the host or of a device, and the stream in whose
 * order all is done there. The host is the device whose copies are done when they are queued.
 */
#ifndef DP_TRAINER_PLACE_H
#define DP_TRAINER_PLACE_H

#include <dualpipe/device.h>
#include <dualpipe/parameter.h>

struct place;

/* Where what follows so many bytes may begin. */
static inline size_t place_aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* dev NULL: the host; with threads to copy beside compute, if `copies`. stream NULL: one of its own.
 * Both stay. */
int place_new(struct dp_device *dev, struct dp_device_stream *stream, bool copies,
              struct place **out);
/* What is queued is waited for. May be NULL. */
void place_free(struct place *p);

/* For what takes a device or a stream where it is not to use the host's memory: NULL on the host.
 */
struct dp_device *place_device(const struct place *p);
struct dp_device_stream *place_stream(const struct place *p);

/* The host's, too. */
struct dp_device *place_any_device(const struct place *p);

/* Two streams at once: what is queued in *second comes behind all that is queued here; after the
 * join the stream goes on behind both. */
int place_fork(struct place *p, struct dp_device_stream **second);
int place_join(struct place *p);

DLDevice place_dl(const struct place *p);
bool place_has(const struct place *p, const DLTensor *t);
/* Zeroed, on a device once what is queued is done. */
int place_alloc(struct place *p, enum dp_memory where, size_t bytes, void **out);
void place_release(struct place *p, enum dp_memory where, void *memory);
/* Queued. What is not memory of the device has to be pinned, or the call waits. */
int place_copy(struct place *p, void *to, const void *from, size_t bytes);
/* Queued: to[count] become from[count], rounded to a type of 16 bits. */
int place_round(struct place *p, size_t count, const float *from, DLDataType type, uint16_t *to);
int place_zero_gradients(struct place *p, const struct dp_parameter *list, int32_t count);
/* For all that is queued. DP_ETIMEDOUT after ten minutes. */
int place_wait(struct place *p);

/* Tensors of a list that the host does not reach are copied to where it does, and put back. */
struct place_copies {
    char *memory; /* NULL: none */
    void **there; /* [count] where each is; NULL: the host reaches it */
    int32_t count;
};
/* list[i].tensor becomes the copy, with the values of now if `read`. */
int place_bring(struct place *p, struct dp_named_tensor *list, int32_t count, bool read,
                struct place_copies *out);
/* Copy what the list holds now to where it came from. */
int place_put_back(struct place *p, const struct dp_named_tensor *list,
                   const struct place_copies *copies);
void place_copies_free(struct place *p, struct place_copies *copies);

#endif
