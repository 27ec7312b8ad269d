// The gradients of LoRA's matrices: thin products in float32.
#include "products.h"
#include "scratch.h"

#include <omp.h>

#include <algorithm>

namespace {

thread_local Scratch shared_scratch, scratch;

/** Tokens that are multiplied together: their rows are as many pages, and more would not fit into the TLB. */
constexpr int64_t chunk_tokens = 256;

/** Packs [depth, columns], filled up with zeros to [padded depth, side]. */
void pack_block(const bf16 * from, int64_t stride, int64_t depth, int64_t padded, int64_t columns, bf16 * to) {
    for (int64_t column = 0; column < side; column += panel_columns) {
        const __mmask16 lanes = column < columns ? first(columns - column) : 0;
        for (int64_t row = 0; row < padded; row += 2, to += 2 * panel_columns) {
            const bf16 * pair = from + row * stride + column;
            const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(row < depth ? lanes : 0, pair));
            const __m512i odd =
                _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(row + 1 < depth ? lanes : 0, pair + stride));
            _mm512_storeu_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/**
 * out = scale left^T right: left [tokens, rows] and right [tokens, columns] bfloat16 of rows with strides, out [rows,
 * columns] float32 with numbers from one row, and one column, to the next. Each number is summed by one thread in one
 * order.
 */
void tunery_outer(const bf16 * left, int64_t left_stride, const bf16 * right, int64_t right_stride, float scale,
                  float * out, int64_t row_step, int64_t column_step, int64_t tokens, int64_t rows, int64_t columns) {
    const Multiply multiply = has_amx() ? multiply_amx : multiply_avx512;
    const int64_t padded_rows = round_up(rows), padded_tokens = round_up(tokens);
    shared_scratch.reset(padded_rows * padded_tokens * sizeof(bf16));
    bf16 * transposed = shared_scratch.take<bf16>(padded_rows * padded_tokens);
    memset(transposed, 0, padded_rows * padded_tokens * sizeof(bf16));
    for (int64_t token = 0; token < tokens; ++token)
        for (int64_t row = 0; row < rows; ++row)
            transposed[row * padded_tokens + token] = left[token * left_stride + row];
    const int64_t blocks = round_up(columns) / side;
#pragma omp parallel
    {
        const Tiles tiles;
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const int64_t begin = blocks * thread / threads * side, end = blocks * (thread + 1) / threads * side;
        scratch.reset(chunk_tokens * side * sizeof(bf16) + padded_rows * (end - begin) * sizeof(float) + 128);
        bf16 * packed = scratch.take<bf16>(chunk_tokens * side);
        float * sums = scratch.take<float>(padded_rows * (end - begin));
        for (int64_t token = 0; token < tokens; token += chunk_tokens) {
            const int64_t depth = std::min(chunk_tokens, tokens - token), padded = round_up(depth);
            for (int64_t column = begin; column < end; column += side) {
                pack_block(right + token * right_stride + column, right_stride, depth, padded,
                           std::min(side, columns - column), packed);
                multiply({transposed + token, padded_tokens, packed, padded * panel_columns, sums + column - begin,
                          end - begin, padded_rows, side, padded, token > 0});
            }
        }
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = begin; column < std::min(end, columns); ++column)
                out[row * row_step + column * column_step] = scale * sums[row * (end - begin) + column - begin];
    }
}

}  // extern "C"
#pragma GCC visibility pop
