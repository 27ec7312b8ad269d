// States that decay and take up tokens, of documents packed into one sequence, and their gradients: the gated delta
// rule (Yang et al., "Gated Delta Networks", 2024, arXiv 2412.06464) and Mamba2 (Dao and Gu, "Transformers are SSMs",
// 2024, arXiv 2405.21060). Both in chunks, whose tokens are matrix products: all numbers of a chunk stay in the cache.
//
// A head, with a state S [key size, value size], keys k, queries q, values v, decays d and shares b of a token:
//   S <- e^d S;  x = b (v - k S) with the delta rule, b v without;  S <- S + k^T x;  result = q S + skip v.
// One thread computes all documents with one prefix, for some heads that share a key head, so that results do not
// depend on the number of threads.
#include "documents.h"
#include "matrices.h"
#include "scratch.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace {

constexpr int64_t chunk_tokens = 64;
/** Heads of one task, at most: what they share is computed once. */
constexpr int64_t task_heads = 8;
/** What is added to the square of a vector's length before it is normalized, as flash-linear-attention does. */
constexpr float tiny = 1e-6f;

inline void add_product(float factor, const float * row, __m512 & sum) {
    sum = _mm512_fmadd_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(row), sum);
}

/** What all heads have in common. */
struct Shape {
    int64_t key_heads, heads, key_size, value_size;
    float scale;
    bool delta, normalized;

    int64_t group() const { return heads / key_heads; }
    int64_t blocks() const { return (group() + task_heads - 1) / task_heads; }
    int64_t keys() const { return units(key_size); }
    int64_t values() const { return units(value_size); }
};

template <typename Number> struct Inputs {
    const Number * q;
    int64_t q_stride;
    const Number * k;
    int64_t k_stride;
    const Number * v;
    int64_t v_stride;
    const float * decay;
    const float * share;
    const float * skip;
};

/** Rows of tokens. */
struct Span {
    int64_t start, length;
};

template <typename Number>
void read_rows(const Number * from, int64_t stride, const Span & span, int64_t rows, int64_t size, const Matrix & to) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < to.stride; j += 16) {
            const __mmask16 lanes = i < span.length && j < size ? first(size - j) : 0;
            const Number * at = lanes ? from + (span.start + i) * stride + j : from;
            _mm512_storeu_ps(to.row(i) + j, load(at, lanes));
        }
}

template <typename Number> void write_row(const float * from, int64_t size, Number * to) {
    for (int64_t j = 0; j < size; j += 16) store(to + j, _mm512_loadu_ps(from + j), first(size - j));
}

thread_local Scratch scratch;

/** Some heads that share a key head, of the documents with one prefix. */
template <typename Number> struct Task {
    const Shape & shape;
    const Inputs<Number> & in;
    int64_t key_head, first_head, heads;

    // A chunk's queries and keys, normalized if they are to be, with what they were multiplied by; the keys'
    // transpose; products of queries and keys, and of keys.
    Matrix q, k, k_transposed, scores, overlaps;
    float q_scale[chunk_tokens], k_scale[chunk_tokens];
    // A head's values, less what the delta rule expects; what the state takes up; results or their gradients.
    Matrix v, x, out, weights, negative;
    // The logarithm of the decay since the chunk's start, and the decays from there to a token, and from it to the end.
    float log_decay[chunk_tokens], since[chunk_tokens], until[chunk_tokens], share[chunk_tokens];
    int64_t rows = 0;
    float whole = 0;

    size_t numbers() const {
        const int64_t wide = apart(shape.key_size), tall = apart(shape.value_size), square = apart(chunk_tokens);
        return 2 * chunk_tokens * wide + shape.keys() * square + 4 * chunk_tokens * square + 3 * chunk_tokens * tall +
               64 * 16;
    }

    Matrix take(int64_t rows, int64_t stride) { return {scratch.take<float>(rows * stride), stride}; }

    void take_all() {
        const int64_t wide = apart(shape.key_size), tall = apart(shape.value_size), square = apart(chunk_tokens);
        q = take(chunk_tokens, wide);
        k = take(chunk_tokens, wide);
        k_transposed = take(shape.keys(), square);
        scores = take(chunk_tokens, square);
        overlaps = take(chunk_tokens, square);
        weights = take(chunk_tokens, square);
        negative = take(chunk_tokens, square);
        v = take(chunk_tokens, tall);
        x = take(chunk_tokens, tall);
        out = take(chunk_tokens, tall);
    }

    Matrix new_state() { return take(shape.keys(), apart(shape.value_size)); }

    static void normalize(const Matrix & matrix, int64_t rows, int64_t width, bool normalized, float scale,
                          float * factors) {
        for (int64_t i = 0; i < rows; ++i) {
            float * row = matrix.row(i);
            factors[i] = normalized ? 1.0f / std::sqrt(dot(row, row, width) + tiny) : 1.0f;
            if (normalized || scale != 1) scale_row(row, factors[i] * scale, row, width);
        }
    }

    /** Reads what the heads share of a chunk. `queries`: also what only results need. */
    void begin(const Span & span, bool queries) {
        rows = units(span.length);
        const int64_t size = shape.key_size, keys = shape.keys();
        read_rows(in.k + key_head * size, in.k_stride, span, rows, size, k);
        normalize(k, rows, keys, shape.normalized, 1.0f, k_scale);
        if (shape.delta || queries) transpose(k, k_transposed, rows, keys);
        if (shape.delta) multiply(k.left(), k_transposed, overlaps, rows, rows, keys, false, Part::result_lower);
        if (!queries) return;
        read_rows(in.q + key_head * size, in.q_stride, span, rows, size, q);
        normalize(q, rows, keys, shape.normalized, shape.scale, q_scale);
        multiply(q.left(), k_transposed, scores, rows, rows, keys, false, Part::result_lower);
    }

    /** Reads a head's part of a chunk, and computes what the state takes up. `state` is zero if it is null. */
    void begin_head(const Span & span, int64_t head, const Matrix * state) {
        const int64_t values = shape.values();
        float sum = 0;
        for (int64_t i = 0; i < rows; ++i) {
            const bool real = i < span.length;
            sum += real ? in.decay[(span.start + i) * shape.heads + head] : 0.0f;
            share[i] = real ? in.share[(span.start + i) * shape.heads + head] : 0.0f;
            log_decay[i] = sum;
        }
        whole = std::exp(sum);
        for (int64_t i = 0; i < rows; i += 16) {
            const __m512 logs = _mm512_loadu_ps(log_decay + i);
            _mm512_storeu_ps(since + i, exponential(logs));
            _mm512_storeu_ps(until + i, exponential(_mm512_sub_ps(_mm512_set1_ps(sum), logs)));
        }
        read_rows(in.v + head * shape.value_size, in.v_stride, span, rows, shape.value_size, v);
        if (shape.delta && state) {
            multiply(k.left(), *state, x, rows, values, shape.keys(), false);
            for (int64_t i = 0; i < rows; ++i) scale_row(x.row(i), -since[i], v.row(i), values, true);
        }
        for (int64_t i = 0; i < rows; ++i) scale_row(v.row(i), share[i], x.row(i), values);
        if (!shape.delta) return;
        for (int64_t i = 0; i < rows; ++i) {
            const __m512 factor = _mm512_set1_ps(-share[i]);
            for (int64_t j = 0; j < rows; j += 16)
                _mm512_storeu_ps(negative.row(i) + j, _mm512_mul_ps(factor, decayed(overlaps, i, j, i)));
        }
        solve();
    }

    /** Numbers j to j + 15 of a row of products, times the decay between the tokens; 0 from column `end` on. */
    __m512 decayed(const Matrix & products, int64_t i, int64_t j, int64_t end) const {
        if (j >= end) return _mm512_setzero_ps();
        const __m512 decay = exponential(_mm512_sub_ps(_mm512_set1_ps(log_decay[i]), _mm512_loadu_ps(log_decay + j)));
        return _mm512_maskz_mul_ps(first(end - j), decay, _mm512_loadu_ps(products.row(i) + j));
    }

    /** (1 - negative) x' = x, in the place of x, row by row from the first. */
    void solve() {
        const int64_t values = shape.values();
        for (int64_t begin = 0; begin < rows; begin += unit) {
            if (begin)
                multiply(negative.from(begin).left(), x, x.from(begin), unit, values, begin, true);
            for (int64_t i = begin + 1; i < begin + unit; ++i)
                for (int64_t column = 0; column < values; column += 16) {
                    __m512 sum = _mm512_loadu_ps(x.row(i) + column);
                    for (int64_t j = begin; j < i; ++j)
                        add_product(negative.row(i)[j], x.row(j) + column, sum);
                    _mm512_storeu_ps(x.row(i) + column, sum);
                }
        }
    }

    /** (1 - negative)^T y' = y, in the place of y, row by row from the last. */
    void solve_transposed(const Matrix & y) {
        const int64_t values = shape.values();
        for (int64_t begin = rows - unit; begin >= 0; begin -= unit) {
            const int64_t below = begin + unit;
            if (below < rows) {
                const Left later = {negative.row(below) + begin, 1, negative.stride};
                multiply(later, y.from(below), y.from(begin), unit, values, rows - below, true);
            }
            for (int64_t j = below - 2; j >= begin; --j)
                for (int64_t column = 0; column < values; column += 16) {
                    __m512 sum = _mm512_loadu_ps(y.row(j) + column);
                    for (int64_t i = j + 1; i < below; ++i)
                        add_product(negative.row(i)[j], y.row(i) + column, sum);
                    _mm512_storeu_ps(y.row(j) + column, sum);
                }
        }
    }

    void weigh() {
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < rows; j += 16) _mm512_storeu_ps(weights.row(i) + j, decayed(scores, i, j, i + 1));
    }

    /** The state after a chunk, from that before it, which is zero if `empty`. Changes x. */
    void advance(const Matrix & state, bool empty) {
        const int64_t values = shape.values();
        for (int64_t i = 0; i < rows; ++i) scale_row(x.row(i), until[i], x.row(i), values);
        if (!empty)
            for (int64_t i = 0; i < shape.keys(); ++i) scale_row(state.row(i), whole, state.row(i), values);
        multiply(k.transposed(), x, state, shape.keys(), values, rows, !empty);
    }

    /** Results of a span's tokens. The states of all heads go from before it to after it, but for `last` ones, that
     * nobody needs. */
    void forward(const Span & whole_span, const Matrix * states, bool empty, bool last, Number * results) {
        const int64_t values = shape.values();
        for (int64_t at = 0; at < whole_span.length; at += chunk_tokens) {
            const Span span = {whole_span.start + at, std::min(chunk_tokens, whole_span.length - at)};
            begin(span, true);
            for (int64_t index = 0; index < heads; ++index) {
                const int64_t head = first_head + index;
                const Matrix & state = states[index];
                begin_head(span, head, empty ? nullptr : &state);
                weigh();
                if (!empty) {
                    multiply(q.left(), state, out, rows, values, shape.keys(), false);
                    for (int64_t i = 0; i < span.length; ++i) scale_row(out.row(i), since[i], out.row(i), values);
                }
                multiply(weights.left(), x, out, rows, values, rows, !empty, Part::left_lower);
                for (int64_t i = 0; i < span.length; ++i) {
                    if (in.skip) scale_row(v.row(i), in.skip[head], out.row(i), values, true);
                    write_row(out.row(i), shape.value_size,
                              results + ((span.start + i) * shape.heads + head) * shape.value_size);
                }
                if (!last || at + chunk_tokens < whole_span.length) advance(state, empty);
            }
            empty = false;
        }
    }
};

template <typename Number> struct Gradients {
    const Number * out;
    // [blocks, tokens, key heads, key size]
    float * q;
    float * k;
    Number * v;
    // [tokens, heads]
    float * decay;
    float * share;
    float * skip;
    int64_t tokens;
};

template <typename Number> struct BackwardTask : Task<Number> {
    const Gradients<Number> & to;
    int64_t block;
    // Gradients of what a chunk's heads share, and of a head's x, weights and overlaps; x, or results' gradients, with
    // decays.
    Matrix q_sum, k_sum, score_sum, overlap_sum, x_gradient, x_transposed, weight_gradient, decayed_rows, mixed,
        products, state_transposed;

    using Base = Task<Number>;
    using Base::shape, Base::in, Base::rows, Base::q, Base::k, Base::x, Base::v, Base::out, Base::weights,
        Base::negative, Base::scores, Base::overlaps, Base::since, Base::until, Base::share, Base::whole, Base::heads,
        Base::first_head, Base::key_head, Base::take, Base::q_scale, Base::k_scale;

    BackwardTask(const Base & base, const Gradients<Number> & to, int64_t block) : Base(base), to(to), block(block) {}

    size_t numbers() const {
        const int64_t wide = apart(shape.key_size), tall = apart(shape.value_size), square = apart(chunk_tokens);
        return Base::numbers() + 3 * chunk_tokens * wide + 4 * chunk_tokens * square + 3 * chunk_tokens * tall +
               shape.values() * (square + wide) + 64 * 16;
    }

    void take_all() {
        Base::take_all();
        const int64_t wide = apart(shape.key_size), tall = apart(shape.value_size), square = apart(chunk_tokens);
        q_sum = take(chunk_tokens, wide);
        k_sum = take(chunk_tokens, wide);
        products = take(chunk_tokens, wide);
        score_sum = take(chunk_tokens, square);
        overlap_sum = take(chunk_tokens, square);
        weight_gradient = take(chunk_tokens, square);
        x_transposed = take(shape.values(), square);
        x_gradient = take(chunk_tokens, tall);
        decayed_rows = take(chunk_tokens, tall);
        mixed = take(chunk_tokens, tall);
        state_transposed = take(shape.values(), wide);
    }

    const Matrix * state_before(int64_t chunk, int64_t index, const Matrix * initial,
                                const std::vector<Matrix> & states) const {
        if (chunk) return &states[(chunk - 1) * heads + index];
        return initial ? initial + index : nullptr;
    }

    /** The states before each chunk of a span but the first, [chunks - 1, heads], and after it if `final` is there. */
    void recompute(const Span & whole_span, const Matrix * initial, const std::vector<Matrix> & states,
                   const Matrix * final) {
        const int64_t chunks = (whole_span.length + chunk_tokens - 1) / chunk_tokens;
        const size_t bytes = shape.keys() * apart(shape.value_size) * sizeof(float);
        for (int64_t chunk = 0; chunk < chunks - (final ? 0 : 1); ++chunk) {
            const int64_t at = chunk * chunk_tokens;
            const Span span = {whole_span.start + at, std::min(chunk_tokens, whole_span.length - at)};
            Base::begin(span, false);
            for (int64_t index = 0; index < heads; ++index) {
                const Matrix * before = state_before(chunk, index, initial, states);
                const Matrix & after = chunk == chunks - 1 ? final[index] : states[chunk * heads + index];
                Base::begin_head(span, first_head + index, before);
                if (before) memcpy(after.at, before->at, bytes);
                Base::advance(after, !before);
            }
        }
    }

    /** Gradients of a span's tokens; those of the states after it become those of the states before it. `empty`: the
     * states before it are zero. `none`: the gradients of the states after it are. */
    void backward(const Span & whole_span, const Matrix * initial, const std::vector<Matrix> & states,
                  const Matrix * state_gradients, bool none) {
        const int64_t chunks = (whole_span.length + chunk_tokens - 1) / chunk_tokens;
        for (int64_t chunk = chunks - 1; chunk >= 0; --chunk, none = false) {
            const int64_t at = chunk * chunk_tokens;
            const Span span = {whole_span.start + at, std::min(chunk_tokens, whole_span.length - at)};
            Base::begin(span, true);
            clear(q_sum, rows);
            clear(k_sum, rows);
            clear(score_sum, rows);
            clear(overlap_sum, rows);
            for (int64_t index = 0; index < heads; ++index) {
                const Matrix * before = state_before(chunk, index, initial, states);
                backward_head(span, first_head + index, before, state_gradients[index], none);
            }
            end(span);
        }
    }

    void backward_head(const Span & span, int64_t head, const Matrix * state, const Matrix & state_gradient,
                       bool none) {
        const int64_t keys = shape.keys(), values = shape.values(), size = shape.value_size;
        float log_gradient[chunk_tokens], share_gradient[chunk_tokens], whole_gradient = 0;
        memset(log_gradient, 0, sizeof(log_gradient));
        memset(share_gradient, 0, sizeof(share_gradient));
        Base::begin_head(span, head, state);
        Base::weigh();
        read_rows(to.out + head * size, shape.heads * size, span, rows, size, out);
        transpose(x, x_transposed, rows, values);

        // Gradients of x, through the state after the chunk and the results.
        if (!none) {
            multiply(k.left(), state_gradient, x_gradient, rows, values, keys, false);
            for (int64_t i = 0; i < rows; ++i) scale_row(x_gradient.row(i), until[i], x_gradient.row(i), values);
        }
        multiply(weights.transposed(), out, x_gradient, rows, values, rows, !none, Part::left_upper);
        multiply(out.left(), x_transposed, weight_gradient, rows, rows, values, false, Part::result_lower);
        add_weights(weights, scores, score_sum, 1, log_gradient, nullptr);

        // Gradients of keys and decays, through the state after the chunk.
        if (!none) {
            transpose(state_gradient, state_transposed, keys, values);
            for (int64_t i = 0; i < rows; ++i) scale_row(x.row(i), until[i], decayed_rows.row(i), values);
            multiply(decayed_rows.left(), state_transposed, products, rows, keys, values, false);
            for (int64_t i = 0; i < rows; ++i) {
                const float along = dot(k.row(i), products.row(i), keys);
                log_gradient[i] -= along;
                whole_gradient += along;
                scale_row(products.row(i), 1, k_sum.row(i), keys, true);
            }
            if (state) {
                float sum = 0;
                for (int64_t i = 0; i < keys; ++i) sum += dot(state->row(i), state_gradient.row(i), values);
                whole_gradient += whole * sum;
            }
        }

        // Gradients of values and shares, and of the overlaps of keys.
        if (shape.delta) {
            Base::solve_transposed(x_gradient);
            multiply(x_gradient.left(), x_transposed, weight_gradient, rows, rows, values, false, Part::result_lower);
            add_weights(negative, overlaps, overlap_sum, 0, log_gradient, share_gradient);
        }
        for (int64_t i = 0; i < span.length; ++i) share_gradient[i] += dot(x_gradient.row(i), v.row(i), values);
        for (int64_t i = 0; i < rows; ++i) scale_row(x_gradient.row(i), share[i], x_gradient.row(i), values);

        // Through the state before the chunk.
        if (state) {
            transpose(*state, state_transposed, keys, values);
            for (int64_t i = 0; i < rows; ++i) scale_row(out.row(i), since[i], decayed_rows.row(i), values);
            multiply(decayed_rows.left(), state_transposed, products, rows, keys, values, false);
            for (int64_t i = 0; i < rows; ++i) {
                log_gradient[i] += dot(q.row(i), products.row(i), keys);
                scale_row(products.row(i), 1, q_sum.row(i), keys, true);
            }
            if (!none)
                for (int64_t i = 0; i < keys; ++i)
                    scale_row(state_gradient.row(i), whole, state_gradient.row(i), values);
            multiply(q.transposed(), decayed_rows, state_gradient, keys, values, rows, !none);
            if (shape.delta) {
                for (int64_t i = 0; i < rows; ++i) scale_row(x_gradient.row(i), -since[i], mixed.row(i), values);
                multiply(mixed.left(), state_transposed, products, rows, keys, values, false);
                for (int64_t i = 0; i < rows; ++i) {
                    log_gradient[i] += dot(k.row(i), products.row(i), keys);
                    scale_row(products.row(i), 1, k_sum.row(i), keys, true);
                }
                multiply(k.transposed(), mixed, state_gradient, keys, values, rows, true);
            }
        }

        if (in.skip) {
            // v is that of the token: there is no delta rule with it.
            for (int64_t i = 0; i < span.length; ++i) {
                scale_row(out.row(i), in.skip[head], x_gradient.row(i), values, true);
                if (to.skip) to.skip[(span.start + i) * shape.heads + head] = dot(out.row(i), v.row(i), values);
            }
        }
        float sum = whole_gradient;
        for (int64_t i = span.length - 1; i >= 0; --i) {
            const int64_t at = (span.start + i) * shape.heads + head;
            to.decay[at] = sum += log_gradient[i];
            to.share[at] = share_gradient[i];
            write_row(x_gradient.row(i), size, to.v + at * size);
        }
    }

    /**
     * Adds what `weight_gradient` makes of products, times decays, to the gradients of products, and to those of
     * decays: of rows and, less, of columns. `diagonal`: 1 if a token has a product with itself. With `share_gradient`
     * the weights are those of `negative`: the products times -share.
     */
    void add_weights(const Matrix & weighted, const Matrix & products, const Matrix & sums, int64_t diagonal,
                     float * log_gradient, float * share_gradient) {
        for (int64_t i = 0; i < rows; ++i) {
            __m512 row = _mm512_setzero_ps(), shares = _mm512_setzero_ps();
            for (int64_t j = 0; j < i + diagonal; j += 16) {
                const __mmask16 lanes = first(i + diagonal - j);
                const __m512 gradient = _mm512_maskz_loadu_ps(lanes, weight_gradient.row(i) + j);
                const __m512 along = _mm512_mul_ps(gradient, _mm512_loadu_ps(weighted.row(i) + j));
                row = _mm512_add_ps(row, along);
                _mm512_storeu_ps(log_gradient + j, _mm512_sub_ps(_mm512_loadu_ps(log_gradient + j), along));
                const __m512 decay = exponential(
                    _mm512_sub_ps(_mm512_set1_ps(Base::log_decay[i]), _mm512_loadu_ps(Base::log_decay + j)));
                __m512 slope = _mm512_maskz_mul_ps(lanes, gradient, decay);
                if (share_gradient) {
                    shares = _mm512_fnmadd_ps(slope, _mm512_maskz_loadu_ps(lanes, products.row(i) + j), shares);
                    slope = _mm512_mul_ps(slope, _mm512_set1_ps(-share[i]));
                }
                _mm512_storeu_ps(sums.row(i) + j, _mm512_add_ps(slope, _mm512_loadu_ps(sums.row(i) + j)));
            }
            log_gradient[i] += _mm512_reduce_add_ps(row);
            if (share_gradient) share_gradient[i] += _mm512_reduce_add_ps(shares);
        }
    }

    /** Writes the gradients of a chunk's queries and keys. */
    void end(const Span & span) {
        const int64_t keys = shape.keys(), size = shape.key_size;
        multiply(score_sum.left(), k, q_sum, rows, keys, rows, true, Part::left_lower);
        multiply(score_sum.transposed(), q, k_sum, rows, keys, rows, true, Part::left_upper);
        if (shape.delta) {
            multiply(overlap_sum.left(), k, k_sum, rows, keys, rows, true, Part::left_lower);
            multiply(overlap_sum.transposed(), k, k_sum, rows, keys, rows, true, Part::left_upper);
        }
        for (int64_t i = 0; i < span.length; ++i) {
            const int64_t at = ((block * to.tokens + span.start + i) * shape.key_heads + key_head) * size;
            write(q_sum.row(i), q.row(i), q_scale[i], shape.scale, to.q + at);
            write(k_sum.row(i), k.row(i), k_scale[i], 1.0f, to.k + at);
        }
    }

    /** The gradient of a vector from that of what it became: itself, or normalized, times `scale`. */
    void write(float * gradient, const float * vector, float factor, float scale, float * out) {
        const int64_t keys = shape.keys();
        if (shape.normalized) {
            // The vector has a factor `scale` that its direction has not.
            const float along = dot(gradient, vector, keys) / (scale * scale);
            scale_row(vector, -along, gradient, keys, true);
        }
        scale_row(gradient, factor * scale, gradient, keys);
        write_row(gradient, shape.key_size, out);
    }
};

/** Documents that are computed one after another: all that share a prefix, or one without. */
std::vector<std::pair<int64_t, int64_t>> families_of(const Document * documents, int64_t count) {
    std::vector<std::pair<int64_t, int64_t>> families;
    for (int64_t begin = 0, end; begin < count; begin = end) {
        end = begin + 1;
        while (documents[begin].prefix && end < count && !documents[end].is_first) ++end;
        families.push_back({begin, end});
    }
    const auto tokens = [&](const std::pair<int64_t, int64_t> & family) {
        int64_t sum = documents[family.first].prefix;
        for (int64_t i = family.first; i < family.second; ++i) sum += documents[i].own;
        return sum;
    };
    std::stable_sort(families.begin(), families.end(), [&](auto & a, auto & b) { return tokens(a) > tokens(b); });
    return families;
}

/** Runs `work(first document, document after the last, block of heads, task)` for all, the longest first. */
template <typename Number, typename Work>
void for_each(const Document * documents, int64_t count, const Shape & shape, const Inputs<Number> & in, Work work) {
    const auto families = families_of(documents, count);
    const int64_t parts = shape.key_heads * shape.blocks(), tasks = parts * families.size();
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t index = 0; index < tasks; ++index) {
        const auto [begin, end] = families[index / parts];
        const int64_t key_head = index % parts / shape.blocks(), block = index % shape.blocks();
        const int64_t before = block * task_heads, heads = std::min(task_heads, shape.group() - before);
        Task<Number> task = {shape, in, key_head, key_head * shape.group() + before, heads};
        work(begin, end, block, task);
    }
}

template <typename Number>
void scan(const Document * documents, int64_t count, const Shape & shape, const Inputs<Number> & in, Number * results) {
    const int64_t state_numbers = shape.keys() * apart(shape.value_size);
    for_each(documents, count, shape, in, [&](int64_t begin, int64_t end, int64_t, Task<Number> & task) {
        scratch.reset((task.numbers() + 2 * task.heads * (state_numbers + 16)) * sizeof(float));
        task.take_all();
        std::vector<Matrix> shared, own;
        for (int64_t i = 0; i < task.heads; ++i) {
            shared.push_back(task.new_state());
            own.push_back(task.new_state());
        }
        const int64_t prefix = documents[begin].prefix;
        if (prefix) task.forward({documents[begin].prefix_start, prefix}, shared.data(), true, false, results);
        for (int64_t index = begin; index < end; ++index) {
            for (int64_t i = 0; prefix && i < task.heads; ++i)
                memcpy(own[i].at, shared[i].at, state_numbers * sizeof(float));
            task.forward({documents[index].own_start, documents[index].own}, own.data(), !prefix, true, results);
        }
    });
}

template <typename Number>
void scan_backward(const Document * documents, int64_t count, const Shape & shape, const Inputs<Number> & in,
                   const Gradients<Number> & to) {
    const int64_t state_numbers = shape.keys() * apart(shape.value_size);
    for_each(documents, count, shape, in, [&](int64_t begin, int64_t end, int64_t block, Task<Number> & base) {
        BackwardTask<Number> task(base, to, block);
        const int64_t heads = task.heads, prefix = documents[begin].prefix;
        int64_t longest = 0;
        for (int64_t i = begin; i < end; ++i) longest = std::max(longest, documents[i].own);
        const int64_t prefix_states = prefix / chunk_tokens * heads, own_states = longest / chunk_tokens * heads;
        const int64_t states = prefix_states + own_states + 3 * heads;
        scratch.reset((task.numbers() + states * (state_numbers + 16)) * sizeof(float));
        task.take_all();
        const auto take = [&](int64_t number) {
            std::vector<Matrix> taken;
            for (int64_t i = 0; i < number; ++i) taken.push_back(task.new_state());
            return taken;
        };
        const auto of_prefix = take(prefix_states), of_own = take(own_states), shared = take(heads), sums = take(heads),
                   gradients = take(heads);
        const Span prefix_span = {documents[begin].prefix_start, prefix};
        if (prefix) {
            task.recompute(prefix_span, nullptr, of_prefix, shared.data());
            for (const Matrix & sum : sums) clear(sum, shape.keys());
        }
        const Matrix * initial = prefix ? shared.data() : nullptr;
        for (int64_t index = begin; index < end; ++index) {
            const Span span = {documents[index].own_start, documents[index].own};
            if (!span.length) continue;
            task.recompute(span, initial, of_own, nullptr);
            task.backward(span, initial, of_own, gradients.data(), true);
            for (int64_t i = 0; prefix && i < heads; ++i)
                for (int64_t row = 0; row < shape.keys(); ++row)
                    scale_row(gradients[i].row(row), 1, sums[i].row(row), shape.values(), true);
        }
        if (prefix) task.backward(prefix_span, nullptr, of_prefix, sums.data(), false);
    });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/**
 * q and k [tokens, key heads, key size], v [tokens, heads, value size], rows with strides; decay and share [tokens,
 * heads] float32; skip [heads] float32 or null, only without the delta rule. All other numbers are float32 if `wide`,
 * else bfloat16. results [tokens, heads, value size]. Queries are multiplied with `scale`; `normalized`: queries and
 * keys have length 1 before.
 */
void tunery_scan(const Document * documents, int64_t count, int64_t key_heads, int64_t heads, int64_t key_size,
                 int64_t value_size, float scale, int32_t delta, int32_t normalized, int32_t wide, const void * q,
                 int64_t q_stride, const void * k, int64_t k_stride, const void * v, int64_t v_stride,
                 const float * decay, const float * share, const float * skip, void * results) {
    const Shape shape = {key_heads, heads, key_size, value_size, scale, delta != 0, normalized != 0};
    const auto run = [&](auto number) {
        using Number = decltype(number);
        const Inputs<Number> in = {(const Number *) q, q_stride, (const Number *) k, k_stride, (const Number *) v,
                                   v_stride,           decay,    share,              skip};
        scan(documents, count, shape, in, (Number *) results);
    };
    wide ? run(float()) : run(bf16());
}

/**
 * From the gradients of the results: those of q and k, of each `task_heads` heads of a key head, [blocks, tokens, key
 * heads, key size] float32; of v, like the results; of decay, share and, unless it is null, of skip, from each token,
 * [tokens, heads] float32.
 */
void tunery_scan_backward(const Document * documents, int64_t count, int64_t key_heads, int64_t heads, int64_t key_size,
                          int64_t value_size, float scale, int32_t delta, int32_t normalized, int32_t wide,
                          const void * q, int64_t q_stride, const void * k, int64_t k_stride, const void * v,
                          int64_t v_stride, const float * decay, const float * share, const float * skip,
                          const void * result_gradient, float * q_gradient, float * k_gradient, void * v_gradient,
                          float * decay_gradient, float * share_gradient, float * skip_gradient, int64_t tokens) {
    const Shape shape = {key_heads, heads, key_size, value_size, scale, delta != 0, normalized != 0};
    const auto run = [&](auto number) {
        using Number = decltype(number);
        const Inputs<Number> in = {(const Number *) q, q_stride, (const Number *) k, k_stride, (const Number *) v,
                                   v_stride,           decay,    share,              skip};
        const Gradients<Number> to = {
            (const Number *) result_gradient, q_gradient,     k_gradient,    (Number *) v_gradient,
            decay_gradient,                   share_gradient, skip_gradient, tokens};
        scan_backward(documents, count, shape, in, to);
    };
    wide ? run(float()) : run(bf16());
}

/** The number of blocks of heads that share a key head. */
int64_t tunery_scan_blocks(int64_t key_heads, int64_t heads) {
    return (heads / key_heads + task_heads - 1) / task_heads;
}

}  // extern "C"
#pragma GCC visibility pop
