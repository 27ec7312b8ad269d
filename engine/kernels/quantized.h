// What the two ways to multiply with quantized weights in AVX-512 share: VNNI (quantized-vnni.cpp) and AMX
// (quantized-amx.cpp). Both give the same numbers to the bit: sums of a block are exact integers, scaled and added up
// in the same order.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>

#include "weight-types.h"

#ifdef KERNELS_AVX512

constexpr int group = 16;  // tokens whose activations are stored together

/** A block of 16 tokens, for weights of type `T`. What is beyond the last token is not initialized. */
template <class T> struct activations16 {
    float d[group];
    /** What a minimum is multiplied with: the sum. Or what makes up for `zero`: minus `zero` times the sum of q. */
    std::conditional_t<T::has_minimum, float, int32_t> correction[T::parts][group];
    int8_t                                             q[group][block];
};

/** Bytes that are read ahead of those in use, into the second cache: the processor itself stops at each page. */
constexpr int64_t ahead = 8192;

/** Asks for `bytes` from `from` on, unless they are beyond `end`. */
template <int64_t bytes> void prefetch(const char * from, const void * end) {
    if (from >= end) return;
    for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(from + at, _MM_HINT_T1);
}

/** Whether this processor and its kernel let the process use AMX. Asks for the permission. */
bool can_use_amx();

/** `product_rows` with weights of type `T`. */
template <class T> void multiply_amx(const product_rows & work);

/**
 * The outliers of all tokens of some rows: of each 16 tokens the first one of each, then the second ones. A result that
 * is read soon after it was written makes the processor wait.
 */
class outlier_list {
    std::vector<outlier> & all;

    /** Memory that a thread uses again. */
    static std::vector<outlier> & memory() {
        static thread_local std::vector<outlier> one;
        return one;
    }

  public:
    explicit outlier_list(const product_rows & work) : all(memory()) {
        all.clear();
        for (int64_t first = 0; first < work.tokens; first += group) {
            const int64_t end = std::min(first + group, work.tokens);
            for (int64_t i = 0, before = -1; before < (int64_t) all.size(); i++) {
                before = (int64_t) all.size();
                for (int64_t t = first; t < end; t++)
                    if (work.outliers_of[t] > i) all.push_back(work.outliers[t * work.most + i]);
            }
        }
    }

    /** Adds them to the products with `count` times 16 rows from place `at` on. `w`: the first of these. */
    template <class T> void add(const T * w, int64_t count, int64_t blocks, int64_t at) const {
        constexpr int per = T::length / block;
        for (const outlier & one : all)
            for (int64_t g = 0; g < count; g++) {
                const T & from = w[(g * blocks + one.block) / per];
                const int j    = one.block % per;
                add<T>(one, from.numbers(j, one.four), from.scale(j, one.four), from.minimum(j),
                       one.out + at + g * rows);
            }
    }

    const std::vector<outlier> & list() const { return all; }

    /** Adds one to 16 results, with the numbers and scales of its place. */
    template <class T> static void add(const outlier & one, __m512i numbers, __m512 d, __m512 minimum, float * to) {
        const __m512i high  = _mm512_dpbusd_epi32(_mm512_setzero_si512(), numbers, _mm512_set1_epi32(one.high));
        const __m512i zero  = _mm512_set1_epi32(-T::zero * one.sum);
        const __m512i low   = _mm512_dpbusd_epi32(zero, numbers, _mm512_set1_epi32(one.low));
        const __m512  exact = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
        __m512        sum   = _mm512_loadu_ps(to);
        sum                 = _mm512_fmadd_ps(exact, _mm512_mul_ps(d, _mm512_set1_ps(one.d)), sum);
        if (T::has_minimum) sum = _mm512_fmadd_ps(minimum, _mm512_set1_ps(one.d * (float) one.sum), sum);
        _mm512_storeu_ps(to, sum);
    }
};

#endif
