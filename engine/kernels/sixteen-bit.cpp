#include "sixteen-bit.h"

namespace sixteen_bit {

namespace {

/** The largest absolute number of 32. */
float largest_of(const __m256 * x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256       max  = _mm256_andnot_ps(sign, x[0]);
    for (int i = 1; i < 4; i++) max = _mm256_max_ps(max, _mm256_andnot_ps(sign, x[i]));
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    half        = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

int32_t sum_of(__m256i x) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    half         = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

}  // namespace

int64_t no_outliers(int64_t) { return 0; }

int32_t round(const float * x, void * to, int t, int64_t blocks, outlier *) {
    auto *        out = (activations *) to;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t b = 0; b < blocks; b++, x += block, out++) {
        __m256 from[4];
        for (int i = 0; i < 4; i++) from[i] = _mm256_loadu_ps(x + 8 * i);
        const float  max   = largest_of(from), unit = max / 32767;
        const __m256 scale = _mm256_set1_ps(max == 0 ? 0 : 32767 / max);
        __m256i      sums  = _mm256_setzero_si256();
        for (int i = 0; i < 4; i += 2) {
            const __m256i two = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(from[i], scale)),
                                                   _mm256_cvtps_epi32(_mm256_mul_ps(from[i + 1], scale)));
            const __m256i in_order = _mm256_permute4x64_epi64(two, 0xd8);
            _mm256_storeu_si256((__m256i *) (out->q[t] + 8 * i), in_order);
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(in_order, ones));
        }
        out->d[t]   = unit;
        out->sum[t] = unit * sum_of(sums);
    }
    return 0;
}

}  // namespace sixteen_bit
