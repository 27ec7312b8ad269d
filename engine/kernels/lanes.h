// Sums and transposition of vectors of 16 numbers.
#pragma once
#include <immintrin.h>

/** The sums of 16 vectors, in one. */
inline __m512 sums_of(const __m512 * v) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[i], v[i + 8]), _mm512_unpackhi_ps(v[i], v[i + 8]));
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[i], a[i + 4]), _mm512_unpackhi_ps(a[i], a[i + 4]));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[i], b[i + 2], 0x88), _mm512_shuffle_f32x4(b[i], b[i + 2], 0xdd));
    const __m512 d = _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
    return _mm512_permutexvar_ps(order, d);
}

/** Rows of a 16 × 16 matrix become its columns. */
inline void transpose(__m512 * v) {
    __m512 a[16];
    for (int i = 0; i < 16; i += 2) {
        a[i]     = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    // Pairs of rows, four lanes each: columns 4n, 4n + 1 in even ones, 4n + 2, 4n + 3 in odd ones.
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            const __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + 2 + j]);
            v[i + 2 * j]     = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            v[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    // v[4g + c]: rows 4g to 4g + 3 of columns c, 4 + c, 8 + c, 12 + c.
    for (int c = 0; c < 4; c++) {
        const __m512 one = _mm512_shuffle_f32x4(v[c], v[4 + c], 0x88), two = _mm512_shuffle_f32x4(v[c], v[4 + c], 0xdd);
        const __m512 three = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0x88);
        const __m512 four  = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0xdd);
        a[c]      = _mm512_shuffle_f32x4(one, three, 0x88);
        a[8 + c]  = _mm512_shuffle_f32x4(one, three, 0xdd);
        a[4 + c]  = _mm512_shuffle_f32x4(two, four, 0x88);
        a[12 + c] = _mm512_shuffle_f32x4(two, four, 0xdd);
    }
    for (int i = 0; i < 16; i++) v[i] = a[i];
}
