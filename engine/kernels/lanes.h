// Vectors of 16 floats, whatever the registers of the processor hold: one of AVX-512, or two of AVX2. The kernels are
// written with these names alone, so that another set of instructions is a third part of this file.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#pragma GCC push_options
#ifdef KERNELS_AVX512
// Also where the compiler was not told of them (scripts/setup/vision/bf16.cpp).
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")

constexpr int registers = 32;  // that hold vectors
constexpr int width     = 16;  // floats of one

/** What a register holds. */
using vector = __m512;
using lanes  = __m512;
/** A choice of lanes. */
using lane_mask = __mmask16;

inline lanes  load(const float * from) { return _mm512_loadu_ps(from); }
inline vector load_vector(const float * from) { return _mm512_loadu_ps(from); }
inline lanes  all(float x) { return _mm512_set1_ps(x); }
inline vector all_vector(float x) { return _mm512_set1_ps(x); }
/** Numbers in 16 bits (IEEE half precision) become floats. */
inline lanes  widen(const uint16_t * from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from)); }
inline vector widen_vector(const uint16_t * from) { return widen(from); }
/** Integers in eight bits become floats. */
inline lanes  widen_bytes(const int8_t * from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) from)));
}
inline vector widen_byte_vector(const int8_t * from) { return widen_bytes(from); }
/** One number in 16 bits, at any address, in all lanes. */
inline lanes widen_one(const void * from) {
    uint16_t half;
    memcpy(&half, from, sizeof(half));
    return _mm512_cvtph_ps(_mm256_set1_epi16((short) half));
}
inline vector widen_one_vector(const void * from) { return widen_one(from); }
inline void  store(float * to, lanes x) { _mm512_storeu_ps(to, x); }
inline lanes add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
inline lanes subtract(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
inline lanes multiply(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
inline lanes multiply_add(lanes a, lanes b, lanes sum) { return _mm512_fmadd_ps(a, b, sum); }
inline lanes multiply_subtract(lanes a, lanes b, lanes from) { return _mm512_fnmadd_ps(a, b, from); }
inline lanes maximum(lanes a, lanes b) { return _mm512_max_ps(a, b); }
inline lanes nearest_integer(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
/** x · 2^n, for n an integer from -126 to 0. */
inline lanes scale_by_power(lanes x, lanes n) { return _mm512_scalef_ps(x, n); }

inline float first_of(lanes x) { return _mm512_cvtss_f32(x); }
/** Adds up lanes by halves: eight and eight, four and four, and so on. */
inline float reduce_add(lanes x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(lanes x) { return _mm512_reduce_max_ps(x); }

inline lane_mask first_lanes(int count) { return (lane_mask) ((1u << count) - 1); }
inline lane_mask is_less(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline lane_mask is_unequal(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_OQ); }
inline lanes     select(lane_mask mask, lanes a, lanes b) { return _mm512_mask_mov_ps(b, mask, a); }
/** `a` in the lanes of the mask, 0 in others. */
inline lanes select(lane_mask mask, lanes a) { return _mm512_maskz_mov_ps(mask, a); }

/** Bits of the first `count` lanes where a is greater, or unequal. */
inline unsigned bits_greater(lanes a, lanes b, int count) {
    return _mm512_mask_cmp_ps_mask(first_lanes(count), a, b, _CMP_GT_OQ);
}
inline unsigned bits_unequal(lanes a, lanes b, int count) {
    return _mm512_mask_cmp_ps_mask(first_lanes(count), a, b, _CMP_NEQ_OQ);
}
/** The first `count` numbers; 0 in the other lanes. */
inline lanes load_some(const float * from, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), from); }

/** 16 numbers in 16 bits. */
using halves = __m256i;
inline halves load_halves(const uint16_t * from, int count) {
    return _mm256_maskz_loadu_epi16(first_lanes(count), from);
}
inline halves zero_halves() { return _mm256_setzero_si256(); }
inline lanes  widen(halves x) { return _mm512_cvtph_ps(x); }
/** Bits of the first `count` whose bits are not those of `value`. */
inline unsigned bits_unequal(halves x, uint16_t value, int count) {
    return _mm256_mask_cmpneq_epu16_mask(first_lanes(count), x, _mm256_set1_epi16((short) value));
}

/** The first, or the second, of each of 16 pairs of bfloat16 numbers. */
inline lanes widen_first(const uint16_t * pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
}
inline lanes widen_second(const uint16_t * pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32((int) 0xffff0000)));
}

/** The sums of 16 vectors, in one: (0 + 2) + (1 + 3) of each four lanes, then these by pairs. */
inline lanes sums_of(const vector * v) {
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
inline void transpose(lanes * v) {
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

#else

constexpr int registers = 16;
constexpr int width     = 8;

using vector = __m256;
struct lanes {
    vector low, high;
};
struct lane_mask {
    __m256 low, high;
};

inline vector load_vector(const float * from) { return _mm256_loadu_ps(from); }
inline vector all_vector(float x) { return _mm256_set1_ps(x); }
inline vector widen_vector(const uint16_t * from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)); }
inline vector widen_byte_vector(const int8_t * from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) from)));
}
inline vector widen_one_vector(const void * from) {
    uint16_t half;
    memcpy(&half, from, sizeof(half));
    return _mm256_cvtph_ps(_mm_set1_epi16((short) half));
}
inline void   store(float * to, vector x) { _mm256_storeu_ps(to, x); }
inline vector add(vector a, vector b) { return _mm256_add_ps(a, b); }
inline vector subtract(vector a, vector b) { return _mm256_sub_ps(a, b); }
inline vector multiply(vector a, vector b) { return _mm256_mul_ps(a, b); }
inline vector multiply_add(vector a, vector b, vector sum) { return _mm256_fmadd_ps(a, b, sum); }
inline vector multiply_subtract(vector a, vector b, vector from) { return _mm256_fnmadd_ps(a, b, from); }
inline vector maximum(vector a, vector b) { return _mm256_max_ps(a, b); }
inline vector nearest_integer(vector x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vector scale_by_power(vector x, vector n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

inline lanes load(const float * from) { return { load_vector(from), load_vector(from + 8) }; }
inline lanes all(float x) { return { all_vector(x), all_vector(x) }; }
inline lanes widen(const uint16_t * from) { return { widen_vector(from), widen_vector(from + 8) }; }
inline lanes widen_bytes(const int8_t * from) { return { widen_byte_vector(from), widen_byte_vector(from + 8) }; }
inline lanes widen_one(const void * from) { return { widen_one_vector(from), widen_one_vector(from) }; }
inline void  store(float * to, lanes x) {
    store(to, x.low);
    store(to + 8, x.high);
}
inline lanes add(lanes a, lanes b) { return { add(a.low, b.low), add(a.high, b.high) }; }
inline lanes subtract(lanes a, lanes b) { return { subtract(a.low, b.low), subtract(a.high, b.high) }; }
inline lanes multiply(lanes a, lanes b) { return { multiply(a.low, b.low), multiply(a.high, b.high) }; }
inline lanes multiply_add(lanes a, lanes b, lanes sum) {
    return { multiply_add(a.low, b.low, sum.low), multiply_add(a.high, b.high, sum.high) };
}
inline lanes multiply_subtract(lanes a, lanes b, lanes from) {
    return { multiply_subtract(a.low, b.low, from.low), multiply_subtract(a.high, b.high, from.high) };
}
inline lanes maximum(lanes a, lanes b) { return { maximum(a.low, b.low), maximum(a.high, b.high) }; }
inline lanes nearest_integer(lanes x) { return { nearest_integer(x.low), nearest_integer(x.high) }; }
inline lanes scale_by_power(lanes x, lanes n) {
    return { scale_by_power(x.low, n.low), scale_by_power(x.high, n.high) };
}

inline float first_of(lanes x) { return _mm256_cvtss_f32(x.low); }
inline float reduce_add(lanes x) {
    const __m256 eight = add(x.low, x.high);
    const __m128 four  = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two   = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(lanes x) {
    const __m256 eight = maximum(x.low, x.high);
    const __m128 four  = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two   = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline lane_mask first_lanes(int count) {
    const __m256i all = _mm256_set1_epi32(count);
    return { _mm256_castsi256_ps(_mm256_cmpgt_epi32(all, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))),
             _mm256_castsi256_ps(_mm256_cmpgt_epi32(all, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))) };
}
inline lane_mask is_less(lanes a, lanes b) {
    return { _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ) };
}
inline lane_mask is_unequal(lanes a, lanes b) {
    return { _mm256_cmp_ps(a.low, b.low, _CMP_NEQ_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_NEQ_OQ) };
}
inline lanes select(lane_mask mask, lanes a, lanes b) {
    return { _mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high) };
}
inline lanes select(lane_mask mask, lanes a) {
    return { _mm256_and_ps(a.low, mask.low), _mm256_and_ps(a.high, mask.high) };
}

inline unsigned bits_of(lane_mask mask, int count) {
    return ((unsigned) _mm256_movemask_ps(mask.low) | (unsigned) _mm256_movemask_ps(mask.high) << 8) &
           ((1u << count) - 1);
}
inline unsigned bits_greater(lanes a, lanes b, int count) { return bits_of(is_less(b, a), count); }
inline unsigned bits_unequal(lanes a, lanes b, int count) { return bits_of(is_unequal(a, b), count); }
inline lanes load_some(const float * from, int count) {
    const lane_mask mask = first_lanes(count);
    return { _mm256_maskload_ps(from, _mm256_castps_si256(mask.low)),
             _mm256_maskload_ps(from + 8, _mm256_castps_si256(mask.high)) };
}

using halves = __m256i;
inline halves load_halves(const uint16_t * from, int count) {
    if (count == 16) return _mm256_loadu_si256((const __m256i *) from);
    alignas(32) uint16_t some[16] = {};
    memcpy(some, from, count * sizeof(*from));
    return _mm256_load_si256((const __m256i *) some);
}
inline halves zero_halves() { return _mm256_setzero_si256(); }
inline lanes  widen(halves x) {
    return { _mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)) };
}
inline unsigned bits_unequal(halves x, uint16_t value, int count) {
    const __m256i is_equal = _mm256_cmpeq_epi16(x, _mm256_set1_epi16((short) value));
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(is_equal), _mm256_extracti128_si256(is_equal, 1));
    return ~(unsigned) _mm_movemask_epi8(bytes) & ((1u << count) - 1);
}

inline lanes widen_first(const uint16_t * pairs) {
    const auto * from = (const __m256i *) pairs;
    return { _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(from), 16)),
             _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(from + 1), 16)) };
}
inline lanes widen_second(const uint16_t * pairs) {
    const auto *  from = (const __m256i *) pairs;
    const __m256i high = _mm256_set1_epi32((int) 0xffff0000);
    return { _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(from), high)),
             _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(from + 1), high)) };
}

inline lanes sums_of(const vector * v) {
    __m256 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_add_ps(_mm256_unpacklo_ps(v[i], v[i + 8]), _mm256_unpackhi_ps(v[i], v[i + 8]));
    for (int i = 0; i < 4; i++)
        b[i] = _mm256_add_ps(_mm256_unpacklo_ps(a[i], a[i + 4]), _mm256_unpackhi_ps(a[i], a[i + 4]));
    // b[i]: i, i + 4, i + 8 and i + 12 in each half.
    for (int i = 0; i < 2; i++)
        c[i] = _mm256_add_ps(_mm256_permute2f128_ps(b[2 * i], b[2 * i + 1], 0x20),
                             _mm256_permute2f128_ps(b[2 * i], b[2 * i + 1], 0x31));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return { _mm256_permutevar8x32_ps(_mm256_unpacklo_ps(c[0], c[1]), order),
             _mm256_permutevar8x32_ps(_mm256_unpackhi_ps(c[0], c[1]), order) };
}

/** Rows of an 8 × 8 matrix become its columns. */
inline void transpose_eight(vector * v) {
    __m256 a[8];
    for (int i = 0; i < 8; i += 2) {
        a[i]     = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            const __m256d low = _mm256_castps_pd(a[i + j]), high = _mm256_castps_pd(a[i + 2 + j]);
            v[i + 2 * j]     = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
            v[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
        }
    for (int c = 0; c < 4; c++) {
        a[c]     = _mm256_permute2f128_ps(v[c], v[4 + c], 0x20);
        a[4 + c] = _mm256_permute2f128_ps(v[c], v[4 + c], 0x31);
    }
    for (int i = 0; i < 8; i++) v[i] = a[i];
}

inline void transpose(lanes * v) {
    vector quarters[2][2][8];  // of rows, of columns
    for (int i = 0; i < 16; i++) {
        quarters[i / 8][0][i % 8] = v[i].low;
        quarters[i / 8][1][i % 8] = v[i].high;
    }
    for (auto & rows : quarters)
        for (auto & quarter : rows) transpose_eight(quarter);
    for (int i = 0; i < 16; i++) v[i] = { quarters[0][i / 8][i % 8], quarters[1][i / 8][i % 8] };
}

#endif

/** Asks for a line of memory, for the first cache. */
inline void prefetch_line(const void * at) { __builtin_prefetch(at, 0, 3); }

/** e^x in each lane (Cephes' expf), for x from -87 to 0; 0 below. */
inline lanes exp_of(lanes x) {
    const lane_mask is_tiny = is_less(x, all(-87.0f));
    const lanes     n = nearest_integer(multiply(x, all(1.44269504f)));
    lanes           r = multiply_subtract(n, all(0.693359375f), x);
    r                 = multiply_subtract(n, all(-2.12194440e-4f), r);
    lanes p           = all(1.9875691500e-4f);
    for (const float c : { 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f })
        p = multiply_add(p, r, all(c));
    p = add(multiply_add(p, multiply(r, r), r), all(1));
    return select(is_tiny, all(0), scale_by_power(p, n));
}

inline float exp_of(float x) { return first_of(exp_of(all(x))); }

#pragma GCC pop_options
