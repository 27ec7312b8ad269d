// What the two ways to multiply with Q8_0 weights share: AVX-512 VNNI (eight-bit.cpp) and AMX (eight-bit-amx.cpp). Both
// give the same numbers to the bit: sums of a block are exact integers, scaled and added up in the same order.
#pragma once
#include <immintrin.h>

#include "kernels.h"

constexpr int64_t block = 32;  // weights with one scale
constexpr int64_t rows  = 16;  // rows that are interleaved
constexpr int     group = 16;  // tokens whose activations are stored together

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

/** Products of some rows of a matrix with its tokens, by one thread. */
struct eight_bit_rows {
    const weights16 * weights;  // of the first rows
    int64_t           blocks;   // of a row
    int64_t           count;    // times 16 rows
    const activations16 * x;    // of the first 16 tokens; those of the next ones follow, block after block
    int64_t               tokens;
    float * const * out;  // where each token's results are
    int64_t         at;   // the place of the first row there
};
void multiply_amx(const eight_bit_rows & work);
