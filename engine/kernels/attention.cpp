// Attention to a KV cache in 16 or in eight bits, on x64 processors.
//
// ggml reads the cache once for each query head and adds values up in 16 bits. Here four or 32 rows (the query heads
// that share keys in grouped-query attention, and tokens of a sequence) read 16 keys together, and sums have 32 bits.
// The softmax is computed online (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), in parts
// of 512 keys that are combined in order. So a token's result is the same to the bit whatever else is in its batch, and
// however many threads there are.
#include "attention.h"

#include <cstring>

#include "kernels.h"

namespace {

constexpr int length_max = 256;  // of a head
/** So many rows that are left are computed as 32: two passes over the keys for four rows each take as long. */
constexpr int64_t rows_padded = 9;
/** Keys whose products are computed together, so that enough of them are under way. */
constexpr int keys_together = 16 / width;

/** `R` rows with the keys from `begin` to `end`. */
template <int D, int R, typename Rows>
void attend(const view & cache, const float * const * q, const uint16_t * const * mask, int64_t begin, int64_t end,
            partial & out) {
    static_assert(D <= length_max);
    constexpr int V = D / 16, S = slices_for(D, R), J = keys_together;
    // Stands for a key that nobody sees, as it may never have been written.
    static constexpr char unseen[2 * length_max] = {};
    lanes                     sum[R][V];
    float                     max[R], total[R];
    for (int r = 0; r < R; r++) {
        max[r]   = -INFINITY;
        total[r] = 0;
        for (int i = 0; i < V; i++) sum[r][i] = all(0);
    }
    for (int64_t at = begin; at < end; at += keys) {
        const int count = (int) std::min(keys, end - at);
        lanes     m[R];
        unsigned  seen = 0;
        for (int r = 0; r < R; r++) {
            m[r] = mask[r] ? widen(load_halves(mask[r] + at, count)) : all(0);
            seen |= bits_unequal(m[r], all(-INFINITY), count);
        }
        if (!seen) continue;
        // The next keys and values: rows of other heads lie between them, so the processor sees no stream by itself.
        for (int64_t j = at + keys; j < std::min(end, at + 2 * keys); j++)
            for (int line = 0; line < Rows::bytes(D); line += 64) {
                prefetch_line(cache.k + j * cache.k_stride + line);
                prefetch_line(cache.v + j * cache.v_stride + line);
            }
        vector products[R][keys];
        for (int j = 0; j < keys; j += J) {
            if (!(seen >> j & ((1u << J) - 1))) {
                for (int r = 0; r < R; r++)
                    for (int t = 0; t < J; t++) products[r][j + t] = all_vector(0);
                continue;
            }
            const char * key[J];
            for (int t = 0; t < J; t++)
                key[t] = seen >> (j + t) & 1 ? cache.k + (at + j + t) * cache.k_stride : unseen;
            vector product[R][J];
            for (int t = 0; t < J; t++) {
                const vector k = Rows::load_some(key[t], 0);
                for (int r = 0; r < R; r++) product[r][t] = multiply(k, load_vector(q[r]));
            }
#pragma GCC unroll 8
            for (int i = width; i < D; i += width)
                for (int t = 0; t < J; t++) {
                    const vector k = Rows::load_some(key[t], i);
                    for (int r = 0; r < R; r++)
                        product[r][t] = multiply_add(k, load_vector(q[r] + i), product[r][t]);
                }
            for (int r = 0; r < R; r++)
                for (int t = 0; t < J; t++) products[r][j + t] = product[r][t];
        }
        alignas(64) float weight[R][keys];
        for (int r = 0; r < R; r++) {
            const lanes score = select(first_lanes(count), multiply_add(sums_of(products[r]), all(cache.scale), m[r]),
                                       all(-INFINITY));
            const float top   = std::max(max[r], reduce_max(score));
            if (top == -INFINITY) {
                store(weight[r], all(0));
                continue;
            }
            const lanes w = exp_of(subtract(score, all(top)));
            if (top > max[r]) {
                const float shrink = max[r] == -INFINITY ? 0 : exp_of(max[r] - top);
                total[r] *= shrink;
                for (int i = 0; i < V; i++) sum[r][i] = multiply(sum[r][i], all(shrink));
                max[r] = top;
            }
            total[r] += reduce_add(w);
            store(weight[r], w);
        }
        for (int s = 0; s < V; s += S) {
            lanes some[R][S];
            for (int r = 0; r < R; r++)
                for (int i = 0; i < S; i++) some[r][i] = sum[r][s + i];
            for (int j = 0; j < count; j++) {
                if (!(seen >> j & 1)) continue;
                const char * value = cache.v + (at + j) * cache.v_stride;
                for (int i = 0; i < S; i++) {
                    const lanes v = Rows::load(value, 16 * (s + i));
                    for (int r = 0; r < R; r++) some[r][i] = multiply_add(v, all(weight[r][j]), some[r][i]);
                }
            }
            for (int r = 0; r < R; r++)
                for (int i = 0; i < S; i++) sum[r][s + i] = some[r][i];
        }
    }
    for (int r = 0; r < R; r++) {
        out.max[r]     = max[r];
        out.weights[r] = total[r];
        for (int i = 0; i < V; i++) store(out.values() + r * D + 16 * i, sum[r][i]);
    }
}

template <int D, typename Rows> attend_function attend_for(int count) {
    switch (count) {
        case 1: return attend<D, 1, Rows>;
        case 2: return attend<D, 2, Rows>;
        case 3: return attend<D, 3, Rows>;
        default: return attend<D, 4, Rows>;
    }
}

template <typename Rows> attend_function attend_for(int64_t length, int count) {
    switch (length) {
        case 64: return attend_for<64, Rows>(count);
        case 80: return Rows::block == 1 ? attend_for<80, half_rows>(count) : nullptr;
        case 96: return attend_for<96, Rows>(count);
        case 128: return attend_for<128, Rows>(count);
        case 192: return attend_for<192, Rows>(count);
        case 256: return attend_for<256, Rows>(count);
        default: return nullptr;
    }
}

attend_function attend_for(int64_t length, int type, int count) {
    return type == ggml_type_q8_0 ? attend_for<eight_bit_cache_rows>(length, count) :
                                    attend_for<half_rows>(length, count);
}

/** Rows that share keys, and how they are divided into tasks. */
struct division {
    int64_t sharing;  // query heads with the same keys
    int64_t rows;     // pairs of such a head and a token
    attend_tiles_function tiles;  // null: without them
    int64_t most, few;  // rows of a group, and of one of the rest
    int64_t many;       // groups of the most rows; the last may have fewer
    int64_t groups;     // these, and the rest
    int64_t tasks;      // groups of all heads of keys and of all streams
    int64_t parts;      // of the keys
    bool    is_split;   // each part is a unit of work: there are too few tasks for the threads
    size_t  partial_bytes;

    division(const ggml_tensor * op, int threads) {
        const ggml_tensor *q = op->src[0], *k = op->src[1];
        sharing  = q->ne[2] / k->ne[2];
        rows     = sharing * q->ne[1];
        tiles    = attend_tiles_for(q->ne[0], k->type);
        most     = tiles ? rows_tiles : rows_many;
        few      = tiles ? rows_tiles : rows_few;
        many     = rows / most + (!tiles && rows % most >= rows_padded);
        groups   = many + (std::max<int64_t>(0, rows - many * most) + few - 1) / few;
        tasks    = groups * k->ne[2] * q->ne[3];
        parts    = (k->ne[1] + part_keys - 1) / part_keys;
        is_split = parts > 1 && tasks < 4 * threads;
        partial_bytes = partial::bytes(q->ne[0], many && !tiles ? most : std::min(most, (rows + 15) / 16 * 16));
    }
};

class group {
    const ggml_tensor *op, *q, *k, *v, *mask;
    const division &   by;
    const bool         is_many;
    const int64_t      first, head_of_keys, stream;

    int64_t head_of(int row) const { return head_of_keys * by.sharing + (first + row) % by.sharing; }
    int64_t token_of(int row) const { return (first + row) / by.sharing; }

  public:
    const int count;

    group(const ggml_tensor * op, const division & by, int64_t task) :
        op(op),
        q(op->src[0]),
        k(op->src[1]),
        v(op->src[2]),
        mask(op->src[3]),
        by(by),
        is_many(task % by.groups < by.many),
        first(std::min(task % by.groups, by.many) * by.most +
              std::max<int64_t>(0, task % by.groups - by.many) * by.few),
        head_of_keys(task / by.groups % op->src[1]->ne[2]),
        stream(task / (by.groups * op->src[1]->ne[2])),
        count((int) std::min(is_many ? by.most : by.few, by.rows - first)) {}

    void attend(int64_t part, partial & out) const {
        const float *    query[rows_tiles];
        const uint16_t * seen[rows_tiles];
        for (int r = 0; r < count; r++) {
            const int64_t head = head_of(r), token = token_of(r);
            query[r] = (const float *) ((char *) q->data + token * q->nb[1] + head * q->nb[2] + stream * q->nb[3]);
            seen[r]  = nullptr;
            if (!mask) continue;
            const int64_t of_head = head % mask->ne[2] * mask->nb[2], of_stream = stream % mask->ne[3] * mask->nb[3];
            seen[r] = (const uint16_t *) ((char *) mask->data + token * mask->nb[1] + of_head + of_stream);
        }
        const int64_t source = stream / (q->ne[3] / k->ne[3]);
        const char *  k_data = (char *) k->data + head_of_keys * k->nb[2] + source * k->nb[3];
        const char *  v_data = (char *) v->data + head_of_keys * v->nb[2] + source * v->nb[3];
        view          cache  = { k_data, v_data, k->nb[1], v->nb[1], 0 };
        memcpy(&cache.scale, op->op_params, sizeof(cache.scale));
        const int64_t begin = part * part_keys, end = std::min(k->ne[1], begin + part_keys);
        if (by.tiles) return by.tiles(cache, query, seen, count, begin, end, out);
        if (is_many) {
            std::fill(query + count, query + rows_many, query[0]);
            std::fill(seen + count, seen + rows_many, seen[0]);
        }
        const auto attend = is_many ? attend_many_for(q->ne[0], k->type) : attend_for(q->ne[0], k->type, count);
        attend(cache, query, seen, begin, end, out);
    }

    void write(const partial & result) const {
        const int64_t length = q->ne[0];
        for (int r = 0; r < count; r++) {
            const int64_t row = stream * op->ne[2] * op->ne[1] + head_of(r) + token_of(r) * op->ne[1];
            float *       out = (float *) ((char *) op->data + row * op->nb[1]);
            const lanes   scale = all(result.weights[r] == 0 ? 0 : 1 / result.weights[r]);
            for (int64_t i = 0; i < length; i += 16)
                store(out + i, multiply(load(result.values() + r * length + i), scale));
        }
    }
};

class traits : public ggml::cpu::tensor_traits {
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override {
        // Two for each thread; or one for each part, of which there are no more to keep with fewer threads.
        const division by(op, threads);
        const int64_t  partials = std::max<int64_t>(2 * threads, by.is_split ? by.tasks * by.parts : 0);
        size = shared_loop::bytes + partials * by.partial_bytes;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const division by(op, params->nth);
        const int64_t  length  = op->src[0]->ne[0];
        const auto     partial_at = [&](int64_t index) -> partial & {
            return *(partial *) ((char *) params->wdata + shared_loop::bytes + index * by.partial_bytes);
        };
        if (by.is_split) {
            shared_loop loop(params->wdata, params, by.tasks * by.parts);
            for (int64_t unit = loop.take(); unit >= 0; unit = loop.take())
                group(op, by, unit / by.parts).attend(unit % by.parts, partial_at(unit));
            barrier(params->threadpool);
            for (int64_t task = params->ith; task < by.tasks; task += params->nth) {
                const group rows(op, by, task);
                partial &   result = partial_at(task * by.parts);
                for (int64_t part = 1; part < by.parts; part++)
                    result.add(partial_at(task * by.parts + part), rows.count, length);
                rows.write(result);
            }
            return true;
        }
        shared_loop loop(params->wdata, params, by.tasks);
        partial &   result = partial_at(2 * params->ith), &next = partial_at(2 * params->ith + 1);
        for (int64_t task = loop.take(); task >= 0; task = loop.take()) {
            const group rows(op, by, task);
            rows.attend(0, result);
            for (int64_t part = 1; part < by.parts; part++) {
                rows.attend(part, next);
                result.add(next, rows.count, length);
            }
            rows.write(result);
        }
        return true;
    }
};

}  // namespace

template <typename Rows> static bool is_rows(const ggml_tensor * t) {
    return t->type == Rows::type && t->nb[0] == (size_t) Rows::bytes(Rows::block);
}

bool is_attention(const ggml_tensor * op) {
    if (op->op != ggml_op_flash_attn_ext) return false;
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    float              others[2];  // a bias by distance (ALiBi), and a bound on scores
    memcpy(others, op->op_params + 1, sizeof(others));
    return others[0] == 0 && others[1] == 0 && !op->src[4] && q->ne[0] == v->ne[0] && q->type == ggml_type_f32 &&
           (is_rows<half_rows>(k) || is_rows<eight_bit_cache_rows>(k)) && v->type == k->type && v->nb[0] == k->nb[0] &&
           attend_for(q->ne[0], k->type, 1) && q->nb[0] == 4 && q->ne[2] % k->ne[2] == 0 && k->ne[2] == v->ne[2] &&
           q->ne[3] % k->ne[3] == 0 && k->ne[3] == v->ne[3] &&
           (!mask || (mask->type == ggml_type_f16 && mask->nb[0] == 2));
}

ggml::cpu::tensor_traits * attention_traits() {
    static traits one;
    return &one;
}
