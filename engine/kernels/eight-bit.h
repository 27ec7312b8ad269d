// What the two ways to multiply with Q8_0 weights in AVX-512 share: VNNI (eight-bit-vnni.cpp) and AMX
// (eight-bit-amx.cpp). Both give the same numbers to the bit: sums of a block are exact integers, scaled and added up
// in the same order.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "products.h"

#ifdef KERNELS_AVX512

constexpr int group = 16;  // tokens whose activations are stored together

/** A block of 16 rows: their scales, then four weights of each row, row after row, eight times. */
struct weights16 {
    uint16_t d[rows];
    uint8_t  q[block * rows];  // plus 128, as VNNI takes one unsigned factor
};

/** A block of 16 tokens. What is beyond the last token is not initialized. */
struct activations16 {
    float   d[group];
    int32_t correction[group];  // minus 128 times the sum of q
    int8_t  q[group][block];
};

/** Bytes that are read ahead of those in use, into the second cache: the processor itself stops at each page. */
constexpr int64_t ahead = 8192;

/** Asks for the part of `weights` that is `ahead` of this block, unless it is beyond `end`. */
inline void prefetch(const weights16 * weights, const void * end) {
    const char * from = (const char *) weights + ahead;
    if (from >= end) return;
    for (int64_t at = 0; at < (int64_t) sizeof(weights16); at += 64) _mm_prefetch(from + at, _MM_HINT_T1);
}

/** Whether this processor and its kernel let the process use AMX. Asks for the permission. */
bool can_use_amx();

/** `product_rows` in these types. */
struct eight_bit_rows {
    const weights16 * weights;  // of the first rows
    int64_t           blocks;   // of a row
    int64_t           count;    // times 16 rows
    const activations16 * x;    // of the first 16 tokens; those of the next ones follow, block after block
    int64_t               tokens;
    float * const * out;  // where each token's results are
    int64_t         at;   // the place of the first row there
    const int32_t * outliers_of;  // how many outliers each token has
    const outlier * outliers;     // those of the first token; those of the next one are `most` further
    int64_t         most;

    explicit eight_bit_rows(const product_rows & work) :
        weights((const weights16 *) work.weights),
        blocks(work.blocks),
        count(work.count),
        x((const activations16 *) work.x),
        tokens(work.tokens),
        out(work.out),
        at(work.at),
        outliers_of(work.outliers_of),
        outliers(work.outliers),
        most(work.most) {}
};

/**
 * The outliers of all tokens of some rows: of each 16 tokens the first one of each, then the second ones. A result that
 * is read soon after it was written makes the processor wait.
 */
class outlier_list {
    const eight_bit_rows & work;
    std::vector<outlier> & all;

    /** Memory that a thread uses again. */
    static std::vector<outlier> & memory() {
        static thread_local std::vector<outlier> one;
        return one;
    }

  public:
    explicit outlier_list(const eight_bit_rows & work) : work(work), all(memory()) {
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

    /** Adds them to the products with `count` times 16 rows from `first` on. */
    void add(int64_t first, int64_t count) const {
        const weights16 * w  = work.weights + first * work.blocks;
        const int64_t     at = work.at + first * rows;
        for (const outlier & one : all) {
            const __m512i high_four  = _mm512_set1_epi32(one.high), low_four = _mm512_set1_epi32(one.low);
            const __m512i correction = _mm512_set1_epi32(one.correction);
            const __m512  scale      = _mm512_set1_ps(one.d);
            float *       to         = one.out + at;
            for (const weights16 *from = w + one.block, *end = from + count * work.blocks; from < end;
                 from += work.blocks, to += rows) {
                const __m512i weights = _mm512_loadu_si512(from->q + 64 * one.four);
                const __m512i high    = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, high_four);
                const __m512i low     = _mm512_dpbusd_epi32(correction, weights, low_four);
                const __m512  exact   = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
                const __m512  d       = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from->d));
                _mm512_storeu_ps(to, _mm512_fmadd_ps(exact, _mm512_mul_ps(d, scale), _mm512_loadu_ps(to)));
            }
        }
    }
};

void multiply_amx(const eight_bit_rows & work);

#endif
