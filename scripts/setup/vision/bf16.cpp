#include "bf16.h"

// Older compilers do not know the instructions.
#if !defined(__x86_64__) || defined(__clang__) || __GNUC__ < 10

ggml_tensor * bf16_linear(ggml_context *, ggml_tensor *, ggml_tensor *) { return nullptr; }
ggml_tensor * bf16_gelu(ggml_context *, const ggml_tensor *, ggml_tensor *) { return nullptr; }
ggml_tensor * bf16_attention(ggml_context *, const ggml_tensor *, ggml_tensor *, ggml_tensor *, ggml_tensor *,
                             ggml_tensor *, float) {
    return nullptr;
}

#else

#define KERNELS_AVX512
#include "bfloat16.h"
#include "ggml-backend.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace {

bool is_supported(const ggml_tensor * weights) {
    static const bool has_instructions = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                                         __builtin_cpu_supports("avx512bf16");
    return has_instructions && weights && weights->buffer && ggml_backend_buffer_is_host(weights->buffer);
}

/** A file in float32 is computed as it is. */
bool is_rounded(const ggml_tensor * weights) { return is_supported(weights) && weights->type != GGML_TYPE_F32; }

/** Memory of a thread, kept for its next operation. */
struct Scratch {
    void * data = nullptr;
    size_t size = 0;
    ~Scratch() { free(data); }
    void * get(size_t wanted) {
        if (wanted > size) {
            free(data);
            size = (wanted + 4095) / 4096 * 4096;
            data = aligned_alloc(64, size);
            if (!data) throw std::bad_alloc();
        }
        return data;
    }
};
thread_local Scratch scratches[7];
template <typename T> T * scratch(int index, size_t count) {
    return static_cast<T *>(scratches[index].get(count * sizeof(T)));
}

int round_up(int value, int to) { return (value + to - 1) / to * to; }

/** What a worker of `count` does of `all`. */
struct Range {
    int first, end;
    Range(int all, int worker, int count)
        : first((int) ((int64_t) all * worker / count)), end((int) ((int64_t) all * (worker + 1) / count)) {}
};

using namespace bfloat16;

void to_bf16(const float * from, int count, int padded, uint16_t * to) { round_row<Native>(from, count, padded, to); }

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512bf16")

__m512 exponential(__m512 x) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-100.0f)), _mm512_set1_ps(80.0f));
    const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693145752f), x);
    rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(1.42860677e-6f), rest);
    // The series to the fifth power: the result is rounded to bfloat16.
    __m512 sum = _mm512_set1_ps(1.0f / 120);
    for (const float factor : {1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
    return _mm512_scalef_ps(sum, whole);
}

/** Exponentials of scaled `scores` less their highest, of `count` positions, in bfloat16; returns their sum. */
float exponentials(float * scores, const float * mask, int count, int padded, float scale, uint16_t * to) {
    const __m512 scales = _mm512_set1_ps(scale), lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 highest = lowest;
    for (int i = 0; i < padded; i += 16) {
        const int left = std::max(0, std::min(16, count - i));
        const __mmask16 inside = (__mmask16) ((1u << left) - 1);
        __m512 score = _mm512_mul_ps(_mm512_loadu_ps(scores + i), scales);
        if (mask) score = _mm512_add_ps(score, _mm512_maskz_loadu_ps(inside, mask + i));
        score = _mm512_mask_blend_ps(inside, lowest, score);
        _mm512_storeu_ps(scores + i, score);
        highest = _mm512_max_ps(highest, score);
    }
    const __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < padded; i += 16) {
        const __m512 value = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), most));
        const __m256bh rounded = _mm512_cvtneps_pbh(value);
        memcpy(to + i, &rounded, 32);
        sum = _mm512_add_ps(sum, value);
    }
    return _mm512_reduce_add_ps(sum);
}

/** The approximation of GELU by the hyperbolic tangent, in place. */
void gelu(float * numbers, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 inside = (__mmask16) (count - i >= 16 ? 0xffff : (1u << (count - i)) - 1);
        const __m512 x = _mm512_maskz_loadu_ps(inside, numbers + i);
        const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
        const __m512 inner = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
        const __m512 power = exponential(_mm512_mul_ps(inner, _mm512_set1_ps(-2 * 0.79788456f)));
        _mm512_mask_storeu_ps(numbers + i, inside, _mm512_div_ps(x, _mm512_add_ps(power, _mm512_set1_ps(1.0f))));
    }
}

/** Narrows the positions from `first` to `end` to those between the outermost that the row of a mask shows. */
void show(const float * mask, int positions, int & first, int & end) {
    const __m512 hidden = _mm512_set1_ps(-1e30f);
    const auto shown = [&](int at) {
        const int left = std::min(16, positions - at);
        const __mmask16 inside = (__mmask16) ((1u << left) - 1);
        return _mm512_mask_cmp_ps_mask(inside, _mm512_maskz_loadu_ps(inside, mask + at), hidden, _CMP_GT_OQ) != 0;
    };
    for (int at = 0; at < first; at += 16)
        if (shown(at)) first = at;
    for (int at = (positions - 1) / 16 * 16; at >= end; at -= 16)
        if (shown(at)) end = at + 16;
}

#pragma GCC pop_options

void pack(ggml_tensor * w) {
    const int inputs = w->ne[0], outputs = w->ne[1];
    const size_t count = (size_t) inputs * outputs;
    uint16_t * packed = static_cast<uint16_t *>(malloc(count * 2));
    float * row = static_cast<float *>(malloc(inputs * sizeof(float)));
    ggml_bf16_t * rounded = static_cast<ggml_bf16_t *>(malloc(inputs * sizeof(ggml_bf16_t)));
    if (!packed || !row || !rounded) throw std::bad_alloc();
    for (int output = 0; output < outputs; ++output) {
        const void * from = static_cast<const char *>(w->data) + output * w->nb[1];
        if (w->type == GGML_TYPE_F16) {
            ggml_fp16_to_fp32_row(static_cast<const ggml_fp16_t *>(from), row, inputs);
            ggml_fp32_to_bf16_row(row, rounded, inputs);
        } else {
            memcpy(rounded, from, inputs * sizeof(ggml_bf16_t));
        }
        uint16_t * to = packed + (size_t) (output / panel_outputs) * inputs * panel_outputs;
        for (int input = 0; input < inputs; ++input)
            to[place_of(input, output)] = rounded[input].bits;
    }
    memcpy(w->data, packed, count * 2);
    free(packed);
    free(row);
    free(rounded);
    // Read by nothing else of a weight.
    w->op_params[0] = 1;
}

void compute_linear(ggml_tensor * out, int worker, int workers, void *) {
    const ggml_tensor *w = out->src[0], *x = out->src[1];
    const int inputs = w->ne[0], panels = w->ne[1] / panel_outputs, all = x->ne[1] * x->ne[2] * x->ne[3];
    // Few rows are shared by all workers, which have some of the outputs each.
    const bool by_rows = all >= workers * block_rows;
    const Range rows = by_rows ? Range(all, worker, workers) : Range(all, 0, 1);
    const Range part = by_rows ? Range(panels, 0, 1) : Range(panels, worker, workers);
    const size_t outputs = w->ne[1], panel = (size_t) inputs * panel_outputs;
    const Rows<const uint16_t> panels_of_part{(const uint16_t *) w->data + part.first * panel, panel};
    const Rows<uint16_t> a{scratch<uint16_t>(0, (size_t) chunk_rows * inputs), (size_t) inputs};
    for (int first = rows.first; first < rows.end; first += chunk_rows) {
        const int count = std::min(chunk_rows, rows.end - first);
        for (int row = 0; row < count; ++row)
            to_bf16((const float *) ((const char *) x->data + (first + row) * x->nb[1]), inputs, inputs, a.at(row));
        product<Native>(count, part.end - part.first, {a.first, a.stride}, panels_of_part, inputs / 2,
                {(float *) out->data + first * outputs + part.first * panel_outputs, outputs});
    }
}

void compute_gelu(ggml_tensor * out, int worker, int workers, void *) {
    const int64_t count = ggml_nelements(out), first = count * worker / workers, end = count * (worker + 1) / workers;
    gelu((float *) out->data + first, end - first);
}

/** Row `position` of one head. */
const float * row_of(const ggml_tensor * t, int head, int position, int batch) {
    return (const float *) ((const char *) t->data + head * t->nb[1] + position * t->nb[2] + batch * t->nb[3]);
}

/** Packs keys as the weights of the scores, and values as those of the result. */
void pack_keys_and_values(const ggml_tensor * k, const ggml_tensor * v, int head, int batch, int padded_size,
                          int padded_positions, Rows<uint16_t> keys, Rows<uint16_t> values) {
    const int size = k->ne[0], positions = k->ne[2];
    uint16_t * row = scratch<uint16_t>(6, padded_size);
    for (int position = 0; position < padded_positions; ++position) {
        const bool is_inside = position < positions;
        if (is_inside) to_bf16(row_of(k, head, position, batch), size, padded_size, row);
        else memset(row, 0, padded_size * 2);
        uint16_t * panel = keys.at(position / panel_outputs);
        for (int i = 0; i < padded_size; i += 2)
            memcpy(panel + (i / 2 * panel_outputs + position % panel_outputs) * 2, row + i, 4);
        if (is_inside) to_bf16(row_of(v, head, position, batch), size, padded_size, row);
        for (int i = 0; i < padded_size; ++i)
            values.at(i / panel_outputs)[place_of(position, i)] = row[i];
    }
}

void compute_attention(ggml_tensor * out, int worker, int workers, void * scale_bits) {
    const ggml_tensor *q = out->src[0], *k = out->src[1], *v = out->src[2], *mask = out->src[3];
    const uint32_t bits = (uint32_t) (uintptr_t) scale_bits;
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    const int size = q->ne[0], heads = q->ne[1], positions = q->ne[2], units = heads * (int) q->ne[3];
    const int padded_size = round_up(size, panel_outputs), padded = round_up(positions, panel_outputs);
    // With more workers than heads, some work on the same one, and pack its keys each.
    const int shares = units % workers == 0 ? 1 : std::max(1, std::min(2 * workers / units + 2, positions / 64));
    const Range part(units * shares, worker, workers);
    const size_t key_panel = (size_t) padded_size * panel_outputs, value_panel = (size_t) padded * panel_outputs;
    const Rows<uint16_t> keys{scratch<uint16_t>(0, (size_t) padded * padded_size), key_panel};
    const Rows<uint16_t> values{scratch<uint16_t>(1, (size_t) padded * padded_size), value_panel};
    const Rows<uint16_t> queries{scratch<uint16_t>(2, block_rows * padded_size), (size_t) padded_size};
    const Rows<float> scores{scratch<float>(3, block_rows * padded), (size_t) padded};
    const Rows<uint16_t> weights{scratch<uint16_t>(4, block_rows * padded), (size_t) padded};
    const Rows<float> result{scratch<float>(5, block_rows * padded_size), (size_t) padded_size};
    int packed = -1;
    for (int unit = part.first; unit < part.end; ++unit) {
        const int head = unit / shares % heads, batch = unit / shares / heads;
        if (packed != unit / shares) {
            packed = unit / shares;
            pack_keys_and_values(k, v, head, batch, padded_size, padded, keys, values);
        }
        const Range range(positions, unit % shares, shares);
        for (int first = range.first; first < range.end; first += block_rows) {
            const int rows = std::min(block_rows, range.end - first);
            const auto mask_of = [&](int row) {
                return (const float *) ((const char *) mask->data + (first + row) * mask->nb[1]);
            };
            // A window's positions are next to each other.
            int from = 0, to = padded;
            if (mask) {
                from = padded, to = 0;
                for (int row = 0; row < rows; ++row) show(mask_of(row), positions, from, to);
            }
            for (int row = 0; row < rows; ++row)
                to_bf16(row_of(q, head, first + row, batch), size, padded_size, queries.at(row));
            product<Native>(rows, (to - from) / panel_outputs, {queries.first, queries.stride},
                    {keys.at(from / panel_outputs), keys.stride}, padded_size / 2, scores);
            float sums[block_rows];
            for (int row = 0; row < rows; ++row)
                sums[row] = exponentials(scores.at(row), mask ? mask_of(row) + from : nullptr,
                                         std::min(to, positions) - from, to - from, scale, weights.at(row));
            product<Native>(rows, padded_size / panel_outputs, {weights.first, weights.stride},
                    {values.first + (size_t) from * panel_outputs, values.stride}, (to - from) / 2, result);
            for (int row = 0; row < rows; ++row) {
                float * to = (float *) out->data + (((size_t) batch * positions + first + row) * heads + head) * size;
                for (int i = 0; i < size; ++i) to[i] = result.at(row)[i] / sums[row];
            }
        }
    }
}

} // namespace

ggml_tensor * bf16_linear(ggml_context * ctx, ggml_tensor * w, ggml_tensor * x) {
    const bool fits = is_supported(w) && (w->type == GGML_TYPE_F16 || w->type == GGML_TYPE_BF16) &&
                      w->op == GGML_OP_NONE && w->data && !w->view_src && ggml_is_contiguous(w) && ggml_n_dims(w) == 2 && w->ne[0] % 16 == 0 &&
                      w->ne[1] % panel_outputs == 0 && x->type == GGML_TYPE_F32 && ggml_is_contiguous(x);
    if (!fits) {
        GGML_ASSERT(!w || w->op != GGML_OP_NONE || w->op_params[0] == 0);
        return nullptr;
    }
    if (w->op_params[0] == 0) pack(w);
    ggml_tensor * args[] = {w, x};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, w->ne[1], x->ne[1], x->ne[2], x->ne[3], args, 2, compute_linear,
                          GGML_N_TASKS_MAX, nullptr);
}

ggml_tensor * bf16_attention(ggml_context * ctx, const ggml_tensor * weights, ggml_tensor * q, ggml_tensor * k,
                             ggml_tensor * v, ggml_tensor * mask, float scale) {
    const auto is_rows = [&](const ggml_tensor * t) {
        return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && ggml_are_same_shape(t, q);
    };
    if (!is_rounded(weights) || !is_rows(q) || !is_rows(k) || !is_rows(v)) return nullptr;
    if (mask && (mask->type != GGML_TYPE_F32 || mask->ne[0] != q->ne[2] || ggml_nrows(mask) != q->ne[2]))
        return nullptr;
    uint32_t bits;
    memcpy(&bits, &scale, sizeof(bits));
    ggml_tensor * args[] = {q, k, v, mask};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, q->ne[0] * q->ne[1], q->ne[2] * q->ne[3], 1, 1, args, mask ? 4 : 3,
                          compute_attention, GGML_N_TASKS_MAX, (void *) (uintptr_t) bits);
}

ggml_tensor * bf16_gelu(ggml_context * ctx, const ggml_tensor * weights, ggml_tensor * x) {
    if (!is_rounded(weights) || x->type != GGML_TYPE_F32 || !ggml_is_contiguous(x)) return nullptr;
    return ggml_custom_inplace(ctx, x, nullptr, 0, compute_gelu, GGML_N_TASKS_MAX, nullptr);
}

#endif
