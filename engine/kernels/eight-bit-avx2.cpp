// Matrix products with Q8_0 weights on x64 processors with AVX2.
//
// One instruction multiplies two weights of eight rows with two activations of a token, in 16 bits: instructions for
// eight bits are no faster without VNNI, as the sum of two such products does not fit into 16. So activations have 16.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "products.h"

#ifndef KERNELS_AVX512

namespace {

constexpr int group    = 12;  // tokens whose activations are stored together
constexpr int tile_max = 6;   // tokens of a tile: each takes two of 16 registers


/** A block of 16 rows: their scales, then two weights of each row, row after row, 16 times. */
struct weights16 {
    uint16_t d[rows];
    int8_t   q[block / 2][rows][2];
};
static_assert(sizeof(q8_0) == 34 && sizeof(weights16) == rows * sizeof(q8_0), "as in the file, and as large");

/** A block of a group of tokens. What is beyond the last token is not initialized. */
struct activations {
    float   d[group];
    int16_t q[group][block];
};

/** Bytes that are read ahead of those in use, into the second cache: the processor itself stops at each page. */
constexpr int64_t ahead = 8192;
/** Bytes of weights that are multiplied with all tokens before the next ones: a part of the second cache. */
constexpr int64_t cached_bytes = 1 << 17;

/** Asks for the part of `weights` that is `ahead` of this block, unless it is beyond `end`. */
void prefetch(const weights16 * weights, const void * end) {
    const char * from = (const char *) weights + ahead;
    if (from >= end) return;
    for (size_t at = 0; at < sizeof(weights16); at += 64) _mm_prefetch(from + at, _MM_HINT_T1);
}

/** The largest absolute number of 32. */
float largest_of(const __m256 * x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256       max  = _mm256_andnot_ps(sign, x[0]);
    for (int i = 1; i < 4; i++) max = _mm256_max_ps(max, _mm256_andnot_ps(sign, x[i]));
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    half        = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

/** Rounds the activations of token `t` of a group by block. None is an outlier. */
int32_t round(const float * x, void * to, int t, int64_t blocks, outlier *) {
    auto * out = (activations *) to;
    for (int64_t b = 0; b < blocks; b++, x += block, out++) {
        __m256 from[4];
        for (int i = 0; i < 4; i++) from[i] = _mm256_loadu_ps(x + 8 * i);
        const float  max   = largest_of(from);
        const __m256 scale = _mm256_set1_ps(max == 0 ? 0 : 32767 / max);
        out->d[t]          = max / 32767;
        for (int i = 0; i < 4; i += 2) {
            const __m256i two = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(from[i], scale)),
                                                   _mm256_cvtps_epi32(_mm256_mul_ps(from[i + 1], scale)));
            _mm256_storeu_si256((__m256i *) (out->q[t] + 8 * i), _mm256_permute4x64_epi64(two, 0xd8));
        }
    }
    return 0;
}

int64_t most_outliers(int64_t) { return 0; }

/** 16 rows with `N` tokens of a group, from its token `first` on. The order of a sum does not depend on `N`. */
template <int N>
void tile(const weights16 * w, const void * end, const activations * x, int first, int64_t blocks, float * const * out,
          int64_t at) {
    __m256 sum[N][2];
    for (int t = 0; t < N; t++) sum[t][0] = sum[t][1] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, w++, x++) {
        prefetch(w, end);
        __m256i s[N][2];
        for (int t = 0; t < N; t++) s[t][0] = s[t][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
        for (int k = 0; k < block / 2; k++) {
            const __m256i low  = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) w->q[k]));
            const __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) w->q[k][8]));
#pragma GCC unroll 6
            for (int t = 0; t < N; t++) {
                int32_t two;
                memcpy(&two, x->q[first + t] + 2 * k, 4);
                const __m256i both = _mm256_set1_epi32(two);
                s[t][0]            = _mm256_add_epi32(s[t][0], _mm256_madd_epi16(low, both));
                s[t][1]            = _mm256_add_epi32(s[t][1], _mm256_madd_epi16(high, both));
            }
        }
        const __m256 low  = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) w->d));
        const __m256 high = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (w->d + 8)));
#pragma GCC unroll 6
        for (int t = 0; t < N; t++) {
            const __m256 d = _mm256_set1_ps(x->d[first + t]);
            sum[t][0]      = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[t][0]), _mm256_mul_ps(low, d), sum[t][0]);
            sum[t][1]      = _mm256_fmadd_ps(_mm256_cvtepi32_ps(s[t][1]), _mm256_mul_ps(high, d), sum[t][1]);
        }
    }
    for (int t = 0; t < N; t++) {
        _mm256_storeu_ps(out[t] + at, sum[t][0]);
        _mm256_storeu_ps(out[t] + at + 8, sum[t][1]);
    }
}

constexpr decltype(&tile<1>) tiles[tile_max] = { tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6> };

void multiply(const product_rows & work) {
    const auto *  begin = (const weights16 *) work.weights, *end = begin + work.count * work.blocks;
    const auto *  x = (const activations *) work.x;
    // A long prompt has no room in the cache: its tokens are read once for so many rows, and not for each 16.
    const int64_t together = std::max<int64_t>(1, cached_bytes / (work.blocks * (int64_t) sizeof(weights16)));
    for (int64_t from = 0; from < work.count; from += together)
        for (int64_t t = 0; t < work.tokens;) {
            // Equal tiles, as a small last one reads all weights again for little.
            const int left = (int) std::min<int64_t>(group - t % group, work.tokens - t);
            const int n    = left > tile_max ? (left + 1) / 2 : left;
            for (int64_t g = from; g < std::min(from + together, work.count); g++)
                tiles[n - 1](begin + g * work.blocks, t == 0 ? end : nullptr, x + t / group * work.blocks,
                             (int) (t % group), work.blocks, work.out + t, work.at + g * rows);
            t += n;
        }
}

void interleave(const void * data, int64_t blocks, void * out) {
    const auto * from = (const q8_0 *) data;
    auto *       to   = (weights16 *) out;
    for (int64_t b = 0; b < blocks; b++, to++)
        for (int64_t r = 0; r < rows; r++) {
            const q8_0 & one = from[r * blocks + b];
            to->d[r]         = one.d;
            for (int64_t k = 0; k < block / 2; k++) memcpy(to->q[k][r], one.q + 2 * k, 2);
        }
}

}  // namespace

static const weight_format eight_bits = {
    ggml_type_q8_0, block, sizeof(weights16), group, sizeof(activations), most_outliers, round, multiply, interleave,
};
const weight_format * const weight_formats[] = { &eight_bits, nullptr };

#endif
