// Matrix products with Q8_0 weights on x64 processors with AVX-512 VNNI.
//
// ggml computes them as dot products of rows. Here 16 rows are interleaved, so that one instruction multiplies 64
// weights with four activations of a token, and a tile of up to 12 tokens reads each weight once. The weights are those
// of the file: each block of 32 is summed exactly before it is scaled. Activations are rounded to eight bits by block,
// as ggml rounds them, but keep their scale in 32 bits, and outliers have 16: a block with one would be rounded by its
// size, which makes most of the error (as in Dettmers et al., "LLM.int8()", 2022, arXiv 2208.07339). The tokens of a
// mixture are sorted by expert.
#include "eight-bit.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

constexpr int tile_max = 12;  // tokens of a tile: each takes two of 32 registers

struct q8_0 {
    uint16_t d;
    int8_t   q[block];
};
static_assert(sizeof(q8_0) == 34 && sizeof(weights16) == rows * sizeof(q8_0), "as in the file, and as large");

/** A block has an outlier if the square of its largest number is so many times the mean of its token's blocks. */
constexpr int64_t outlying = 2;

/** The most outliers of a token: no more blocks can be so much above their mean. */
int64_t most_outliers(int64_t blocks) { return blocks / outlying; }

inline float largest_of(__m512 low, __m512 high) {
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
}

/** Rounds the two halves of a block of token `t` of a group, whose largest absolute number is `max`. */
inline void quantize_block(__m512 low, __m512 high, float max, activations16 & out, int t) {
    const __m512  scale = _mm512_set1_ps(max == 0 ? 0 : 127 / max);
    const __m512i one   = _mm512_cvtps_epi32(_mm512_mul_ps(low, scale));
    const __m512i two   = _mm512_cvtps_epi32(_mm512_mul_ps(high, scale));
    out.d[t]            = max / 127;
    out.correction[t]   = -128 * _mm512_reduce_add_epi32(_mm512_add_epi32(one, two));
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
outlier take_outlier(const float * x, float max, activations16 * out, int t, int64_t b) {
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
             -128 * sum,
             max / 127 / 256,
             nullptr };
}

/** Rounds the activations of token `t` of a group. Returns how many outliers they have. */
int32_t quantize(const float * x, activations16 * out, int t, int64_t blocks, outlier * outliers) {
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
template <int N>
void tile(const weights16 * w, const void * end, const activations16 * x, int first, int64_t blocks,
          float * const * out, int64_t at) {
    __m512 sum[N];
    for (int t = 0; t < N; t++) sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++) {
        prefetch(w + b, end);
        const int8_t(*q)[block] = x[b].q + first;
        __m512i s[N];
        for (int t = 0; t < N; t++) s[t] = _mm512_set1_epi32(x[b].correction[first + t]);
        for (int64_t k = 0; k < block / 4; k++) {
            const __m512i weights = _mm512_loadu_si512(w[b].q + 64 * k);
            for (int t = 0; t < N; t++) {
                int32_t four;
                memcpy(&four, q[t] + 4 * k, 4);
                s[t] = _mm512_dpbusd_epi32(s[t], weights, _mm512_set1_epi32(four));
            }
        }
        const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) w[b].d));
        for (int t = 0; t < N; t++)
            sum[t] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[t]), _mm512_mul_ps(d, _mm512_set1_ps(x[b].d[first + t])), sum[t]);
    }
    for (int t = 0; t < N; t++) _mm512_storeu_ps(out[t] + at, sum[t]);
}

constexpr decltype(&tile<1>) tiles[tile_max] = { tile<1>, tile<2>, tile<3>, tile<4>,  tile<5>,  tile<6>,
                                                 tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12> };

void multiply_vnni(const eight_bit_rows & work) {
    const weights16 * const end = work.weights + work.count * work.blocks;
    const outlier_list      outliers(work);
    for (int64_t g = 0; g < work.count; g++) {
        for (int64_t t = 0; t < work.tokens;) {
            // Equal tiles, as a small last one reads all weights again for little.
            const int left = (int) std::min<int64_t>(group - t % group, work.tokens - t);
            const int n    = left > tile_max ? (left + 1) / 2 : left;
            tiles[n - 1](work.weights + g * work.blocks, end, work.x + t / group * work.blocks, t % group, work.blocks,
                         work.out + t, work.at + g * rows);
            t += n;
        }
        // Four at a time, as each reads the list again.
        if (g % 4 == 3 || g == work.count - 1) outliers.add(g / 4 * 4, g % 4 + 1);
    }
}

/** From this number of tokens on AMX is faster. */
constexpr int64_t amx_tokens = 12;

/** The tokens of a matrix: all of them; of an expert's matrix those that the router has sent to it. */
struct part {
    int64_t matrix;
    int64_t first;  // of its groups of tokens
    int64_t tokens;
};

class traits : public ggml::cpu::tensor_traits {
    const bool has_amx = can_use_amx();

    /** Where things are in the memory that the threads share. */
    struct layout {
        const int64_t results, parts_max, groups_max;
        const size_t  out, places, parts, outliers, counts, loop, end;

        explicit layout(const ggml_tensor * op) :
            results(rows_of(op)),
            parts_max(std::min(op->src[0]->ne[2], results)),
            // The last group of each part may have one token.
            groups_max((results + (group - 1) * parts_max) / group),
            out(padded(groups_max * (op->src[0]->ne[0] / block) * sizeof(activations16))),
            places(out + padded(groups_max * group * sizeof(float *))),
            parts(places + padded(results * sizeof(int32_t))),
            outliers(parts + padded((parts_max + 1) * sizeof(part))),
            counts(outliers + padded(groups_max * group * most_outliers(op->src[0]->ne[0] / block) * sizeof(outlier))),
            loop(counts + padded(groups_max * group * sizeof(int32_t))),
            end(loop + shared_loop::bytes) {}
    };

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = layout(op).end;
        return true;
    }

    /** Sorts the tokens by expert: the place of each result, and the parts. One without tokens ends them. */
    static void sort(const ggml_tensor * op, int32_t * places, part * parts) {
        const ggml_tensor * ids = op->src[2];
        const int64_t       results = rows_of(op);
        const auto matrix_of = [&](int64_t r) {
            return *(const int32_t *) ((char *) ids->data + r % ids->ne[0] * ids->nb[0] + r / ids->ne[0] * ids->nb[1]);
        };
        std::vector<int64_t> next(op->src[0]->ne[2]);
        for (int64_t r = 0; r < results; r++) next[matrix_of(r)]++;
        int64_t first = 0;
        for (int64_t matrix = 0; matrix < (int64_t) next.size(); matrix++) {
            const int64_t tokens = next[matrix];
            next[matrix]         = first * group;
            if (!tokens) continue;
            *parts++ = { matrix, first, tokens };
            first += (tokens + group - 1) / group;
        }
        *parts = {};
        for (int64_t r = 0; r < results; r++) places[r] = next[matrix_of(r)]++;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const layout  at(op);
        char * const  memory  = (char *) params->wdata;
        auto * const  rounded = (activations16 *) memory;
        auto * const  out     = (float **) (memory + at.out);
        auto * const  places  = (int32_t *) (memory + at.places);
        auto * const  sorted  = (part *) (memory + at.parts);
        auto * const  outliers = (outlier *) (memory + at.outliers);
        auto * const  counts  = (int32_t *) (memory + at.counts);
        const int64_t blocks = w->ne[0] / block, groups = w->ne[1] / rows, most = most_outliers(blocks);
        const bool    has_experts = op->op == ggml_op_mul_mat_id;
        if (has_experts) {
            if (params->ith == 0) sort(op, places, sorted);
            barrier(params->threadpool);
        }
        for (int64_t r = params->ith; r < at.results; r += params->nth) {
            // A token of several experts is rounded for each: that is little beside its products.
            const int64_t row   = has_experts ? r / op->ne[1] * x->ne[1] + r % op->ne[1] % x->ne[1] : r;
            const int64_t place = has_experts ? places[r] : r;
            const auto    from  = (const float *) row_at(x, row);
            outlier * const own = outliers + place * most;
            counts[place] = quantize(from, rounded + place / group * blocks, place % group, blocks, own);
            out[place]    = (float *) row_at(op, r);
            for (int32_t i = 0; i < counts[place]; i++) own[i].out = out[place];
        }
        const part         whole = { 0, 0, at.results };
        const part * const parts = has_experts ? sorted : &whole;
        int64_t            count = 1;
        while (has_experts && parts[count].tokens) count++;
        // One thread reads all weights in order. Experts have unequal numbers of tokens, so their chunks are smaller.
        const int64_t wanted = params->nth == 1 ? count : params->nth * (has_experts ? 8 : 4);
        const int64_t chunk  = std::min(groups, std::max<int64_t>(1, groups * count / wanted));
        const int64_t chunks = (groups + chunk - 1) / chunk;
        shared_loop   loop(memory + at.loop, params, count * chunks);
        for (int64_t c = loop.take(); c >= 0; c = loop.take()) {
            const part &  one   = parts[c / chunks];
            const int64_t first = c % chunks * chunk;
            const auto    multiply = has_amx && one.tokens >= amx_tokens ? multiply_amx : multiply_vnni;
            multiply({ (const weights16 *) w->data + (one.matrix * groups + first) * blocks, blocks,
                       std::min(chunk, groups - first), rounded + one.first * blocks, one.tokens,
                       out + one.first * group, first * rows, counts + one.first * group,
                       outliers + one.first * group * most, most });
        }
        return true;
    }
};

}  // namespace

bool is_eight_bit_product(const ggml_tensor * op) {
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    const bool has_experts = op->op == ggml_op_mul_mat_id;
    if (!has_experts && (op->op != ggml_op_mul_mat || w->ne[2] != 1)) return false;
    return w->type == ggml_type_q8_0 && w->ne[3] == 1 && w->ne[0] % block == 0 && w->ne[1] % rows == 0 &&
           x->type == ggml_type_f32 && x->nb[0] == sizeof(float);
}

ggml::cpu::tensor_traits * eight_bit_traits() {
    static traits one;
    return &one;
}

void interleave(ggml_tensor * tensor, const void * data) {
    const auto *  from   = (const q8_0 *) data;
    auto *        to     = (weights16 *) tensor->data;
    const int64_t blocks = tensor->ne[0] / block;
    for (int64_t g = 0; g < tensor->ne[1] * tensor->ne[2] / rows; g++, from += rows * blocks)
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
