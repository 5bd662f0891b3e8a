/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.cu - layer normalisation, a warp a row, a lane eight columns at a time.
 */

#define EACH_EIGHT for (int j = 8 * (thread_id() % WARP_LANES); j < a.width; j += 8 * WARP_LANES)

KERNEL(NAME(norm_forward), norm_args)
{
    const int row = block_x() * BLOCK_ROWS + thread_id() / WARP_LANES;
    const size_t at = (size_t)row * (size_t)a.width;
    const bool whole = a.width % 8 == 0 && is_aligned(a.x, a.y) && is_aligned(a.xhat, NULL);
    float x[8], y[8], sum = 0, squares = 0;

    if (row >= a.n)
        return;
    EACH_EIGHT {
        NAME(load_eight)(a.x, at + (size_t)j, whole, a.width - j, x);
        UNROLL for (int k = 0; k < 8; k++)
            sum += x[k];
    }
    const float mean = warp_sum(sum) / (float)a.width;
    EACH_EIGHT {
        NAME(load_eight)(a.x, at + (size_t)j, whole, a.width - j, x);
        UNROLL for (int k = 0; k < 8; k++)
            squares += j + k < a.width ? (x[k] - mean) * (x[k] - mean) : 0;
    }
    const float rstd = 1 / sqrtf(warp_sum(squares) / (float)a.width + 1e-5f);
    if (thread_id() % WARP_LANES == 0)
        a.rstd[row] = rstd;
    EACH_EIGHT {
        NAME(load_eight)(a.x, at + (size_t)j, whole, a.width - j, x);
        UNROLL for (int k = 0; k < 8; k++) {
            x[k] = (x[k] - mean) * rstd;
            y[k] = j + k < a.width ? x[k] * a.gain[j + k] + a.bias[j + k] : 0;
        }
        NAME(store_eight)(a.xhat, at + (size_t)j, whole, a.width - j, x);
        NAME(store_eight)(a.y, at + (size_t)j, whole, a.width - j, y);
    }
}

/* With g = dy gain: dx += rstd (g - mean(g) - xhat mean(g xhat)). */
KERNEL(NAME(norm_backward), norm_args)
{
    const int row = block_x() * BLOCK_ROWS + thread_id() / WARP_LANES;
    const size_t at = (size_t)row * (size_t)a.width;
    const bool whole = a.width % 8 == 0 && is_aligned(a.x, a.y) && is_aligned(a.xhat, NULL);
    float g[8], xhat[8], dx[8], sum = 0, along = 0;

    if (row >= a.n)
        return;
    EACH_EIGHT {
        NAME(load_eight)(a.x, at + (size_t)j, whole, a.width - j, g);
        NAME(load_eight)(a.xhat, at + (size_t)j, whole, a.width - j, xhat);
        UNROLL for (int k = 0; k < 8; k++) {
            g[k] *= j + k < a.width ? a.gain[j + k] : 0;
            sum += g[k];
            along += g[k] * xhat[k];
        }
    }
    const float mean = warp_sum(sum) / (float)a.width;
    const float slope = warp_sum(along) / (float)a.width;
    const float rstd = a.rstd[row];
    EACH_EIGHT {
        NAME(load_eight)(a.x, at + (size_t)j, whole, a.width - j, g);
        NAME(load_eight)(a.xhat, at + (size_t)j, whole, a.width - j, xhat);
        NAME(load_eight)(a.y, at + (size_t)j, whole, a.width - j, dx);
        UNROLL for (int k = 0; k < 8; k++)
            dx[k] += rstd * (g[k] * (j + k < a.width ? a.gain[j + k] : 0) - mean - xhat[k] * slope);
        NAME(store_eight)(a.y, at + (size_t)j, whole, a.width - j, dx);
    }
}

#undef EACH_EIGHT
