// Sixteen numbers at once. Everything here needs the processor features that set-up compiles with
// (scripts/setup/kernels.mjs) and that `tunery_kernels_supported` asks for.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

using bf16 = uint16_t;

inline __m512 widen(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

inline __m256i narrow(__m512 values) {
    const __m256bh rounded = _mm512_cvtneps_pbh(values);
    __m256i bits;
    memcpy(&bits, &rounded, sizeof(bits));
    return bits;
}

/** The lanes of the first `count` of up to 16 numbers. */
inline __mmask16 first(ptrdiff_t count) { return count >= 16 ? (__mmask16) 0xffff : (__mmask16) ((1u << count) - 1); }

inline __m512 load(const bf16 * from, __mmask16 lanes) { return widen(_mm256_maskz_loadu_epi16(lanes, from)); }
inline __m512 load(const float * from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline void store(bf16 * to, __m512 values, __mmask16 lanes) { _mm256_mask_storeu_epi16(to, lanes, narrow(values)); }
inline void store(float * to, __m512 values, __mmask16 lanes) { _mm512_mask_storeu_ps(to, lanes, values); }

/** e^x within 2 units in the last place; 0 below -104, infinity above 89. Cephes' polynomial. */
inline __m512 exponential(__m512 x) {
    // The second operand is returned if one is not a number.
    x = _mm512_min_ps(_mm512_set1_ps(90.0f), _mm512_max_ps(_mm512_set1_ps(-110.0f), x));
    const __m512 power = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.3981999507e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(8.3334519073e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(4.1665795894e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.6666665459e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.5f));
    sum = _mm512_fmadd_ps(sum, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(sum, power);
}

inline __m512 sigmoid(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}
