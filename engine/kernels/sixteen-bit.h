// Products of quantized weights with activations in 16 bits, in AVX2: one instruction multiplies two weights of eight rows
// with two activations of a token. Processors without VNNI multiply eight bits no faster, as sums of two such products do
// not fit into 16.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "products.h"

namespace sixteen_bit {

constexpr int group    = 12;  // tokens whose activations are stored together
constexpr int tile_max = 6;   // tokens of a tile: each takes two of 16 registers

/** A block of a group of tokens. What is beyond the last token is not initialized. */
struct activations {
    float   d[group];
    float   sum[group];  // of all, for weights with a minimum
    int16_t q[group][block];
};

/** Numbers of 16 rows. */
struct floats {
    __m256 low, high;
};

inline floats widened_halves(const uint16_t * from) {
    return { _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)),
             _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (from + 8))) };
}

inline floats operator*(floats a, floats b) { return { _mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high) }; }

/** Pairs of weights of the 16 rows, each in 16 bits. */
struct pairs {
    __m256i low, high;
};

/** Bytes that are read ahead of those in use, into the second cache: the processor itself stops at each page. */
constexpr int64_t ahead = 8192;

/** Asks for what is `ahead` of these bytes, unless it is beyond `end`. */
template <size_t Bytes> inline void prefetch(const void * bytes, const void * end) {
    const char * from = (const char *) bytes + ahead;
    if (from >= end) return;
    for (size_t at = 0; at < Bytes; at += 64) _mm_prefetch(from + at, _MM_HINT_T1);
}

/**
 * 16 rows with `N` tokens of a group, from its token `first` on. `W` is 16 rows of a block of the file, of `W::blocks` times
 * 32 weights. A block of 32 has `W::parts` parts, each with scales. The order of a sum does not depend on `N`.
 */
template <typename W, int N>
void tile(const W * w, const void * end, const activations * x, int first, int64_t blocks, float * const * out, int64_t at) {
    __m256 sum[N][2];
    for (int t = 0; t < N; t++) sum[t][0] = sum[t][1] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, w++) {
        prefetch<sizeof(W)>(w, end);
        const typename W::scales scales(*w);
        for (int s = 0; s < W::blocks; s++, x++) {
            const int16_t(*q)[block] = x->q + first;
            for (int part = 0; part < W::parts; part++) {
                __m256i integers[N][2];
                for (int t = 0; t < N; t++) integers[t][0] = integers[t][1] = _mm256_setzero_si256();
                constexpr int quarters = 4 / W::parts;  // of eight weights
#pragma GCC unroll 4
                for (int i = 0; i < quarters; i++) {
                    const int                    quarter = part * quarters + i;
                    const typename W::eight_pairs eight(*w, s, quarter);
#pragma GCC unroll 4
                    for (int k = 0; k < 4; k++) {
                        const pairs weights = eight.at(k);
#pragma GCC unroll 6
                        for (int t = 0; t < N; t++) {
                            int32_t two;
                            memcpy(&two, q[t] + 8 * quarter + 2 * k, 4);
                            const __m256i both = _mm256_set1_epi32(two);
                            integers[t][0] = _mm256_add_epi32(integers[t][0], _mm256_madd_epi16(weights.low, both));
                            integers[t][1] = _mm256_add_epi32(integers[t][1], _mm256_madd_epi16(weights.high, both));
                        }
                    }
                }
                const floats d = scales.at(*w, s, part);
#pragma GCC unroll 6
                for (int t = 0; t < N; t++) {
                    const __m256 one = _mm256_set1_ps(x->d[first + t]);
                    sum[t][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers[t][0]), _mm256_mul_ps(d.low, one), sum[t][0]);
                    sum[t][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers[t][1]), _mm256_mul_ps(d.high, one), sum[t][1]);
                }
            }
            if constexpr (W::has_minimum) {
                const floats m = scales.minimum(*w, s);
                for (int t = 0; t < N; t++) {
                    const __m256 one = _mm256_set1_ps(x->sum[first + t]);
                    sum[t][0]        = _mm256_fnmadd_ps(m.low, one, sum[t][0]);
                    sum[t][1]        = _mm256_fnmadd_ps(m.high, one, sum[t][1]);
                }
            }
        }
    }
    for (int t = 0; t < N; t++) {
        _mm256_storeu_ps(out[t] + at, sum[t][0]);
        _mm256_storeu_ps(out[t] + at + 8, sum[t][1]);
    }
}

template <typename W> void multiply(const product_rows & work) {
    static constexpr decltype(&tile<W, 1>) tiles[tile_max] = { tile<W, 1>, tile<W, 2>, tile<W, 3>,
                                                               tile<W, 4>, tile<W, 5>, tile<W, 6> };
    const int64_t blocks = work.blocks / W::blocks;
    const auto *  begin = (const W *) work.weights, *end = begin + work.count * blocks;
    const auto *  x     = (const activations *) work.x;
    for (int64_t g = 0; g < work.count; g++)
        for (int64_t t = 0; t < work.tokens;) {
            // Equal tiles, as a small last one reads all weights again for little.
            const int left = (int) std::min<int64_t>(group - t % group, work.tokens - t);
            const int n    = left > tile_max ? (left + 1) / 2 : left;
            tiles[n - 1](begin + g * blocks, end, x + t / group * work.blocks, (int) (t % group), blocks, work.out + t,
                         work.at + g * rows);
            t += n;
        }
}

int64_t no_outliers(int64_t blocks);
/** Rounds the activations of token `t` of a group by block. None is an outlier: each has 16 bits. */
int32_t round(const float * x, void * out, int t, int64_t blocks, outlier *);

/** The format of weights of a type of ggml that are stored as `W`. */
template <typename W> constexpr weight_format format_of(int type) {
    return { type,  block * W::blocks, sizeof(W),   group,          sizeof(activations), no_outliers,
             round, multiply<W>,       W::interleave };
}

}  // namespace sixteen_bit
