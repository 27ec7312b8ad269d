// Causal attention of documents packed into one sequence, and its gradients, in blocks that stay in the cache:
// Dao et al., "FlashAttention", 2022 (arXiv 2205.14135). Products in bfloat16, sums and softmax in float32.
//
// One thread computes all of a document's query heads that share a key head, so that the gradients of keys and values
// are added up in one order whatever the number of threads.
#include "documents.h"
#include "products.h"
#include "scratch.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

struct Shape {
    int64_t heads, key_heads, size;

    int64_t group() const { return heads / key_heads; }
    int64_t padded() const { return round_up(size); }
};

thread_local Scratch scratch;

/** Copies one head's rows of a document to [padded length, padded size], with zeros around and before `begin`. */
void gather(const bf16 * states, int64_t stride, const Document & document, int64_t begin, int64_t size, int64_t length,
            int64_t width, bf16 * to) {
    memset(to, 0, length * width * sizeof(bf16));
    for (int64_t i = begin; i < document.length(); ++i)
        memcpy(to + i * width, states + document.row(i) * stride, size * sizeof(bf16));
}

void write_row(const float * from, int64_t size, float scale, bf16 * to) {
    for (int64_t i = 0; i < size; i += 16)
        store(to + i, _mm512_mul_ps(load(from + i, first(size - i)), _mm512_set1_ps(scale)), first(size - i));
}

constexpr int64_t query_rows = 32;
/** More numbers from one row to the next: rows a power of two apart would share few lines of the cache. */
constexpr int64_t apart = 32;

void forward(const Document & document, const Shape & shape, int64_t key_head, float scale, Multiply multiply,
             const bf16 * states, int64_t stride, bf16 * out, float * log_sums, int64_t tokens) {
    const int64_t real = document.length(), length = round_up(real), width = shape.padded(), step = length + apart;
    scratch.reset((4 * length * width + query_rows * step) * sizeof(bf16) +
                  query_rows * (step + width) * sizeof(float) + 4096);
    bf16 * rows = scratch.take<bf16>(length * width);
    bf16 * keys = scratch.take<bf16>(length * width);
    bf16 * values = scratch.take<bf16>(length * width);
    bf16 * queries = scratch.take<bf16>(length * width);
    bf16 * weights = scratch.take<bf16>(query_rows * step);
    float * scores = scratch.take<float>(query_rows * step);
    float * result = scratch.take<float>(query_rows * width);
    gather(states + (shape.heads + key_head) * shape.size, stride, document, 0, shape.size, length, width, rows);
    pack_transposed(rows, width, width, length, keys);
    gather(states + (shape.heads + shape.key_heads + key_head) * shape.size, stride, document, 0, shape.size, length,
           width, rows);
    pack(rows, width, length, width, values);
    for (int64_t head = key_head * shape.group(); head < (key_head + 1) * shape.group(); ++head) {
        gather(states + head * shape.size, stride, document, document.first_query(), shape.size, length, width,
               queries);
        for (int64_t begin = document.first_query() / query_rows * query_rows; begin < real; begin += query_rows) {
            const int64_t seen = begin + query_rows;
            multiply({queries + begin * width, width, keys, width * panel_columns, scores, step, query_rows, seen,
                      width, false});
            float shares[query_rows];
            for (int64_t r = 0; r < query_rows; ++r) {
                const int64_t visible = begin + r + 1;
                float * row = scores + r * step;
                __m512 largest = _mm512_set1_ps(-INFINITY);
                for (int64_t i = 0; i < visible; i += 16)
                    largest = _mm512_mask_max_ps(largest, first(visible - i), largest, _mm512_loadu_ps(row + i));
                const float top = _mm512_reduce_max_ps(largest) * scale;
                __m512 sum = _mm512_setzero_ps();
                for (int64_t i = 0; i < seen; i += 16) {
                    const __mmask16 lanes = i < visible ? first(visible - i) : 0;
                    const __m512 scaled =
                        _mm512_fmsub_ps(_mm512_loadu_ps(row + i), _mm512_set1_ps(scale), _mm512_set1_ps(top));
                    const __m512 power = _mm512_maskz_mov_ps(lanes, exponential(scaled));
                    sum = _mm512_add_ps(sum, power);
                    _mm256_storeu_si256((__m256i *) (weights + r * step + i), narrow(power));
                }
                const float total = _mm512_reduce_add_ps(sum);
                shares[r] = 1.0f / total;
                const int64_t index = begin + r;
                if (index >= document.first_query() && index < real)
                    log_sums[head * tokens + document.row(index)] = top + std::log(total);
            }
            multiply({weights, step, values, length * panel_columns, result, width, query_rows, width, seen, false});
            for (int64_t index = std::max(begin, document.first_query()); index < std::min(seen, real); ++index)
                write_row(result + (index - begin) * width, shape.size, shares[index - begin],
                          out + (document.row(index) * shape.heads + head) * shape.size);
        }
    }
}

/** Keys and queries whose weights are computed together in the backward pass. */
constexpr int64_t key_rows = 64, query_columns = 256;

/**
 * From scores and the products of values with the results' gradients, both [keys, queries] with `step` numbers from row
 * to row and keys that begin `ahead` of the queries, to the weights and the gradients of scaled scores, the latter also
 * packed.
 */
void weigh(const float * scores, const float * products, const float * log_sums, const float * dots, int64_t ahead,
           int64_t keys, int64_t queries, int64_t step, float scale, bf16 * weights, bf16 * slopes,
           bf16 * slopes_packed) {
    for (int64_t key = 0; key < keys; key += 2)
        for (int64_t query = 0; query < queries; query += 16) {
            const __m512 log_sum = _mm512_loadu_ps(log_sums + query), dot = _mm512_loadu_ps(dots + query);
            __m256i pair[2];
            for (int64_t odd = 0; odd < 2; ++odd) {
                const int64_t at = (key + odd) * step + query, hidden = ahead + key + odd - query;
                const __mmask16 visible = hidden <= 0 ? 0xffff : (__mmask16) ~first(hidden);
                const __m512 scaled = _mm512_fmsub_ps(_mm512_loadu_ps(scores + at), _mm512_set1_ps(scale), log_sum);
                const __m512 weight = _mm512_maskz_mov_ps(visible, exponential(scaled));
                const __m512 slope = _mm512_mul_ps(weight, _mm512_sub_ps(_mm512_loadu_ps(products + at), dot));
                pair[odd] = narrow(slope);
                _mm256_storeu_si256((__m256i *) (weights + at), narrow(weight));
                _mm256_storeu_si256((__m256i *) (slopes + at), pair[odd]);
            }
            const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(pair[1]), 16);
            _mm512_storeu_si512(slopes_packed + query * keys + key * panel_columns,
                                _mm512_or_si512(_mm512_cvtepu16_epi32(pair[0]), upper));
        }
}

/** A document's gradients of one key head's keys and values go to `gradient`; of rows of a shared prefix, which other
 * documents also have, to `prefix_gradient` [prefix, 2, size] float32. */
void backward(const Document & document, const Shape & shape, int64_t key_head, float scale, Multiply multiply,
              const bf16 * states, int64_t stride, const bf16 * out, const float * log_sums, int64_t tokens,
              const bf16 * out_gradient, bf16 * gradient, int64_t gradient_stride, float * prefix_gradient) {
    const int64_t real = document.length(), length = round_up(real), width = shape.padded(), area = length * width;
    const int64_t step = length + apart, block_step = query_columns + apart, block = key_rows * block_step;
    scratch.reset((7 * area + width * step + 3 * block) * sizeof(bf16) +
                  (2 * area + width * step + 2 * length + 2 * block) * sizeof(float) + 4096);
    bf16 * keys = scratch.take<bf16>(area);
    bf16 * keys_transposed = scratch.take<bf16>(width * step);
    bf16 * values = scratch.take<bf16>(area);
    bf16 * rows = scratch.take<bf16>(area);
    bf16 * queries = scratch.take<bf16>(area);
    bf16 * queries_transposed = scratch.take<bf16>(area);
    bf16 * above = scratch.take<bf16>(area);
    bf16 * above_transposed = scratch.take<bf16>(area);
    float * key_gradient = scratch.take<float>(area);
    float * value_gradient = scratch.take<float>(area);
    float * query_gradient = scratch.take<float>(width * step);
    float * log_sum = scratch.take<float>(length);
    float * dots = scratch.take<float>(length);
    bf16 * weights = scratch.take<bf16>(block);
    bf16 * slopes = scratch.take<bf16>(block);
    bf16 * slopes_packed = scratch.take<bf16>(block);
    float * scores = scratch.take<float>(block);
    float * products = scratch.take<float>(block);
    gather(states + (shape.heads + key_head) * shape.size, stride, document, 0, shape.size, length, width, keys);
    for (int64_t row = 0; row < length; ++row)
        for (int64_t i = 0; i < width; ++i) keys_transposed[i * step + row] = keys[row * width + i];
    gather(states + (shape.heads + shape.key_heads + key_head) * shape.size, stride, document, 0, shape.size, length,
           width, values);
    memset(key_gradient, 0, area * sizeof(float));
    memset(value_gradient, 0, area * sizeof(float));
    for (int64_t head = key_head * shape.group(); head < (key_head + 1) * shape.group(); ++head) {
        const int64_t begin = document.first_query();
        gather(states + head * shape.size, stride, document, begin, shape.size, length, width, rows);
        pack(rows, width, length, width, queries);
        pack_transposed(rows, width, width, length, queries_transposed);
        gather(out_gradient + head * shape.size, shape.heads * shape.size, document, begin, shape.size, length, width,
               rows);
        pack(rows, width, length, width, above);
        pack_transposed(rows, width, width, length, above_transposed);
        for (int64_t i = 0; i < length; ++i) {
            // A row without a result has weights of zero.
            log_sum[i] = INFINITY;
            dots[i] = 0;
            if (i < begin || i >= real) continue;
            log_sum[i] = log_sums[head * tokens + document.row(i)];
            const bf16 * result = out + (document.row(i) * shape.heads + head) * shape.size;
            __m512 sum = _mm512_setzero_ps();
            for (int64_t j = 0; j < shape.size; j += 16) {
                const __mmask16 lanes = first(shape.size - j);
                sum = _mm512_fmadd_ps(load(result + j, lanes), load(rows + i * width + j, lanes), sum);
            }
            dots[i] = _mm512_reduce_add_ps(sum);
        }
        memset(query_gradient, 0, width * step * sizeof(float));
        for (int64_t key = 0; key < length; key += key_rows) {
            const int64_t held = std::min(key_rows, length - key);
            for (int64_t query = std::max(key, begin / side * side); query < length; query += query_columns) {
                const int64_t columns = std::min(query_columns, length - query);
                // Weights and their gradients [keys, queries]
                multiply({keys + key * width, width, queries_transposed + query * width, width * panel_columns, scores,
                          block_step, held, columns, width, false});
                multiply({values + key * width, width, above_transposed + query * width, width * panel_columns,
                          products, block_step, held, columns, width, false});
                weigh(scores, products, log_sum + query, dots + query, key - query, held, columns, block_step, scale,
                      weights, slopes, slopes_packed);
                const int64_t offset = query * panel_columns, panel = length * panel_columns;
                multiply({weights, block_step, above + offset, panel, value_gradient + key * width, width, held, width,
                          columns, true});
                multiply({slopes, block_step, queries + offset, panel, key_gradient + key * width, width, held, width,
                          columns, true});
                multiply({keys_transposed + key, step, slopes_packed, held * panel_columns, query_gradient + query,
                          step, width, columns, held, true});
            }
        }
        const __m512i lanes_apart = _mm512_mullo_epi32(
            _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32((int) step));
        for (int64_t i = begin; i < real; ++i)
            for (int64_t j = 0; j < shape.size; j += 16) {
                const __m512 column = _mm512_i32gather_ps(lanes_apart, query_gradient + j * step + i, 4);
                store(gradient + document.row(i) * gradient_stride + head * shape.size + j,
                      _mm512_mul_ps(column, _mm512_set1_ps(scale)), first(shape.size - j));
            }
    }
    for (int64_t i = 0; i < real; ++i)
        for (int64_t which = 0; which < 2; ++which) {
            const float * from = (which ? value_gradient : key_gradient) + i * width;
            const float factor = which ? 1.0f : scale;
            const int64_t head = shape.heads + which * shape.key_heads + key_head;
            if (i >= document.prefix) {
                write_row(from, shape.size, factor, gradient + document.row(i) * gradient_stride + head * shape.size);
                continue;
            }
            float * to = prefix_gradient + (2 * i + which) * shape.size;
            for (int64_t j = 0; j < shape.size; ++j) to[j] = factor * from[j];
        }
}

/** Runs `work(document, key_head)` for all, the longest documents first. */
template <typename Work> void for_each(const Document * documents, int64_t count, int64_t key_heads, Work work) {
    std::vector<int64_t> order(count);
    for (int64_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return documents[a].length() > documents[b].length(); });
#pragma omp parallel
    {
        const Tiles tiles;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < count * key_heads; ++task) work(order[task / key_heads], task % key_heads);
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/**
 * states [tokens, heads + 2 key heads, size] bfloat16 of rows with a stride: queries, keys and values.
 * out [tokens, heads, size] bfloat16; log_sums [heads, tokens] float32: the logarithm of each row's sum of weights.
 */
void tunery_attention(const Document * documents, int64_t count, int64_t heads, int64_t key_heads, int64_t size,
                      float scale, const bf16 * states, int64_t stride, bf16 * out, float * log_sums, int64_t tokens) {
    const Multiply multiply = has_amx() ? multiply_amx : multiply_avx512;
    const Shape shape = {heads, key_heads, size};
    for_each(documents, count, key_heads, [&](int64_t index, int64_t key_head) {
        forward(documents[index], shape, key_head, scale, multiply, states, stride, out, log_sums, tokens);
    });
}

/**
 * `out_gradient` like `out`; `gradient` like `states`, with a stride. `prefix_gradients` [documents, key heads,
 * longest prefix, 2, size] float32 is workspace.
 */
void tunery_attention_backward(const Document * documents, int64_t count, int64_t heads, int64_t key_heads,
                               int64_t size, float scale, const bf16 * states, int64_t stride, const bf16 * out,
                               const float * log_sums, int64_t tokens, const bf16 * out_gradient, bf16 * gradient,
                               int64_t gradient_stride, float * prefix_gradients, int64_t longest_prefix) {
    const Multiply multiply = has_amx() ? multiply_amx : multiply_avx512;
    const Shape shape = {heads, key_heads, size};
    const int64_t room = longest_prefix * 2 * size;
    for_each(documents, count, key_heads, [&](int64_t index, int64_t key_head) {
        backward(documents[index], shape, key_head, scale, multiply, states, stride, out, log_sums, tokens,
                 out_gradient, gradient, gradient_stride, prefix_gradients + (index * key_heads + key_head) * room);
    });
    if (!longest_prefix) return;
#pragma omp parallel for collapse(2)
    for (int64_t index = 0; index < count; ++index)
        for (int64_t key_head = 0; key_head < key_heads; ++key_head) {
            const Document & document = documents[index];
            if (!document.is_first) continue;
            float * sums = prefix_gradients + (index * key_heads + key_head) * room;
            const int64_t numbers = document.prefix * 2 * size;
            for (int64_t other = index + 1; other < count && !documents[other].is_first; ++other) {
                const float * more = prefix_gradients + (other * key_heads + key_head) * room;
                for (int64_t i = 0; i < numbers; ++i) sums[i] += more[i];
            }
            for (int64_t i = 0; i < document.prefix; ++i)
                for (int64_t which = 0; which < 2; ++which)
                    write_row(sums + (2 * i + which) * size, size, 1.0f,
                              gradient + document.row(i) * gradient_stride +
                                  (heads + which * key_heads + key_head) * size);
        }
}

}  // extern "C"
#pragma GCC visibility pop
