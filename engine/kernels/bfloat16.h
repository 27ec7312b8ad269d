// Matrix products in bfloat16 on x64 processors: weights of the engine (bfloat16.cpp), and of what reads pictures
// (scripts/setup/vision/bf16.cpp). A token's sums are added up in one order, whatever is computed beside it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lanes.h"

#pragma GCC push_options
#ifdef KERNELS_AVX512
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")
#endif

namespace bfloat16 {

// A packed matrix [inputs, outputs] is a panel of each 16 outputs: for each 2 inputs, those of the first output, of the
// second, and so on. That is what the instruction reads.
constexpr int panel_outputs = 16;
// A tile has up to so many rows of one panel, or of two if its sums are no more than `sums_max`: they are in registers.
constexpr int block_rows = width == 16 ? 12 : 6;
constexpr int sums_max = width == 16 ? 24 : 4;
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

#ifdef KERNELS_AVX512
/** With the instructions for bfloat16. Activations are rounded, as ggml rounds them. */
struct Native {
    using activation = uint16_t;
    static constexpr int steps = 1;

    /** The first `left` of 16 numbers, and zeros. */
    static void round(const float * from, int left, uint16_t * to) {
        _mm256_storeu_si256((__m256i *) to, (__m256i) _mm512_cvtneps_pbh(load_some(from, left)));
    }
    static __m512i weights(const uint16_t * pairs, int) { return _mm512_loadu_si512(pairs); }
    static __m512i both(const uint16_t * pair, int) {
        int32_t two;
        memcpy(&two, pair, sizeof(two));
        return _mm512_set1_epi32(two);
    }
    static lanes add(__m512i one, __m512i two, lanes sum) {
        return _mm512_dpbf16_ps(sum, (__m512bh) one, (__m512bh) two);
    }
};
#endif

/** For processors without them: weights are widened. Activations stay as they are, which costs nothing. */
struct Widened {
    using activation = float;
    /** The second weights of all pairs, then the first. */
    static constexpr int steps = 2;

    static void  round(const float * from, int left, float * to) { store(to, load_some(from, left)); }
    static lanes weights(const uint16_t * pairs, int step) {
        return step == 0 ? widen_second(pairs) : widen_first(pairs);
    }
    static lanes both(const float * pair, int step) { return all(pair[1 - step]); }
    static lanes add(lanes one, lanes two, lanes sum) { return multiply_add(one, two, sum); }
};

/** Brings a row of `count` numbers into the form that is multiplied, and fills up to `padded` (16n) with zeros. */
template <typename By> void round_row(const float * from, int count, int padded, typename By::activation * to) {
    for (int i = 0; i < padded; i += 16) By::round(from + i, std::max(0, std::min(16, count - i)), to + i);
}

/** R rows of `a` times `pairs` pairs of inputs in P panels, into `c`. Unrolled, so that the sums are in registers. */
template <typename By, int R, int P>
void multiply(Rows<const typename By::activation> a, Rows<const uint16_t> panels, int pairs, Rows<float> c) {
    lanes sums[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) sums[r][p] = all(0);
    for (int k = 0; k < pairs; ++k)
#pragma GCC unroll 2
        for (int step = 0; step < By::steps; ++step) {
            decltype(By::weights(nullptr, 0)) weights[P];
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
                const uint16_t * at = panels.at(p) + k * 2 * panel_outputs;
                weights[p] = By::weights(at, step);
                if (R <= waiting_rows && step == 0) __builtin_prefetch((const char *) at + ahead, 0, 2);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const auto both = By::both(a.at(r) + 2 * k, step);
#pragma GCC unroll 2
                for (int p = 0; p < P; ++p) sums[r][p] = By::add(both, weights[p], sums[r][p]);
            }
        }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) store(c.at(r) + p * panel_outputs, sums[r][p]);
}

/** The same for up to R rows and 1 or 2 panels. */
template <typename By, int R>
void multiply_some(int rows, int count, Rows<const typename By::activation> a, Rows<const uint16_t> panels, int pairs,
                   Rows<float> c) {
    if constexpr (R > 0) {
        if (rows < R) return multiply_some<By, R - 1>(rows, count, a, panels, pairs, c);
        if constexpr (2 * R <= sums_max)
            if (count == 2) return multiply<By, R, 2>(a, panels, pairs, c);
        for (int p = 0; p < count; ++p)
            multiply<By, R, 1>(a, {panels.at(p), panels.stride}, pairs, {c.first + p * panel_outputs, c.stride});
    }
}

/** `rows` rows of `a` times `count` panels, into `c`. Two panels at a time stay in the cache for all rows. */
template <typename By>
void product(int rows, int count, Rows<const typename By::activation> a, Rows<const uint16_t> panels, int pairs,
             Rows<float> c) {
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
