// Attention of 32 rows: a vector has 16 rows, not 16 numbers of a key, so that nothing is added up across its lanes.
// The order of all sums is that of attention.cpp.
#ifdef KERNELS_AVX512
#include "attention.h"

#include "lanes.h"

namespace {

constexpr int vectors = rows_many / 16;

/** Rows become columns: `to[d][row]`. */
template <int D> void transpose_queries(const float * const * q, float (*to)[rows_many]) {
    for (int v = 0; v < vectors; v++)
        for (int at = 0; at < D; at += 16) {
            __m512 columns[16];
            for (int r = 0; r < 16; r++) columns[r] = _mm512_loadu_ps(q[16 * v + r] + at);
            transpose(columns);
            for (int d = 0; d < 16; d++) _mm512_store_ps(to[at + d] + 16 * v, columns[d]);
        }
}

/** A row of the cache in 32 bits; zeros for one that nobody sees, as it may never have been written. */
template <int D> void widen(const char * from, bool is_seen, float * to) {
    for (int i = 0; i < D; i += 16)
        _mm512_store_ps(to + i, is_seen ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (from + 2 * i))) :
                                          _mm512_setzero_ps());
}

/** Products of all rows with two keys. The order of a sum: 16 lanes of their own, then these by halves (`sums_of`). */
template <int D>
void multiply(const float (*q)[rows_many], const float * k0, const float * k1, __m512 (*out)[vectors]) {
    __m512 lanes[4][2][vectors];
#pragma GCC unroll 4
    for (int l = 0; l < 4; l++) {
        __m512 pairs[2][2][vectors];
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            __m512 sum[2][2][vectors];
#pragma GCC unroll 8
            for (int i = 0; i < D / 16; i++)
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                    const int    d   = 16 * i + 4 * l + c + 2 * h;
                    const __m512 one = _mm512_set1_ps(k0[d]), two = _mm512_set1_ps(k1[d]);
#pragma GCC unroll 2
                    for (int v = 0; v < vectors; v++) {
                        const __m512 row = _mm512_load_ps(q[d] + 16 * v);
                        sum[h][0][v]     = i == 0 ? _mm512_mul_ps(one, row) : _mm512_fmadd_ps(one, row, sum[h][0][v]);
                        sum[h][1][v]     = i == 0 ? _mm512_mul_ps(two, row) : _mm512_fmadd_ps(two, row, sum[h][1][v]);
                    }
                }
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) pairs[c][j][v] = _mm512_add_ps(sum[0][j][v], sum[1][j][v]);
        }
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) lanes[l][j][v] = _mm512_add_ps(pairs[0][j][v], pairs[1][j][v]);
    }
    for (int j = 0; j < 2; j++)
        for (int v = 0; v < vectors; v++)
            out[j][v] = _mm512_add_ps(_mm512_add_ps(lanes[0][j][v], lanes[1][j][v]),
                                      _mm512_add_ps(lanes[2][j][v], lanes[3][j][v]));
}

/** The sum of 16 vectors, in the order in which the compiler's `_mm512_reduce_add_ps` adds up lanes. */
__m512 sum_of(__m512 * w) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) w[i] = _mm512_add_ps(w[i], w[i + half]);
    return w[0];
}

template <int D>
void attend(const view & cache, const float * const * q, const uint16_t * const * mask, int64_t begin, int64_t end,
            partial & out) {
    constexpr int V = D / 16, R = V <= 4 ? 4 : 2;  // rows whose sums of values are in registers
    alignas(64) float queries[D][rows_many], key[keys][D], value[keys][D], weight[keys][rows_many], shrink[rows_many];
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512       max[vectors], total[vectors];
    transpose_queries<D>(q, queries);
    for (int v = 0; v < vectors; v++) {
        max[v]   = lowest;
        total[v] = _mm512_setzero_ps();
    }
    std::fill(out.values, out.values + rows_many * D, 0.0f);
    for (int64_t at = begin; at < end; at += keys) {
        const int       count = (int) std::min(keys, end - at);
        const __mmask16 here  = (__mmask16) ((1u << count) - 1);
        __mmask16       seen = 0, masked = 0;
        for (int r = 0; r < rows_many; r++) {
            const __m256i m = mask[r] ? _mm256_maskz_loadu_epi16(here, mask[r] + at) : _mm256_setzero_si256();
            seen |= _mm256_mask_cmpneq_epu16_mask(here, m, _mm256_set1_epi16((short) 0xfc00));
            masked |= _mm256_mask_cmpneq_epu16_mask(here, m, _mm256_setzero_si256());
        }
        if (!seen) continue;
        for (int j = 0; j < keys; j++) {
            const bool is_seen = seen >> j & 1;
            widen<D>(cache.k + (at + j) * cache.k_stride, is_seen, key[j]);
            widen<D>(cache.v + (at + j) * cache.v_stride, is_seen, value[j]);
        }
        __m512 scores[keys][vectors];
        for (int j = 0; j < keys; j += 2) multiply<D>(queries, key[j], key[j + 1], scores + j);
        for (int v = 0; v < vectors; v++) {
            __m512 biases[keys];
            for (int r = 0; r < 16; r++) {
                const uint16_t * row = mask[16 * v + r];
                biases[r] =
                    masked && row ? _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(here, row + at)) : _mm512_setzero_ps();
            }
            if (masked) transpose(biases);
            __m512 top = max[v];
            for (int j = 0; j < keys; j++) {
                const __m512 score = _mm512_fmadd_ps(scores[j][v], _mm512_set1_ps(cache.scale), biases[j]);
                scores[j][v]       = j < count ? score : lowest;
                top                = _mm512_max_ps(top, scores[j][v]);
            }
            const __mmask16 any    = _mm512_cmp_ps_mask(top, lowest, _CMP_NEQ_OQ);
            const __mmask16 before = _mm512_cmp_ps_mask(max[v], lowest, _CMP_NEQ_OQ);
            const __m512    less   = _mm512_maskz_mov_ps(before, exp_of(_mm512_sub_ps(max[v], top)));
            __m512          weights[keys];
            for (int j = 0; j < keys; j++) {
                weights[j] = _mm512_maskz_mov_ps(any, exp_of(_mm512_sub_ps(scores[j][v], top)));
                _mm512_store_ps(weight[j] + 16 * v, weights[j]);
            }
            _mm512_store_ps(shrink + 16 * v, less);
            total[v] = _mm512_add_ps(_mm512_mul_ps(total[v], less), sum_of(weights));
            max[v]   = top;
        }
        for (int from = 0; from < rows_many; from += R) {
            float * sums = out.values + from * D;
            __m512  sum[R][V];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
#pragma GCC unroll 8
                for (int i = 0; i < V; i++)
                    sum[r][i] = _mm512_mul_ps(_mm512_loadu_ps(sums + r * D + 16 * i), _mm512_set1_ps(shrink[from + r]));
            for (int j = 0; j < count; j++)
#pragma GCC unroll 8
                for (int i = 0; i < V; i++) {
                    const __m512 v = _mm512_load_ps(value[j] + 16 * i);
#pragma GCC unroll 4
                    for (int r = 0; r < R; r++)
                        sum[r][i] = _mm512_fmadd_ps(v, _mm512_set1_ps(weight[j][from + r]), sum[r][i]);
                }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
#pragma GCC unroll 8
                for (int i = 0; i < V; i++) _mm512_storeu_ps(sums + r * D + 16 * i, sum[r][i]);
        }
    }
    for (int v = 0; v < vectors; v++) {
        _mm512_storeu_ps(out.max + 16 * v, max[v]);
        _mm512_storeu_ps(out.weights + 16 * v, total[v]);
    }
}

}  // namespace

attend_many_function attend_many_for(int64_t length) {
    switch (length) {
        case 64: return attend<64>;
        case 80: return attend<80>;
        case 96: return attend<96>;
        case 128: return attend<128>;
        default: return nullptr;
    }
}
#endif
