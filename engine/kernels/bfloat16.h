// Matrix products in bfloat16 on x64 processors with AVX-512: weights of the engine (bfloat16.cpp), and of what reads
// pictures (scripts/setup/vision/bf16.cpp). A token's sums are added up in one order, whatever is computed beside it.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512bf16")

namespace bfloat16 {

// A packed matrix [inputs, outputs] is a panel of each 16 outputs: for each 2 inputs, those of the first output, of the
// second, and so on. That is what the instruction reads.
constexpr int panel_outputs = 16;
constexpr int block_rows = 12;
// Rows that are multiplied together: they stay in the cache beside a panel.
constexpr int chunk_rows = 20 * block_rows;
// Bytes of weights that are read ahead of those in use where few rows wait for memory: a processor stops at each page.
constexpr int64_t ahead = 8192;
constexpr int waiting_rows = 4;

/** Rows of numbers, or panels: the first, and the numbers from one to the next. */
template <typename T> struct Rows {
    T * first;
    size_t stride;
    T * at(int row) const { return first + row * stride; }
};

/** The place of a weight in its panel. */
inline size_t place_of(int input, int output) {
    return (size_t) (input / 2 * 2 * panel_outputs + output % panel_outputs * 2 + input % 2);
}

/** With the instructions for bfloat16. */
struct Native {
    static __m256i round(__m512 numbers) { return (__m256i) _mm512_cvtneps_pbh(numbers); }
    static __m512 add(__m512 sum, __m512i one, __m512i two) {
        return _mm512_dpbf16_ps(sum, (__m512bh) one, (__m512bh) two);
    }
};

/** For processors without them. */
struct Widened {
    static __m256i round(__m512 numbers) {
        const __m512i bits = _mm512_castps_si512(numbers);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        const __mmask16 is_nan = _mm512_cmp_ps_mask(numbers, numbers, _CMP_UNORD_Q);
        const __m512i rounded = _mm512_mask_mov_epi32(up, is_nan, _mm512_set1_epi32(0x7fc00000));
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
    }
    static __m512 high(__m512i pairs) {
        return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int) 0xffff0000)));
    }
    static __m512 low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
    static __m512 add(__m512 sum, __m512i one, __m512i two) {
        return _mm512_fmadd_ps(low(one), low(two), _mm512_fmadd_ps(high(one), high(two), sum));
    }
};

/** Rounds a row of `count` numbers to bfloat16, and fills up to `padded`, a multiple of 16, with zeros. */
template <typename By> void round_row(const float * from, int count, int padded, uint16_t * to) {
    for (int i = 0; i < padded; i += 16) {
        const int left = std::max(0, std::min(16, count - i));
        const __m256i rounded = By::round(_mm512_maskz_loadu_ps((__mmask16) ((1u << left) - 1), from + i));
        _mm256_storeu_si256((__m256i *) (to + i), rounded);
    }
}

/** R rows of `a` times `pairs` pairs of inputs in P panels, into `c`. Unrolled, so that the sums are in registers. */
template <typename By, int R, int P>
void multiply(Rows<const uint16_t> a, Rows<const uint16_t> panels, int pairs, Rows<float> c) {
    __m512 sums[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) sums[r][p] = _mm512_setzero_ps();
    for (int k = 0; k < pairs; ++k) {
        __m512i weights[P];
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
            const uint16_t * at = panels.at(p) + k * 2 * panel_outputs;
            weights[p] = _mm512_loadu_si512(at);
            if (R <= waiting_rows) _mm_prefetch((const char *) at + ahead, _MM_HINT_T1);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            int32_t pair;
            memcpy(&pair, a.at(r) + 2 * k, sizeof(pair));
            const __m512i both = _mm512_set1_epi32(pair);
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) sums[r][p] = By::add(sums[r][p], both, weights[p]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) _mm512_storeu_ps(c.at(r) + p * panel_outputs, sums[r][p]);
}

/** The same for up to R rows and 1 or 2 panels. */
template <typename By, int R>
void multiply_some(int rows, int count, Rows<const uint16_t> a, Rows<const uint16_t> panels, int pairs, Rows<float> c) {
    if constexpr (R > 0) {
        if (rows < R) return multiply_some<By, R - 1>(rows, count, a, panels, pairs, c);
        if (count == 1) return multiply<By, R, 1>(a, panels, pairs, c);
        multiply<By, R, 2>(a, panels, pairs, c);
    }
}

/** `rows` rows of `a` times `count` panels, into `c`. Two panels at a time stay in the cache for all rows. */
template <typename By>
void product(int rows, int count, Rows<const uint16_t> a, Rows<const uint16_t> panels, int pairs, Rows<float> c) {
    // Equal blocks, as a small last one reads all weights again for little.
    const int blocks = (rows + block_rows - 1) / block_rows;
    for (int panel = 0; panel < count; panel += 2)
        for (int block = 0; block < blocks; ++block) {
            const int row = rows * block / blocks, end = rows * (block + 1) / blocks;
            multiply_some<By, block_rows>(end - row, std::min(2, count - panel), {a.at(row), a.stride},
                                          {panels.at(panel), panels.stride}, pairs,
                                          {c.at(row) + panel * panel_outputs, c.stride});
        }
}

} // namespace bfloat16

#pragma GCC pop_options
