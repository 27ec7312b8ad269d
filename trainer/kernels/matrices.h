// Small matrices of float32, and their products.
#pragma once

#include "lanes.h"

#include <algorithm>

/** What rows and columns are filled up to a multiple of. */
constexpr int64_t unit = 16;

inline int64_t units(int64_t value) { return (value + unit - 1) / unit * unit; }
/** The numbers from one row to the next: rows a power of two apart would share few lines of the cache. */
inline int64_t apart(int64_t width) { return units(width) + unit; }

/** Which numbers of a product's left side, or of its result, are not zero, or not needed. */
enum class Part { all, left_lower, left_upper, result_lower };

/** Numbers of a matrix: the distance from one row to the next, and from one column to the next. */
struct Left {
    const float * at;
    int64_t row, column;
};
struct Matrix {
    float * at;
    int64_t stride;

    float * row(int64_t index) const { return at + index * stride; }
    Left left() const { return {at, stride, 1}; }
    Left transposed() const { return {at, 1, stride}; }
    Matrix from(int64_t index) const { return {at + index * stride, stride}; }
};

constexpr int block_rows = 8;

template <int panels>
inline void multiply_block(const Left & a, const float * b, int64_t b_stride, float * c, int64_t c_stride,
                           int64_t begin, int64_t end, bool add) {
    // Unrolled, so that the sums are in registers.
    __m512 sums[block_rows][panels];
#pragma GCC unroll 8
    for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < panels; ++p)
            sums[r][p] = add ? _mm512_loadu_ps(c + r * c_stride + p * 16) : _mm512_setzero_ps();
    for (int64_t k = begin; k < end; ++k) {
        __m512 values[panels];
#pragma GCC unroll 2
        for (int p = 0; p < panels; ++p) values[p] = _mm512_loadu_ps(b + k * b_stride + p * 16);
        const float * column = a.at + k * a.column;
#pragma GCC unroll 8
        for (int r = 0; r < block_rows; ++r) {
            const __m512 factor = _mm512_set1_ps(column[r * a.row]);
#pragma GCC unroll 2
            for (int p = 0; p < panels; ++p) sums[r][p] = _mm512_fmadd_ps(factor, values[p], sums[r][p]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 2
        for (int p = 0; p < panels; ++p) _mm512_storeu_ps(c + r * c_stride + p * 16, sums[r][p]);
}

/** c (+)= a b: a [rows, depth], b [depth, columns]; rows and columns are multiples of `unit`. */
inline void multiply(const Left & a, const Matrix & b, const Matrix & c, int64_t rows, int64_t columns, int64_t depth,
              bool add, Part part = Part::all) {
    for (int64_t column = 0; column < columns;) {
        const bool wide = column + 32 <= columns;
        for (int64_t row = 0; row < rows; row += block_rows) {
            if (part == Part::result_lower && column >= row + block_rows) continue;
            const int64_t begin = part == Part::left_upper ? row : 0;
            const int64_t end = part == Part::left_lower ? std::min(depth, row + block_rows) : depth;
            const Left from = {a.at + row * a.row, a.row, a.column};
            float * to = c.row(row) + column;
            if (wide)
                multiply_block<2>(from, b.at + column, b.stride, to, c.stride, begin, end, add);
            else
                multiply_block<1>(from, b.at + column, b.stride, to, c.stride, begin, end, add);
        }
        column += wide ? 32 : 16;
    }
}

inline __m512 lanes_of(__m512 a, __m512 b, int which) {
    return which ? _mm512_shuffle_f32x4(a, b, 0xdd) : _mm512_shuffle_f32x4(a, b, 0x88);
}

/** The transpose of 16 rows and 16 columns. */
inline void transpose_block(const float * from, int64_t stride, float * to, int64_t to_stride) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + i * stride);
    // Each four rows, within each four columns.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        const __m512 low = _mm512_unpacklo_ps(a[i], a[i + 1]), high = _mm512_unpackhi_ps(a[i], a[i + 1]);
        const __m512 low2 = _mm512_unpacklo_ps(a[i + 2], a[i + 3]), high2 = _mm512_unpackhi_ps(a[i + 2], a[i + 3]);
        b[i] = _mm512_shuffle_ps(low, low2, 0x44);
        b[i + 1] = _mm512_shuffle_ps(low, low2, 0xee);
        b[i + 2] = _mm512_shuffle_ps(high, high2, 0x44);
        b[i + 3] = _mm512_shuffle_ps(high, high2, 0xee);
    }
    // b[4 g + c] has rows 4 g to 4 g + 3 of the columns c, c + 4, c + 8 and c + 12.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512 even = lanes_of(b[c], b[4 + c], 0), odd = lanes_of(b[c], b[4 + c], 1);
        const __m512 even2 = lanes_of(b[8 + c], b[12 + c], 0), odd2 = lanes_of(b[8 + c], b[12 + c], 1);
        _mm512_storeu_ps(to + c * to_stride, lanes_of(even, even2, 0));
        _mm512_storeu_ps(to + (c + 8) * to_stride, lanes_of(even, even2, 1));
        _mm512_storeu_ps(to + (c + 4) * to_stride, lanes_of(odd, odd2, 0));
        _mm512_storeu_ps(to + (c + 12) * to_stride, lanes_of(odd, odd2, 1));
    }
}

inline void transpose(const Matrix & from, const Matrix & to, int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row += 16)
        for (int64_t column = 0; column < columns; column += 16)
            transpose_block(from.row(row) + column, from.stride, to.row(column) + row, to.stride);
}

inline float dot(const float * a, const float * b, int64_t width) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) sum = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), sum);
    return _mm512_reduce_add_ps(sum);
}

/** to = factor from (+ to). */
inline void scale_row(const float * from, float factor, float * to, int64_t width, bool add = false) {
    const __m512 by = _mm512_set1_ps(factor);
    for (int64_t i = 0; i < width; i += 16) {
        const __m512 value = _mm512_loadu_ps(from + i);
        _mm512_storeu_ps(to + i, add ? _mm512_fmadd_ps(value, by, _mm512_loadu_ps(to + i)) : _mm512_mul_ps(value, by));
    }
}

inline void clear(const Matrix & matrix, int64_t rows) { memset(matrix.at, 0, rows * matrix.stride * sizeof(float)); }
