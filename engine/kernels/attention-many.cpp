// Attention of 32 rows: a vector has rows, not numbers of a key, so that nothing is added up across its lanes. The
// order of all sums is that of attention.cpp.
#include "attention.h"

namespace {

constexpr int groups = rows_many / 16;
// The tile of products: these keys with vectors of rows.
constexpr int tile_keys = width == 16 ? 2 : 4, tile_vectors = width == 16 ? 2 : 1;
// Fours of lanes of a vector.
constexpr int fours = width / 4;

/** Rows become columns: `to[d][row]`. */
template <int D> void transpose_queries(const float * const * q, float (*to)[rows_many]) {
    for (int g = 0; g < groups; g++)
        for (int at = 0; at < D; at += 16) {
            lanes columns[16];
            for (int r = 0; r < 16; r++) columns[r] = load(q[16 * g + r] + at);
            transpose(columns);
            for (int d = 0; d < 16; d++) store(to[at + d] + 16 * g, columns[d]);
        }
}

/** A row of the cache in 32 bits; zeros for one that nobody sees, as it may never have been written. */
template <int D, typename Rows> void widen_row(const char * from, bool is_seen, float * to) {
    for (int i = 0; i < D; i += 16) store(to + i, is_seen ? Rows::load(from, i) : all(0));
}

/**
 * Products of some rows with some keys. The order of a sum: lanes of their own, as many as a vector has, then these as
 * `sums_of` adds them up.
 */
template <int D>
#ifndef KERNELS_AVX512
__attribute__((noinline))  // or GCC keeps each number of the keys, in all lanes, for the next rows: on the stack
#endif
void multiply_tile(const float (*q)[rows_many], int row, const float (*k)[D], float (*out)[rows_many]) {
    constexpr int J = tile_keys, N = tile_vectors;
    vector        sums[fours][J][N];
#pragma GCC unroll 4
    for (int l = 0; l < fours; l++) {
        vector pairs[2][J][N];
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            vector sum[2][J][N];
#pragma GCC unroll 8
            for (int i = 0; i < D / width; i++)
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                    const int d = width * i + 4 * l + c + 2 * h;
                    vector    one[J];
#pragma GCC unroll 4
                    for (int j = 0; j < J; j++) one[j] = all_vector(k[j][d]);
#pragma GCC unroll 2
                    for (int n = 0; n < N; n++) {
                        const vector rows = load_vector(q[d] + row + width * n);
#pragma GCC unroll 4
                        for (int j = 0; j < J; j++)
                            sum[h][j][n] = i == 0 ? multiply(one[j], rows) : multiply_add(one[j], rows, sum[h][j][n]);
                    }
                }
#pragma GCC unroll 4
            for (int j = 0; j < J; j++)
#pragma GCC unroll 2
                for (int n = 0; n < N; n++) pairs[c][j][n] = add(sum[0][j][n], sum[1][j][n]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < J; j++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) sums[l][j][n] = add(pairs[0][j][n], pairs[1][j][n]);
    }
#pragma GCC unroll 2
    for (int distance = 1; distance < fours; distance *= 2)
        for (int l = 0; l < fours; l += 2 * distance)
            for (int j = 0; j < J; j++)
                for (int n = 0; n < N; n++) sums[l][j][n] = add(sums[l][j][n], sums[l + distance][j][n]);
    for (int j = 0; j < J; j++)
        for (int n = 0; n < N; n++) store(out[j] + row + width * n, sums[0][j][n]);
}

/** The sum of 16 numbers of each row, in the order of `reduce_add`. */
lanes sum_of(lanes * w) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) w[i] = add(w[i], w[i + half]);
    return w[0];
}

template <int D, typename Rows>
void attend(const view & cache, const float * const * q, const uint16_t * const * mask, int64_t begin, int64_t end,
            partial & out) {
    // Rows whose sums of values are in registers, and 16 numbers of each.
    constexpr int V = D / 16, R = width == 16 && V > 4 && V <= 8 ? 2 : 4, S = slices_for(D, R);
    alignas(64) float queries[D][rows_many], key[keys][D], value[keys][D], weight[keys][rows_many], shrink[rows_many];
    alignas(64) float scores[keys][rows_many];
    const lanes       lowest = all(-INFINITY);
    lanes             max[groups], total[groups];
    transpose_queries<D>(q, queries);
    for (int g = 0; g < groups; g++) {
        max[g]   = lowest;
        total[g] = all(0);
    }
    std::fill(out.values(), out.values() + rows_many * D, 0.0f);
    for (int64_t at = begin; at < end; at += keys) {
        const int count = (int) std::min(keys, end - at);
        unsigned  seen = 0, masked = 0;
        for (int r = 0; r < rows_many; r++) {
            const halves m = mask[r] ? load_halves(mask[r] + at, count) : zero_halves();
            seen |= bits_unequal(m, 0xfc00, count);
            masked |= bits_unequal(m, 0, count);
        }
        if (!seen) continue;
        for (int j = 0; j < keys; j++) {
            const bool is_seen = seen >> j & 1;
            widen_row<D, Rows>(cache.k + (at + j) * cache.k_stride, is_seen, key[j]);
            widen_row<D, Rows>(cache.v + (at + j) * cache.v_stride, is_seen, value[j]);
        }
        for (int j = 0; j < keys; j += tile_keys)
            for (int row = 0; row < rows_many; row += tile_vectors * width)
                multiply_tile<D>(queries, row, key + j, scores + j);
        for (int g = 0; g < groups; g++) {
            lanes biases[keys];
            for (int r = 0; r < 16; r++) {
                const uint16_t * row = mask[16 * g + r];
                biases[r]            = masked && row ? widen(load_halves(row + at, count)) : all(0);
            }
            if (masked) transpose(biases);
            lanes top = max[g], score[keys];
            for (int j = 0; j < keys; j++) {
                score[j] = multiply_add(load(scores[j] + 16 * g), all(cache.scale), biases[j]);
                if (j >= count) score[j] = lowest;
                top = maximum(top, score[j]);
            }
            const lane_mask any = is_unequal(top, lowest), before = is_unequal(max[g], lowest);
            const lanes     less = select(before, exp_of(subtract(max[g], top)));
            lanes           weights[keys];
            for (int j = 0; j < keys; j++) {
                weights[j] = select(any, exp_of(subtract(score[j], top)));
                store(weight[j] + 16 * g, weights[j]);
            }
            store(shrink + 16 * g, less);
            total[g] = add(multiply(total[g], less), sum_of(weights));
            max[g]   = top;
        }
        for (int from = 0; from < rows_many; from += R)
            for (int s = 0; s < V; s += S) {
                float * sums = out.values() + from * D + 16 * s;
                lanes   sum[R][S];
#pragma GCC unroll 4
                for (int r = 0; r < R; r++)
#pragma GCC unroll 8
                    for (int i = 0; i < S; i++)
                        sum[r][i] = multiply(load(sums + r * D + 16 * i), all(shrink[from + r]));
                for (int j = 0; j < count; j++)
#pragma GCC unroll 8
                    for (int i = 0; i < S; i++) {
                        const lanes v = load(value[j] + 16 * (s + i));
#pragma GCC unroll 4
                        for (int r = 0; r < R; r++)
                            sum[r][i] = multiply_add(v, all(weight[j][from + r]), sum[r][i]);
                    }
#pragma GCC unroll 4
                for (int r = 0; r < R; r++)
#pragma GCC unroll 8
                    for (int i = 0; i < S; i++) store(sums + r * D + 16 * i, sum[r][i]);
            }
    }
    for (int g = 0; g < groups; g++) {
        store(out.max + 16 * g, max[g]);
        store(out.weights + 16 * g, total[g]);
    }
}

template <typename Rows> attend_function attend_for(int64_t length) {
    switch (length) {
        case 64: return attend<64, Rows>;
        case 80: return Rows::block == 1 ? attend<80, half_rows> : nullptr;
        case 96: return attend<96, Rows>;
        case 128: return attend<128, Rows>;
        case 192: return attend<192, Rows>;
        case 256: return attend<256, Rows>;
        default: return nullptr;
    }
}

}  // namespace

attend_function attend_many_for(int64_t length, int type) {
    return type == ggml_type_q8_0 ? attend_for<eight_bit_cache_rows>(length) : attend_for<half_rows>(length);
}
