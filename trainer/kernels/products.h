// Small matrix products in bfloat16 with sums in float32, by AMX where the processor has it.
#pragma once

#include "lanes.h"

/** A matrix product's sides are multiples of this. */
constexpr int64_t side = 32;

inline int64_t round_up(int64_t value) { return (value + side - 1) / side * side; }

// The right operand [depth, columns] is packed into panels of 16 columns: for each pair of rows, the pair of the first
// column, of the second, and so on.
constexpr int64_t panel_columns = 16;

/** Packs `from` [depth, columns], whose rows have a stride. */
inline void pack(const bf16 * from, int64_t stride, int64_t depth, int64_t columns, bf16 * to) {
    for (int64_t column = 0; column < columns; column += panel_columns)
        for (int64_t row = 0; row < depth; row += 2, to += 2 * panel_columns) {
            const bf16 * pair = from + row * stride + column;
            const __m512i even = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) pair));
            const __m512i odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) (pair + stride)));
            _mm512_storeu_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
}

/** Packs the transpose of `from` [columns, depth], whose rows have a stride. */
inline void pack_transposed(const bf16 * from, int64_t stride, int64_t depth, int64_t columns, bf16 * to) {
    const __m512i rows = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                            _mm512_set1_epi32((int) stride));
    for (int64_t column = 0; column < columns; column += panel_columns)
        for (int64_t row = 0; row < depth; row += 2, to += 2 * panel_columns)
            _mm512_storeu_si512(to, _mm512_i32gather_epi32(rows, from + column * stride + row, 2));
}

/**
 * A product c (+)= a b: a [rows, depth], b packed from [depth, columns], c [rows, columns] float32, each with the
 * numbers from one row, or panel, to the next. Rows, columns and depth are multiples of `side`.
 */
struct Product {
    const bf16 * a;
    int64_t a_stride;
    const bf16 * b;
    int64_t panel_stride;
    float * c;
    int64_t c_stride, rows, columns, depth;
    bool add;
};

void multiply_avx512(const Product & product);
/** While the thread has `Tiles`. */
void multiply_amx(const Product & product);
using Multiply = void (*)(const Product & product);

bool has_amx();

/** A thread's AMX tiles, as `multiply_amx` needs them; the former configuration comes back, as the thread may be within
 * work of another library. */
class Tiles {
public:
    Tiles();
    ~Tiles();

private:
    alignas(64) char before[64];
};
