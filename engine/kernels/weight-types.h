// Types of quantized weights in AVX-512: how 16 rows of each are interleaved, and how weights and scales are read. A
// weight is `scale · (number - zero)`, or `scale · number + minimum`, with a number of at most eight bits. The layout
// is as large as the file, with the same weights.
//
// `length`: weights of a block of the file. `parts`: scales of 32 weights. `numbers`: 64 of them, four neighbours of
// each row, of which a block of 32 has eight (`k`). `scales`: of all 32 of a block in order.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "products.h"

#ifdef KERNELS_AVX512

/** Scales and minima of the rows of a block of the file. */
template <class T> struct scales_of {
    static constexpr int per = T::length / block;
    __m512               d[per * T::parts];
    __m512               minimum[T::has_minimum ? per : 1];
};

inline __m512 floats_of(const uint16_t * halves) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) halves));
}
inline __m512 floats_of(__m128i unsigned_bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsigned_bytes)); }

/** Numbers of four bits: those of an even `k` are in the low bits of a byte, those of the next one in the high ones. */
inline __m512i nibbles(const uint8_t (*q)[64], int k) {
    const __m512i both = _mm512_loadu_si512(q[k / 2]);
    return _mm512_and_si512(k % 2 ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
}

inline uint32_t word_at(const uint8_t * from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return word;
}

/** Q8_0: numbers plus 128, as VNNI takes one unsigned factor. */
struct q8_0_rows {
    static constexpr int     type = ggml_type_q8_0, parts = 1, zero = 128;
    static constexpr int64_t length      = 32;
    static constexpr bool    has_minimum = false;
    using file                           = q8_0;

    uint16_t d[rows];
    uint8_t  q[8][64];

    __m512i numbers(int, int k) const { return _mm512_loadu_si512(q[k]); }
    void    scales(scales_of<q8_0_rows> & to) const { to.d[0] = floats_of(d); }
    /** The scale, and the minimum, of block `j` and its number `k` alone. */
    __m512 scale(int, int) const { return floats_of(d); }
    __m512 minimum(int) const { return _mm512_setzero_ps(); }

    void take(int64_t row, const file & from) {
        d[row] = from.d;
        for (int k = 0; k < 8; k++) {
            const uint32_t four = word_at((const uint8_t *) from.q + 4 * k) ^ 0x80808080;
            memcpy(q[k] + 4 * row, &four, 4);
        }
    }
};

/** Q4_1, the type of the packaged base. */
struct q4_1_rows {
    static constexpr int     type = ggml_type_q4_1, parts = 1, zero = 0;
    static constexpr int64_t length      = 32;
    static constexpr bool    has_minimum = true;
    struct file {
        uint16_t d, m;
        uint8_t  q[16];
    };

    uint16_t d[rows], m[rows];
    uint8_t  q[4][64];

    __m512i numbers(int, int k) const { return nibbles(q, k); }
    void    scales(scales_of<q4_1_rows> & to) const {
        to.d[0]       = floats_of(d);
        to.minimum[0] = floats_of(m);
    }
    __m512 scale(int, int) const { return floats_of(d); }
    __m512 minimum(int) const { return floats_of(m); }

    void take(int64_t row, const file & from) {
        d[row] = from.d;
        m[row] = from.m;
        // The file has the first 16 in the low bits of its bytes.
        const auto numbers = [&](int k) { return word_at(from.q + k % 4 * 4) >> (k / 4 * 4) & 0x0f0f0f0f; };
        for (int k = 0; k < 8; k += 2) {
            const uint32_t both = numbers(k) | numbers(k + 1) << 4;
            memcpy(q[k / 2] + 4 * row, &both, 4);
        }
    }
};

/** Q4_K: eight blocks, whose scales and minima have six bits, in units of `d` and `dmin`. */
struct q4_k_rows {
    static constexpr int     type = ggml_type_q4_k, parts = 1, zero = 0;
    static constexpr int64_t length      = 256;
    static constexpr bool    has_minimum = true;
    struct file {
        uint16_t d, dmin;
        uint8_t  scales[12];
        uint8_t  q[128];
    };

    uint16_t d[rows], dmin[rows];
    uint8_t  low[8][16];   // four bits of a block's scale, and four of its minimum
    uint8_t  high[4][16];  // two bits of the scale of block j and of j + 4, then of the minima
    uint8_t  q[8][4][64];

    __m512i numbers(int j, int k) const { return nibbles(q[j], k); }
    void    scales(scales_of<q4_k_rows> & to) const {
        const __m512i four = _mm512_set1_epi8(15), two = _mm512_set1_epi8(0x30);
        const __m512i first = _mm512_loadu_si512(low[0]), second = _mm512_loadu_si512(low[4]);
        const __m512i more = _mm512_loadu_si512(high[0]);
        const auto    join = [&](__m512i a, __m512i b) {
            return _mm512_ternarylogic_epi32(_mm512_and_si512(a, four), b, two, 0xf8);  // or the bits of `two` in b
        };
        alignas(64) uint8_t of[16][16];
        _mm512_store_si512(of[0], join(first, _mm512_slli_epi16(more, 4)));
        _mm512_store_si512(of[4], join(second, _mm512_slli_epi16(more, 2)));
        _mm512_store_si512(of[8], join(_mm512_srli_epi16(first, 4), more));
        _mm512_store_si512(of[12], join(_mm512_srli_epi16(second, 4), _mm512_srli_epi16(more, 2)));
        const __m512 scale = floats_of(d), negative = _mm512_sub_ps(_mm512_setzero_ps(), floats_of(dmin));
        for (int j = 0; j < 8; j++) {
            to.d[j]       = _mm512_mul_ps(scale, floats_of(_mm_load_si128((const __m128i *) of[j])));
            to.minimum[j] = _mm512_mul_ps(negative, floats_of(_mm_load_si128((const __m128i *) of[j + 8])));
        }
    }
    __m512 scale(int j, int) const {
        return _mm512_mul_ps(floats_of(d), floats_of(six_bits(low_of(j), j < 4 ? high_of(j) << 4 : high_of(j) << 2)));
    }
    __m512 minimum(int j) const {
        return _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), floats_of(dmin)),
                             floats_of(six_bits(low_of(j) >> 4, j < 4 ? high_of(j) : high_of(j) >> 2)));
    }

    void take(int64_t row, const file & from) {
        d[row]    = from.d;
        dmin[row] = from.dmin;
        for (int j = 0; j < 8; j++) {
            const uint8_t *s = from.scales, scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
            const uint8_t  minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
            low[j][row]            = (scale & 15) | (minimum & 15) << 4;
            if (j < 4) high[j][row] = scale >> 4 | minimum >> 4 << 4;
            else high[j - 4][row] |= scale >> 4 << 2 | minimum >> 4 << 6;
            // The file has two blocks in the halves of the same bytes.
            const auto numbers = [&](int k) {
                return word_at(from.q + j / 2 * 32 + 4 * k) >> (j % 2 * 4) & 0x0f0f0f0f;
            };
            for (int k = 0; k < 8; k += 2) {
                const uint32_t both = numbers(k) | numbers(k + 1) << 4;
                memcpy(q[j][k / 2] + 4 * row, &both, 4);
            }
        }
    }

  private:
    using bytes = uint8_t __attribute__((vector_size(16)));
    bytes          low_of(int j) const { return (bytes) _mm_loadu_si128((const __m128i *) low[j]); }
    bytes          high_of(int j) const { return (bytes) _mm_loadu_si128((const __m128i *) high[j % 4]); }
    static __m128i six_bits(bytes low, bytes high) { return (__m128i) ((low & 15) | (high & 0x30)); }
};

/** Q6_K: 16 parts of 16 weights, whose scales have eight bits, in units of `d`. */
struct q6_k_rows {
    static constexpr int     type = ggml_type_q6_k, parts = 2, zero = 32;
    static constexpr int64_t length      = 256;
    static constexpr bool    has_minimum = false;
    struct file {
        uint8_t  low[128], high[64];
        int8_t   scales[16];
        uint16_t d;
    };

    uint8_t  low[8][4][64];
    uint8_t  high[8][2][64];  // two bits of four `k`
    int8_t   part[16][rows];
    uint16_t d[rows];

    __m512i numbers(int j, int k) const {
        const __m512i more = _mm512_loadu_si512(high[j][k / 4]);
        const __m512i two = k % 4 == 0 ? _mm512_slli_epi16(more, 4) :
                            k % 4 == 1 ? _mm512_slli_epi16(more, 2) :
                            k % 4 == 2 ? more :
                                         _mm512_srli_epi16(more, 2);
        return _mm512_ternarylogic_epi32(nibbles(low[j], k), two, _mm512_set1_epi8(0x30), 0xf8);
    }
    void scales(scales_of<q6_k_rows> & to) const {
        const __m512 scale = floats_of(d);
        for (int p = 0; p < 16; p++) to.d[p] = _mm512_mul_ps(scale, part_of(p));
    }
    __m512 scale(int j, int k) const { return _mm512_mul_ps(floats_of(d), part_of(2 * j + k / 4)); }
    __m512 minimum(int) const { return _mm512_setzero_ps(); }

    void take(int64_t row, const file & from) {
        d[row] = from.d;
        for (int p = 0; p < 16; p++) part[p][row] = from.scales[p];
        for (int j = 0; j < 8; j++) {
            // The file has a half's four blocks in the same bytes.
            const uint8_t *ql = from.low + j / 4 * 64 + j % 2 * 32, *qh = from.high + j / 4 * 32;
            const auto     four = [&](int k) { return word_at(ql + 4 * k) >> (j % 4 / 2 * 4) & 0x0f0f0f0f; };
            const auto     two  = [&](int k) { return word_at(qh + 4 * k) >> (j % 4 * 2) & 0x03030303; };
            for (int k = 0; k < 8; k += 2) {
                const uint32_t both = four(k) | four(k + 1) << 4;
                memcpy(low[j][k / 2] + 4 * row, &both, 4);
            }
            for (int k = 0; k < 8; k += 4) {
                const uint32_t all = two(k) | two(k + 1) << 2 | two(k + 2) << 4 | two(k + 3) << 6;
                memcpy(high[j][k / 4] + 4 * row, &all, 4);
            }
        }
    }

  private:
    __m512 part_of(int p) const {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) part[p])));
    }
};


#endif
