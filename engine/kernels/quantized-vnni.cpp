// Matrix products with quantized weights on x64 processors with AVX-512 VNNI.
//
// One instruction multiplies 64 weights with four activations of a token, and a tile has up to 12 tokens. Activations
// are rounded to eight bits by block, as ggml rounds them, but keep their scale in 32 bits, and outliers have 16: a
// block with one would be rounded by its size, which makes most of the error (as in Dettmers et al., "LLM.int8()",
// 2022, arXiv 2208.07339).
#include "quantized.h"

#ifdef KERNELS_AVX512

namespace {

constexpr int tile_max = 12;  // tokens of a tile: each takes two of 32 registers

/** A block has an outlier if the square of its largest number is so many times the mean of its token's blocks. */
constexpr int64_t outlying = 2;

/** The most outliers of a token: no more blocks can be so much above their mean. */
int64_t most_outliers(int64_t blocks) { return blocks / outlying; }

inline float largest_of(__m512 low, __m512 high) {
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
}

/** Rounds the two halves of a block of token `t` of a group, whose largest absolute number is `max`. */
template <class T>
inline void quantize_block(__m512 low, __m512 high, float max, activations16<T> & out, int t) {
    const __m512  scale = _mm512_set1_ps(max == 0 ? 0 : 127 / max);
    const __m512i one   = _mm512_cvtps_epi32(_mm512_mul_ps(low, scale));
    const __m512i two   = _mm512_cvtps_epi32(_mm512_mul_ps(high, scale));
    out.d[t]            = max / 127;
    if constexpr (T::parts == 2) {
        out.correction[0][t] = -T::zero * _mm512_reduce_add_epi32(one);
        out.correction[1][t] = -T::zero * _mm512_reduce_add_epi32(two);
    } else {
        const int32_t sum    = _mm512_reduce_add_epi32(_mm512_add_epi32(one, two));
        out.correction[0][t] = T::has_minimum ? out.d[t] * (float) sum : -T::zero * sum;
    }
    _mm_storeu_si128((__m128i *) out.q[t], _mm512_cvtepi32_epi8(one));
    _mm_storeu_si128((__m128i *) (out.q[t] + 16), _mm512_cvtepi32_epi8(two));
}

/** The largest absolute number of each four, in all of them. */
__m512 largest_of_four(__m512 x) {
    x = _mm512_abs_ps(x);
    x = _mm512_max_ps(x, _mm512_permute_ps(x, 0xb1));
    return _mm512_max_ps(x, _mm512_permute_ps(x, 0x4e));
}

/** Rounds a block of token `t` without the four with its largest number, `max`, and returns these. */
template <class T>
outlier take_outlier(const float * x, float max, activations16<T> * out, int t, int64_t b) {
    const __m512   low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16), all = _mm512_set1_ps(max);
    const uint32_t equal = _mm512_cmpeq_ps_mask(largest_of_four(low), all) |
                           (uint32_t) _mm512_cmpeq_ps_mask(largest_of_four(high), all) << 16;
    const int32_t  four = __builtin_ctz(equal) / 4;
    const uint32_t rest = ~(0xfu << 4 * four);
    const __m512   low_rest = _mm512_maskz_mov_ps((__mmask16) rest, low);
    const __m512   high_rest = _mm512_maskz_mov_ps((__mmask16) (rest >> 16), high);
    quantize_block(low_rest, high_rest, largest_of(low_rest, high_rest), out[b], t);
    const __m128  from   = _mm_loadu_ps(x + 4 * four);
    const __m128i coarse = _mm_cvtps_epi32(_mm_mul_ps(from, _mm_set1_ps(127 / max)));
    const __m128  left   = _mm_fnmadd_ps(_mm_cvtepi32_ps(coarse), _mm_set1_ps(max / 127), from);
    // Half a unit is one more than eight bits hold.
    const __m128i units = _mm_cvtps_epi32(_mm_mul_ps(left, _mm_set1_ps(127 * 256 / max)));
    const __m128i fine  = _mm_min_epi32(units, _mm_set1_epi32(127));
    const __m128i sums  = _mm_add_epi32(_mm_slli_epi32(coarse, 8), fine);
    const __m128i pairs = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
    const int32_t sum   = _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 0xb1)));
    return { (int32_t) b,
             four,
             _mm_cvtsi128_si32(_mm_cvtepi32_epi8(coarse)),
             _mm_cvtsi128_si32(_mm_cvtepi32_epi8(fine)),
             sum,
             max / 127 / 256,
             nullptr };
}

/** Rounds the activations of token `t` of a group. Returns how many outliers they have. */
template <class T>
int32_t quantize(const float * x, void * to, int t, int64_t blocks, outlier * outliers) {
    auto * out = (activations16<T> *) to;
    float squares = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const float max = largest_of(_mm512_loadu_ps(x + b * block), _mm512_loadu_ps(x + b * block + 16));
        out[b].d[t]     = max;
        squares += max * max;
    }
    const float limit = outlying * squares / blocks;
    int32_t     count = 0;
    for (int64_t b = 0; b < blocks; b++, x += block) {
        const float max = out[b].d[t];
        if (max * max > limit && count < most_outliers(blocks))
            outliers[count++] = take_outlier(x, max, out, t, b);
        else
            quantize_block(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), max, out[b], t);
    }
    return count;
}

/** 16 rows with `N` tokens of a group, from its token `first` on. */
template <class T, int N>
void tile(const T * w, const void * end, const activations16<T> * x, int first, int64_t blocks, float * const * out,
          int64_t at) {
    constexpr int per = T::length / block, steps = 8 / T::parts;
    __m512        sum[N];
    for (int t = 0; t < N; t++) sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b += per, w++) {
        scales_of<T> scales;
        w->scales(scales);
        for (int j = 0; j < per; j++, x++) {
            constexpr int64_t bytes = sizeof(T) / per;
            prefetch<bytes>((const char *) w + j * bytes + ahead, end);
            const int8_t(*q)[block] = x->q + first;
#pragma GCC unroll 2
            for (int part = 0; part < T::parts; part++) {
                __m512i s[N];
                for (int t = 0; t < N; t++)
                    s[t] = T::has_minimum ? _mm512_setzero_si512() :
                                            _mm512_set1_epi32((int32_t) x->correction[part][first + t]);
#pragma GCC unroll 8
                for (int k = part * steps; k < (part + 1) * steps; k++) {
                    const __m512i weights = w->numbers(j, k);
                    for (int t = 0; t < N; t++) {
                        int32_t four;
                        memcpy(&four, q[t] + 4 * k, 4);
                        s[t] = _mm512_dpbusd_epi32(s[t], weights, _mm512_set1_epi32(four));
                    }
                }
                const __m512 d = scales.d[j * T::parts + part];
                for (int t = 0; t < N; t++) {
                    const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(x->d[first + t]));
                    sum[t]             = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), scale, sum[t]);
                    if constexpr (T::has_minimum) {
                        const __m512 all = _mm512_set1_ps(x->correction[part][first + t]);
                        sum[t]           = _mm512_fmadd_ps(scales.minimum[j], all, sum[t]);
                    }
                }
            }
        }
    }
    for (int t = 0; t < N; t++) _mm512_storeu_ps(out[t] + at, sum[t]);
}

template <class T>
constexpr decltype(&tile<T, 1>) tiles[tile_max] = { tile<T, 1>, tile<T, 2>, tile<T, 3>,  tile<T, 4>,
                                                    tile<T, 5>, tile<T, 6>, tile<T, 7>,  tile<T, 8>,
                                                    tile<T, 9>, tile<T, 10>, tile<T, 11>, tile<T, 12> };

template <class T> void multiply_vnni(const product_rows & work) {
    const int64_t      length = work.blocks * block / T::length;  // of a row
    const auto *       begin = (const T *) work.weights, *end = begin + work.count * length;
    const auto *       x     = (const activations16<T> *) work.x;
    const outlier_list outliers(work);
    for (int64_t g = 0; g < work.count; g++) {
        for (int64_t t = 0; t < work.tokens;) {
            // Equal tiles, as a small last one reads all weights again for little.
            const int left = (int) std::min<int64_t>(group - t % group, work.tokens - t);
            const int n    = left > tile_max ? (left + 1) / 2 : left;
            tiles<T>[n - 1](begin + g * length, end, x + t / group * work.blocks, t % group, work.blocks, work.out + t,
                            work.at + g * rows);
            t += n;
        }
        // Four at a time, as each reads the list again.
        if (g % 4 == 3 || g == work.count - 1)
            outliers.add(begin + g / 4 * 4 * length, g % 4 + 1, work.blocks, work.at + g / 4 * 4 * rows);
    }
}

/** From this number of tokens on AMX is faster. */
constexpr int64_t amx_tokens = 12;

template <class T> void multiply(const product_rows & work) {
    static const bool has_amx = can_use_amx();
    if (has_amx && work.tokens >= amx_tokens) multiply_amx<T>(work);
    else multiply_vnni<T>(work);
}

template <class T> void interleave(const void * data, int64_t blocks, void * to) {
    const auto * from = (const typename T::file *) data;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t r = 0; r < rows; r++) ((T *) to)[b].take(r, from[r * blocks + b]);
}

template <class T>
constexpr weight_format format = {
    T::type,       T::length,   sizeof(T),   group,         sizeof(activations16<T>),
    most_outliers, quantize<T>, multiply<T>, interleave<T>,
};

template <class T> constexpr bool is_as_large = sizeof(T) == rows * sizeof(typename T::file);
static_assert(is_as_large<q8_0_rows> && is_as_large<q4_1_rows> && is_as_large<q4_k_rows> && is_as_large<q6_k_rows>);

}  // namespace

const weight_format * const weight_formats[] = {
    &format<q8_0_rows>, &format<q4_1_rows>, &format<q4_k_rows>, &format<q6_k_rows>, nullptr,
};

#endif
