// Products with the two factors of an adapter (LoRA) in 16 bits: a few long rows, and many short ones. They are small,
// so a general product spends most of its time on its edges. Activations keep 32 bits.
#include <algorithm>

#include "kernels.h"
#include "lanes.h"

namespace {

constexpr int64_t rank_max = 64;
constexpr int     sums_max   = width == 16 ? 16 : 12;  // of a block of the first factor: in registers
constexpr int     tokens_max = sums_max / 2;           // of such a block
constexpr int     together   = 16;                     // tokens that rows of the second one are read for
constexpr int     tokens_few = width == 16 ? 1 : 3;    // of these at once, as many as have sums in registers
constexpr int     ahead      = 4;                      // groups of 16 rows of the second one

/** Rows of the first factor that are read for this many tokens. */
constexpr int rows_for(int tokens) { return tokens > sums_max / 4 ? 2 : 4; }

/** Neighbouring long rows with `T` tokens. The order of a sum does not depend on `T`. */
template <int T> void long_rows(const uint16_t * w, const float * const * x, int64_t length, float * const * out) {
    constexpr int R = rows_for(T);
    vector        sum[16];
    for (int i = 0; i < 16; i++) sum[i] = all_vector(0);
    for (int64_t at = 0; at < length; at += width) {
        vector a[T];
        for (int t = 0; t < T; t++) a[t] = load_vector(x[t] + at);
        for (int r = 0; r < R; r++) {
            const uint16_t * row = w + r * length + at;
            // The next rows, and after the last ones the second factor: llama.cpp puts it there.
            prefetch_line(row + R * length);
            const vector one = widen_vector(row);
            for (int t = 0; t < T; t++) sum[t * R + r] = multiply_add(one, a[t], sum[t * R + r]);
        }
    }
    float sums[16];
    store(sums, sums_of(sum));
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) out[t][r] = sums[t * R + r];
}

using long_rows_function = void (*)(const uint16_t *, const float * const *, int64_t, float * const *);
template <int T> long_rows_function long_rows_of(int tokens) {
    if constexpr (T > 1)
        if (tokens < T) return long_rows_of<T - 1>(tokens);
    return long_rows<T>;
}

/** 16 rows of the second factor, as columns, with 16 numbers of `T` tokens. `is_first`: of all. */
template <int T>
void short_rows(const lanes * columns, const float * const * x, int64_t at, bool is_first, float * const * out,
                int64_t row) {
    lanes even[T], odd[T];
    for (int t = 0; t < T; t++) {
        even[t] = is_first ? all(0) : load(out[t] + row);
        odd[t]  = all(0);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2)
#pragma GCC unroll 3
        for (int t = 0; t < T; t++) {
            even[t] = multiply_add(columns[i], all(x[t][at + i]), even[t]);
            odd[t]  = multiply_add(columns[i + 1], all(x[t][at + i + 1]), odd[t]);
        }
    for (int t = 0; t < T; t++) store(out[t] + row, add(even[t], odd[t]));
}

/** What a thread computes: its tokens with all rows, or of few tokens its rows. */
struct share {
    int64_t begin, end;  // of its tokens
    int     ith, nth;    // which part of the rows

    share(const ggml_compute_params * params, int64_t tokens) :
        begin(0), end(tokens), ith(params->ith), nth(params->nth) {
        if (tokens < 2 * nth) return;
        // The tokens of ggml's own operations before and after: the numbers stay in the thread's cache. Bringing them
        // from another core's costs more than reading the factors twice.
        const int64_t each = (tokens + nth - 1) / nth;
        begin              = std::min(each * ith, tokens);
        end                = std::min(begin + each, tokens);
        ith = 0, nth = 1;
    }
};

class traits : public ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }

    static void compute_long(const share & mine, ggml_tensor * op) {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const int64_t      rows = rows_for(1), blocks = w->ne[1] / rows;
        // All rows with the same tokens, which stay in the cache.
        const int64_t units = blocks * ((mine.end - mine.begin + tokens_max - 1) / tokens_max);
        for (int64_t unit = mine.ith; unit < units; unit += mine.nth) {
            const int64_t block = unit % blocks, first = mine.begin + unit / blocks * tokens_max;
            const int     count = (int) std::min<int64_t>(tokens_max, mine.end - first);
            const float * in[tokens_max];
            float *       out[tokens_max];
            for (int t = 0; t < count; t++) {
                in[t]  = (const float *) row_at(x, first + t);
                out[t] = (float *) row_at(op, first + t) + block * rows;
            }
            const auto * factor = (const uint16_t *) row_at(w, block * rows);
            for (int64_t r = 0; r < rows; r += rows_for(count)) {
                long_rows_of<tokens_max>(count)(factor + r * w->ne[0], in, w->ne[0], out);
                for (int t = 0; t < count; t++) out[t] += rows_for(count);
            }
        }
    }

    static void compute_short(const share & mine, ggml_tensor * op) {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const int64_t groups = w->ne[1] / 16;
        // Neighbouring groups for a thread: they share lines of the result.
        const int64_t begin = groups * mine.ith / mine.nth, end = groups * (mine.ith + 1) / mine.nth;
        for (int64_t first = mine.begin; first < mine.end; first += together) {
            const int     count = (int) std::min<int64_t>(together, mine.end - first);
            const float * in[together];
            float *       out[together];
            for (int t = 0; t < count; t++) {
                in[t]  = (const float *) row_at(x, first + t);
                out[t] = (float *) row_at(op, first + t);
            }
            for (int64_t g = begin; g < end; g++)
                for (int64_t at = 0; at < w->ne[0]; at += 16) {
                    lanes            columns[16];
                    const uint16_t * rows = (const uint16_t *) ((char *) w->data + g * 16 * w->nb[1]) + at;
                    if (first == mine.begin && g + ahead < end)
                        for (int64_t line = 0; line < 512; line += 64)
                            prefetch_line((const char *) (rows + ahead * 16 * w->ne[0]) + line);
                    for (int r = 0; r < 16; r++) columns[r] = widen(rows + r * (w->nb[1] / 2));
                    transpose(columns);
                    int t = 0;
                    for (; t + tokens_few <= count; t += tokens_few)
                        short_rows<tokens_few>(columns, in + t, at, at == 0, out + t, g * 16);
                    for (; t < count; t++) short_rows<1>(columns, in + t, at, at == 0, out + t, g * 16);
                }
        }
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const share mine(params, rows_of(op->src[1]));
        if (op->src[0]->ne[1] <= rank_max) compute_long(mine, op);
        else compute_short(mine, op);
        return true;
    }
};

}  // namespace

bool is_low_rank_product(const ggml_tensor * op) {
    if (op->op != ggml_op_mul_mat) return false;
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    return w->type == ggml_type_f16 && x->type == ggml_type_f32 && w->nb[0] == 2 && w->nb[1] == 2 * (size_t) w->ne[0] &&
           x->nb[0] == 4 && w->ne[2] == 1 && w->ne[3] == 1 && w->ne[0] % 16 == 0 && w->ne[1] % 16 == 0 &&
           (w->ne[1] <= rank_max || w->ne[0] <= rank_max);
}

ggml::cpu::tensor_traits * low_rank_traits() {
    static traits one;
    return &one;
}
