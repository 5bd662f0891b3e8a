/* SPDX-License-Identifier: Apache-2.0
 *
 * codec_type.h - the loops of compressed.c for one type; compressed.c includes it with these defined:
 *
 *      REAL     float or double      NAME(x)      x with a suffix of the type
 *      ABS      of that type
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
