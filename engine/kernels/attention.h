// What the two ways to compute attention share: few rows (attention.cpp) and many (attention-many.cpp). A row is a pair
// of a query head and a token. Both give the same numbers to the bit.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int64_t keys       = 16;   // computed together
constexpr int64_t part_keys  = 512;  // of a part
constexpr int64_t rows_few   = 4;    // rows that read keys together
constexpr int64_t rows_many  = 32;
constexpr int64_t length_max = 128;  // of a head

/** e^x in each lane (Cephes' expf), for x from -87 to 0; 0 below. */
inline __m512 exp_of(__m512 x) {
    const __mmask16 is_tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    const __m512    n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512          r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r                 = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p          = _mm512_set1_ps(1.9875691500e-4f);
    for (const float c : { 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f })
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1));
    return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), is_tiny, _mm512_setzero_ps());
}

inline float exp_of(float x) { return _mm512_cvtss_f32(exp_of(_mm512_set1_ps(x))); }

/** Attention of rows to some of the keys: the highest score, and sums relative to it. */
struct partial {
    float max[rows_many], weights[rows_many];
    float values[rows_many * length_max];  // row after row

    void add(const partial & other, int count, int64_t length) {
        for (int r = 0; r < count; r++) {
            if (other.max[r] == -INFINITY) continue;
            const float  top = std::max(max[r], other.max[r]);
            const float  own = max[r] == -INFINITY ? 0 : expf(max[r] - top), others = expf(other.max[r] - top);
            max[r]     = top;
            weights[r] = weights[r] * own + other.weights[r] * others;
            for (int64_t i = r * length; i < (r + 1) * length; i++)
                values[i] = values[i] * own + other.values[i] * others;
        }
    }
};

/** The keys and values of a head. */
struct view {
    const char *k, *v;
    size_t      k_stride, v_stride;
    float       scale;
};

/** `rows_many` rows with the keys from `begin` to `end`. `mask`: 16-bit numbers that are added to scores, or null. */
using attend_many_function = void (*)(const view & cache, const float * const * q, const uint16_t * const * mask,
                                      int64_t begin, int64_t end, partial & out);
/** Null for a length of heads that is not supported. */
attend_many_function attend_many_for(int64_t length);
