/* SPDX-License-Identifier: Apache-2.0
 *
 * codec_type.h - the loops of codec.c for one type; codec.c includes it with these defined:
 *
 *      REAL     float or double      NAME(x)      x with a suffix of the type
 *      ABS      of that type         KEY(x)       its magnitude as 31 bits that order like it
 */
static void NAME(round_piece)(size_t count, const REAL *restrict x, const REAL *restrict reference,
                              float *scale, int8_t *restrict out)
{
    REAL d[DP_CODEC_SCALED], most = 0, inverse;
    bool finite = true;

    for (size_t i = 0; i < count; i++) {
        d[i] = x[i] - reference[i];
        const REAL size = ABS(d[i]);
        most = size > most ? size : most;
        finite = finite && size <= LARGEST;
    }
    *scale = finite ? (float)(most / 127) : NAN;
    if (*scale < FLT_MIN)
        *scale = 0;
    inverse = finite && *scale > 0 ? 1 / (REAL)*scale : 0;
    for (size_t i = 0; i < count; i++) {
        REAL v = finite ? d[i] * inverse : 0;
        v = v > 127 ? 127 : v < -127 ? -127 : v;
        out[i] = (int8_t)(v + (v < 0 ? (REAL)-0.5 : (REAL)0.5));
    }
}

static void NAME(add_piece)(size_t count, float scale, const int8_t *restrict in,
                            REAL *restrict sum)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += (REAL)scale * (REAL)in[i];
}

/* The magnitude of the last kept one, and how many of just that are kept: two counts by halves of the
 * key. */
static uint32_t NAME(find_limit)(const struct dp_codec *c, const REAL *x, const REAL *reference,
                                 size_t *equals)
{
    size_t left = c->kept;
    uint32_t high, low;

    memset(c->bins, 0, BINS * sizeof(*c->bins));
    for (size_t i = 0; i < c->elements; i++)
        c->bins[KEY(x[i] - reference[i]) >> 16]++;
    for (high = BINS - 1; c->bins[high] < left; high--)
        left -= c->bins[high];
    memset(c->bins, 0, BINS * sizeof(*c->bins));
    for (size_t i = 0; i < c->elements; i++) {
        const uint32_t key = KEY(x[i] - reference[i]);
        c->bins[key & 0xffff] += key >> 16 == high;
    }
    for (low = BINS - 1; c->bins[low] < left; low--)
        left -= c->bins[low];
    *equals = left;
    return high << 16 | low;
}

static void NAME(keep_largest)(const struct dp_codec *c, const REAL *x, const REAL *reference,
                               uint32_t *numbers, REAL *values)
{
    size_t equals, count = 0;
    const uint32_t limit = NAME(find_limit)(c, x, reference, &equals);

    for (size_t i = 0; i < c->elements && count < c->kept; i++) {
        const REAL d = x[i] - reference[i];
        const uint32_t key = KEY(d);
        if (key < limit || (key == limit && !equals))
            continue;
        equals -= key == limit;
        numbers[count] = (uint32_t)i;
        values[count++] = d;
    }
}

static int NAME(add_largest)(const struct dp_codec *c, const uint32_t *numbers, const REAL *values,
                             REAL *sum)
{
    for (size_t i = 0; i < c->kept; i++) {
        if (numbers[i] >= c->elements)
            return DP_EMISMATCH;
        sum[numbers[i]] += values[i];
    }
    return 0;
}
