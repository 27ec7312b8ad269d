// Matrix products with Q8_0 weights on x64 processors with AVX-512 VNNI.
//
// ggml computes them as dot products of rows. Here 16 rows are interleaved, so that one instruction multiplies 64
// weights with four activations of a token, and a tile of up to 12 tokens reads each weight once. The weights are those of
// the file: each block of 32 is summed exactly before it is scaled. Activations are rounded to eight bits by block, as
// ggml rounds them, but keep their scale in 32 bits.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace {

constexpr int64_t block    = 32;  // weights with one scale
constexpr int64_t rows     = 16;  // rows that are interleaved
constexpr int     tile_max = 12;  // tokens of a tile: each takes two of 32 registers

struct q8_0 {
    uint16_t d;
    int8_t   q[block];
};
static_assert(sizeof(q8_0) == 34, "as in the file");

/** A block of 16 rows: their scales, then four weights of each row, row after row, eight times. */
struct weights16 {
    uint16_t d[rows];
    uint8_t  q[block * rows];  // plus 128, as the instruction takes one unsigned factor
};
static_assert(sizeof(weights16) == rows * sizeof(q8_0), "as large as what it replaces");

struct activations {
    float   d;
    int32_t correction;  // minus 128 times the sum of q
    int8_t  q[block];
};

void quantize(const float * x, activations * out, int64_t n) {
    for (int64_t b = 0; b < n / block; b++) {
        const __m512  low = _mm512_loadu_ps(x + b * block), high = _mm512_loadu_ps(x + b * block + 16);
        const float   max   = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
        const __m512  scale = _mm512_set1_ps(max == 0 ? 0 : 127 / max);
        const __m512i one   = _mm512_cvtps_epi32(_mm512_mul_ps(low, scale));
        const __m512i two   = _mm512_cvtps_epi32(_mm512_mul_ps(high, scale));
        out[b].d            = max / 127;
        out[b].correction   = -128 * _mm512_reduce_add_epi32(_mm512_add_epi32(one, two));
        _mm_storeu_si128((__m128i *) out[b].q, _mm512_cvtepi32_epi8(one));
        _mm_storeu_si128((__m128i *) (out[b].q + 16), _mm512_cvtepi32_epi8(two));
    }
}

/** 16 rows with `N` tokens. `a` and `out` have a pointer a token. */
template <int N> void tile(const weights16 * w, const activations * const * a, int64_t blocks, float * const * out) {
    __m512 sum[N];
    for (int t = 0; t < N; t++) sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
        __m512i s[N];
        for (int t = 0; t < N; t++) s[t] = _mm512_set1_epi32(a[t][b].correction);
        for (int64_t k = 0; k < block / 4; k++) {
            const __m512i q = _mm512_loadu_si512(w[b].q + 64 * k);
            for (int t = 0; t < N; t++) {
                int32_t four;
                memcpy(&four, a[t][b].q + 4 * k, 4);
                s[t] = _mm512_dpbusd_epi32(s[t], q, _mm512_set1_epi32(four));
            }
        }
        const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) w[b].d));
        for (int t = 0; t < N; t++)
            sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), _mm512_mul_ps(d, _mm512_set1_ps(a[t][b].d)), sum[t]);
    }
    for (int t = 0; t < N; t++) _mm512_storeu_ps(out[t], sum[t]);
}

constexpr decltype(&tile<1>) tiles[tile_max] = { tile<1>, tile<2>, tile<3>, tile<4>,  tile<5>,  tile<6>,
                                                 tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12> };

/** Tokens of the next tile of `left`: in equal tiles, as a small last one reads all weights again for little. */
int tile_size(int64_t left) {
    const int64_t count = (left + tile_max - 1) / tile_max;
    return (left + count - 1) / count;
}

class traits : public ggml::cpu::tensor_traits {
    /** The rounded activations, then the shared loop. */
    static size_t loop_offset(const ggml_tensor * x) {
        return padded(rows_of(x) * (x->ne[0] / block) * sizeof(activations));
    }

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = loop_offset(op->src[1]) + shared_loop::bytes;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const int64_t blocks = w->ne[0] / block, tokens = rows_of(x), groups = w->ne[1] / rows;
        auto *        rounded = (activations *) params->wdata;
        for (int64_t t = params->ith; t < tokens; t += params->nth)
            quantize((const float *) row_at(x, t), rounded + t * blocks, x->ne[0]);
        const int64_t chunk = std::max<int64_t>(1, groups / (params->nth * 4));
        shared_loop   loop((char *) params->wdata + loop_offset(x), params, (groups + chunk - 1) / chunk);
        for (int64_t c = loop.take(); c >= 0; c = loop.take()) {
            const int64_t end = std::min(groups, (c + 1) * chunk);
            for (int64_t from = 0; from < tokens;) {
                const int           n = tile_size(tokens - from);
                const activations * a[tile_max];
                float *             out[tile_max];
                for (int i = 0; i < n; i++) {
                    a[i]   = rounded + (from + i) * blocks;
                    out[i] = (float *) row_at(op, from + i) + c * chunk * rows;
                }
                for (int64_t g = c * chunk; g < end; g++) {
                    tiles[n - 1]((const weights16 *) w->data + g * blocks, a, blocks, out);
                    for (int i = 0; i < n; i++) out[i] += rows;
                }
                from += n;
            }
        }
        return true;
    }
};

}  // namespace

bool is_eight_bit_matrix(const ggml_tensor * w) {
    return w->type == ggml_type_q8_0 && w->ne[2] == 1 && w->ne[3] == 1 && w->ne[0] % block == 0 && w->ne[1] % rows == 0;
}

bool is_eight_bit_product(const ggml_tensor * op) {
    const ggml_tensor * x = op->src[1];
    return op->op == ggml_op_mul_mat && is_eight_bit_matrix(op->src[0]) && x->type == ggml_type_f32 &&
           x->nb[0] == sizeof(float);
}

ggml::cpu::tensor_traits * eight_bit_traits() {
    static traits one;
    return &one;
}

void interleave(ggml_tensor * tensor, const void * data) {
    const auto *  from   = (const q8_0 *) data;
    auto *        to     = (weights16 *) tensor->data;
    const int64_t blocks = tensor->ne[0] / block;
    for (int64_t g = 0; g < tensor->ne[1] / rows; g++, from += rows * blocks)
        for (int64_t b = 0; b < blocks; b++, to++)
            for (int64_t r = 0; r < rows; r++) {
                const q8_0 & one = from[r * blocks + b];
                to->d[r]         = one.d;
                for (int64_t k = 0; k < block / 4; k++) {
                    uint32_t four;
                    memcpy(&four, one.q + 4 * k, 4);
                    four ^= 0x80808080;  // adds 128 to each
                    memcpy(to->q + 64 * k + 4 * r, &four, 4);
                }
            }
}
