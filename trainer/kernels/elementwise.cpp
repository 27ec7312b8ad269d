// What a decoder layer of the Llama family computes between its matrix products, each in one pass over memory: numbers
// are stored in bfloat16 or float32 and computed in float32. Rows have strides in numbers. Every row is computed by one
// thread in one order, so results do not depend on the number of threads.
#include "lanes.h"

#include <algorithm>
#include <cmath>

namespace {

/** Smaller work is not worth waking other threads. */
constexpr int64_t numbers_for_threads = 16384;

float sum_of(const float * row, const float * other, int64_t width) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) {
        const __mmask16 lanes = first(width - i);
        sum = _mm512_fmadd_ps(load(row + i, lanes), load(other + i, lanes), sum);
    }
    return _mm512_reduce_add_ps(sum);
}

/** The argument of the sigmoid that a gate is multiplied with: the gate itself (silu), or that of gelu's tanh form. */
inline __m512 argument(__m512 gate, bool gelu) {
    if (!gelu) return gate;
    const __m512 square = _mm512_mul_ps(gate, gate);
    const __m512 slope = _mm512_fmadd_ps(square, _mm512_set1_ps(2 * 0.7978845608f * 0.044715f),
                                         _mm512_set1_ps(2 * 0.7978845608f));
    return _mm512_mul_ps(gate, slope);
}

/** Its derivative. */
inline __m512 argument_slope(__m512 gate, bool gelu) {
    if (!gelu) return _mm512_set1_ps(1.0f);
    const __m512 square = _mm512_mul_ps(gate, gate);
    return _mm512_fmadd_ps(square, _mm512_set1_ps(6 * 0.7978845608f * 0.044715f),
                           _mm512_set1_ps(2 * 0.7978845608f));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/**
 * sum = x + added, or x where `added` is null; then the RMS norm of `sum`, unless `normed` is null.
 * x, sum [rows, width] float32, may be the same; added [rows, width] bfloat16; normed [rows, width] bfloat16;
 * inverse [rows]: 1 / the root mean square.
 */
void tunery_add_norm(const float * x, const bf16 * added, int64_t added_stride, const float * weight, float epsilon,
                     float * sum, bf16 * normed, float * inverse, int64_t rows, int64_t width) {
#pragma omp parallel for if (rows * width > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row) {
        const float * from = x + row * width;
        if (added) {
            float * to = sum + row * width;
            const bf16 * other = added + row * added_stride;
            for (int64_t i = 0; i < width; i += 16) {
                const __mmask16 lanes = first(width - i);
                store(to + i, _mm512_add_ps(load(from + i, lanes), load(other + i, lanes)), lanes);
            }
            from = to;
        }
        if (!normed) continue;
        inverse[row] = 1.0f / std::sqrt(sum_of(from, from, width) / (float) width + epsilon);
        const __m512 scale = _mm512_set1_ps(inverse[row]);
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            const __m512 direction = _mm512_mul_ps(load(from + i, lanes), scale);
            store(normed + row * width + i, _mm512_mul_ps(direction, load(weight + i, lanes)), lanes);
        }
    }
}

/**
 * The gradient of `tunery_add_norm`: from that of `normed` [rows, width] bfloat16 and that of `sum` [rows, width]
 * float32 to that of x [rows, width] float32, which may be the place of the latter, and in bfloat16 too unless
 * `rounded` is null.
 */
void tunery_add_norm_backward(const bf16 * gradient, const float * sum_gradient, const float * sum,
                              const float * weight, const float * inverse, float * x_gradient, bf16 * rounded,
                              int64_t rounded_stride, int64_t rows, int64_t width) {
#pragma omp parallel for if (rows * width > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t start = row * width;
        const __m512 scale = _mm512_set1_ps(inverse[row]);
        __m512 dot = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            const __m512 scaled = _mm512_mul_ps(load(gradient + start + i, lanes), load(weight + i, lanes));
            dot = _mm512_fmadd_ps(scaled, load(sum + start + i, lanes), dot);
        }
        const __m512 along = _mm512_set1_ps(_mm512_reduce_add_ps(dot) * inverse[row] / (float) width);
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            const __m512 scaled = _mm512_mul_ps(load(gradient + start + i, lanes), load(weight + i, lanes));
            const __m512 direction = _mm512_mul_ps(load(sum + start + i, lanes), scale);
            const __m512 across = _mm512_fnmadd_ps(direction, along, scaled);
            const __m512 total = _mm512_fmadd_ps(across, scale, load(sum_gradient + start + i, lanes));
            store(x_gradient + start + i, total, lanes);
            if (rounded) store(rounded + row * rounded_stride + i, total, lanes);
        }
    }
}

/**
 * RMS norms of the heads of rows: from, to [rows, heads, size] bfloat16 of rows with strides, which may be the same;
 * weight [heads, size]; inverse [rows, heads]: 1 / the root mean square.
 */
void tunery_norm(const bf16 * from, int64_t from_stride, const float * weight, float epsilon, bf16 * to,
                 int64_t to_stride, float * inverse, int64_t rows, int64_t heads, int64_t size) {
#pragma omp parallel for if (rows * heads * size > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < heads; ++head) {
            const bf16 * x = from + row * from_stride + head * size;
            __m512 sum = _mm512_setzero_ps();
            for (int64_t i = 0; i < size; i += 16) {
                const __m512 values = load(x + i, first(size - i));
                sum = _mm512_fmadd_ps(values, values, sum);
            }
            const float root = 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / (float) size + epsilon);
            inverse[row * heads + head] = root;
            const __m512 scale = _mm512_set1_ps(root);
            for (int64_t i = 0; i < size; i += 16) {
                const __mmask16 lanes = first(size - i);
                const __m512 direction = _mm512_mul_ps(load(x + i, lanes), scale);
                const __m512 result = _mm512_mul_ps(direction, load(weight + head * size + i, lanes));
                store(to + row * to_stride + head * size + i, result, lanes);
            }
        }
}

/** The gradient of `tunery_norm`, in the place of that of its results: gradient [rows, heads, size] bfloat16. */
void tunery_norm_backward(bf16 * gradient, int64_t gradient_stride, const bf16 * from, int64_t from_stride,
                          const float * weight, const float * inverse, int64_t rows, int64_t heads, int64_t size) {
#pragma omp parallel for if (rows * heads * size > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < heads; ++head) {
            const bf16 * x = from + row * from_stride + head * size;
            bf16 * to = gradient + row * gradient_stride + head * size;
            const float root = inverse[row * heads + head];
            __m512 dot = _mm512_setzero_ps();
            for (int64_t i = 0; i < size; i += 16) {
                const __mmask16 lanes = first(size - i);
                const __m512 scaled = _mm512_mul_ps(load(to + i, lanes), load(weight + head * size + i, lanes));
                dot = _mm512_fmadd_ps(scaled, load(x + i, lanes), dot);
            }
            const __m512 along = _mm512_set1_ps(_mm512_reduce_add_ps(dot) * root * root / (float) size);
            const __m512 scale = _mm512_set1_ps(root);
            for (int64_t i = 0; i < size; i += 16) {
                const __mmask16 lanes = first(size - i);
                const __m512 scaled = _mm512_mul_ps(load(to + i, lanes), load(weight + head * size + i, lanes));
                const __m512 across = _mm512_fnmadd_ps(load(x + i, lanes), along, scaled);
                store(to + i, _mm512_mul_ps(across, scale), lanes);
            }
        }
}

/**
 * RMS norms of groups of numbers with a gate: norm(x) silu(gate), or norm(x silu(gate)) with `gate_first`. x, gate and
 * out [rows, groups, size] bfloat16, x and gate of rows with strides; weight [groups, size]; inverse [rows, groups]:
 * 1 / the root mean square.
 */
void tunery_gated_norm(const bf16 * x, int64_t x_stride, const bf16 * gate, int64_t gate_stride, const float * weight,
                       float epsilon, int32_t gate_first, bf16 * out, float * inverse, int64_t rows, int64_t groups,
                       int64_t size) {
#pragma omp parallel for if (rows * groups * size > numbers_for_threads)
    for (int64_t index = 0; index < rows * groups; ++index) {
        const int64_t row = index / groups, start = index % groups * size;
        const bf16 * values = x + row * x_stride + start;
        const bf16 * gates = gate + row * gate_stride + start;
        const auto value = [&](int64_t i, __mmask16 lanes, __m512 & active) {
            const __m512 opening = load(gates + i, lanes);
            active = _mm512_mul_ps(opening, sigmoid(opening));
            const __m512 plain = load(values + i, lanes);
            return gate_first ? _mm512_mul_ps(plain, active) : plain;
        };
        __m512 sum = _mm512_setzero_ps(), active;
        for (int64_t i = 0; i < size; i += 16) {
            const __m512 number = value(i, first(size - i), active);
            sum = _mm512_fmadd_ps(number, number, sum);
        }
        inverse[index] = 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / (float) size + epsilon);
        for (int64_t i = 0; i < size; i += 16) {
            const __mmask16 lanes = first(size - i);
            const __m512 direction = _mm512_mul_ps(value(i, lanes, active), _mm512_set1_ps(inverse[index]));
            const __m512 result = _mm512_mul_ps(direction, load(weight + start + i, lanes));
            store(out + index * size + i, gate_first ? result : _mm512_mul_ps(result, active), lanes);
        }
    }
}

/** The gradients of x and gate, [rows, groups, size], from that of the results. */
void tunery_gated_norm_backward(const bf16 * gradient, const bf16 * x, int64_t x_stride, const bf16 * gate,
                                int64_t gate_stride, const float * weight, const float * inverse, int32_t gate_first,
                                bf16 * x_gradient, bf16 * gate_gradient, int64_t rows, int64_t groups, int64_t size) {
    const __m512 one = _mm512_set1_ps(1.0f);
#pragma omp parallel for if (rows * groups * size > numbers_for_threads)
    for (int64_t index = 0; index < rows * groups; ++index) {
        const int64_t row = index / groups, start = index % groups * size;
        const bf16 * values = x + row * x_stride + start;
        const bf16 * gates = gate + row * gate_stride + start;
        const __m512 root = _mm512_set1_ps(inverse[index]);
        // Numbers of the norm, divided by their root mean square, and the gradient of these.
        const auto parts = [&](int64_t i, __mmask16 lanes, __m512 & direction, __m512 & above, __m512 & active,
                               __m512 & slope) {
            const __m512 opening = load(gates + i, lanes), share = sigmoid(opening);
            active = _mm512_mul_ps(opening, share);
            // (z s(z))' = s (1 + z (1 - s))
            slope = _mm512_mul_ps(share, _mm512_fmadd_ps(opening, _mm512_sub_ps(one, share), one));
            direction = _mm512_mul_ps(load(values + i, lanes), root);
            above = _mm512_mul_ps(load(gradient + index * size + i, lanes), load(weight + start + i, lanes));
            if (gate_first) direction = _mm512_mul_ps(direction, active);
        };
        __m512 sum = _mm512_setzero_ps(), direction, above, active, slope;
        for (int64_t i = 0; i < size; i += 16) {
            parts(i, first(size - i), direction, above, active, slope);
            sum = _mm512_fmadd_ps(direction, gate_first ? above : _mm512_mul_ps(above, active), sum);
        }
        const __m512 along = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float) size);
        for (int64_t i = 0; i < size; i += 16) {
            const __mmask16 lanes = first(size - i);
            parts(i, lanes, direction, above, active, slope);
            const __m512 inner = gate_first ? above : _mm512_mul_ps(above, active);
            const __m512 across = _mm512_mul_ps(_mm512_fnmadd_ps(direction, along, inner), root);
            const __m512 of_gate = gate_first ? _mm512_mul_ps(across, load(values + i, lanes))
                                              : _mm512_mul_ps(above, direction);
            store(gate_gradient + index * size + i, _mm512_mul_ps(of_gate, slope), lanes);
            store(x_gradient + index * size + i, gate_first ? _mm512_mul_ps(across, active) : across, lanes);
        }
    }
}

/** Rounds [rows, width] float32 to bfloat16. */
void tunery_round(const float * from, bf16 * to, int64_t to_stride, int64_t rows, int64_t width) {
#pragma omp parallel for if (rows * width > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            store(to + row * to_stride + i, load(from + row * width + i, lanes), lanes);
        }
}

/**
 * Rotary embeddings in place, of the first 2 * half numbers of each head: x [rows, heads, size] bfloat16 of rows with a
 * stride, cos and sin [rows, half] float32 of rows with another. `sign` -1 rotates back. Numbers of two halves are
 * turned together, or `neighbours`.
 */
void tunery_rotate(bf16 * x, int64_t stride, const float * cos, const float * sin, int64_t angle_stride, float sign,
                   int64_t rows, int64_t heads, int64_t size, int64_t half, int32_t neighbours) {
    const int64_t step = neighbours ? 8 : 16;
#pragma omp parallel for if (rows * heads * half > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < half; i += step) {
            const __mmask16 lanes = first(std::min(half - i, step));
            __m512 along = load(cos + row * angle_stride + i, lanes);
            __m512 across = _mm512_mul_ps(load(sin + row * angle_stride + i, lanes), _mm512_set1_ps(sign));
            if (neighbours) {
                const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
                along = _mm512_permutexvar_ps(twice, along);
                across = _mm512_permutexvar_ps(twice, across);
                const __mmask16 both = first(2 * std::min(half - i, step));
                for (int64_t head = 0; head < heads; ++head) {
                    bf16 * pairs = x + row * stride + head * size + 2 * i;
                    const __m512 a = load(pairs, both), b = _mm512_permute_ps(a, 0xB1);
                    // The first of a pair loses what the second gains.
                    store(pairs, _mm512_fmaddsub_ps(a, along, _mm512_mul_ps(b, across)), both);
                }
                continue;
            }
            for (int64_t head = 0; head < heads; ++head) {
                bf16 * one = x + row * stride + head * size + i;
                const __m512 a = load(one, lanes), b = load(one + half, lanes);
                store(one, _mm512_fnmadd_ps(b, across, _mm512_mul_ps(a, along)), lanes);
                store(one + half, _mm512_fmadd_ps(a, across, _mm512_mul_ps(b, along)), lanes);
            }
        }
}

/**
 * product = silu(gate) * up, or gelu(gate) * up in its tanh form; gate and up are next to each other in rows with a
 * stride. All bfloat16.
 */
void tunery_gated(const bf16 * gate_up, int64_t stride, bf16 * product, int64_t rows, int64_t width, int32_t gelu) {
#pragma omp parallel for if (rows * width > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            const bf16 * from = gate_up + row * stride + i;
            const __m512 gate = load(from, lanes);
            const __m512 active = _mm512_mul_ps(gate, sigmoid(argument(gate, gelu)));
            store(product + row * width + i, _mm512_mul_ps(active, load(from + width, lanes)), lanes);
        }
}

/** The gradients of gate and up, next to each other, from that of the product [rows, width]. */
void tunery_gated_backward(const bf16 * gradient, const bf16 * gate_up, int64_t stride, bf16 * gate_up_gradient,
                           int64_t gradient_stride, int64_t rows, int64_t width, int32_t gelu) {
    const __m512 one = _mm512_set1_ps(1.0f);
#pragma omp parallel for if (rows * width > numbers_for_threads)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            const bf16 * from = gate_up + row * stride + i;
            bf16 * to = gate_up_gradient + row * gradient_stride + i;
            const __m512 above = load(gradient + row * width + i, lanes);
            const __m512 gate = load(from, lanes), share = sigmoid(argument(gate, gelu));
            // (x s(a))' = s (1 + x a' (1 - s))
            const __m512 inner = _mm512_mul_ps(gate, argument_slope(gate, gelu));
            const __m512 slope =
                _mm512_mul_ps(share, _mm512_fmadd_ps(inner, _mm512_sub_ps(one, share), one));
            store(to, _mm512_mul_ps(_mm512_mul_ps(above, load(from + width, lanes)), slope), lanes);
            store(to + width, _mm512_mul_ps(above, _mm512_mul_ps(gate, share)), lanes);
        }
}

/**
 * Cross entropy of logits [rows, width] bfloat16 and targets [rows]. With `gradient`, the logits become their
 * gradients: the softmax, less 1 at the target.
 */
void tunery_cross_entropy(bf16 * logits, const int64_t * targets, float * losses, int64_t rows, int64_t width,
                          int32_t gradient) {
#pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
        bf16 * values = logits + row * width;
        const __m512 lowest = _mm512_set1_ps(-INFINITY);
        __m512 largest = lowest;
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            largest = _mm512_mask_max_ps(largest, lanes, largest, load(values + i, lanes));
        }
        const float top = _mm512_reduce_max_ps(largest);
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            const __m512 power = exponential(_mm512_sub_ps(load(values + i, lanes), _mm512_set1_ps(top)));
            sum = _mm512_mask_add_ps(sum, lanes, sum, power);
        }
        const float log_sum = top + std::log(_mm512_reduce_add_ps(sum));
        uint32_t bits = (uint32_t) values[targets[row]] << 16;
        float target;
        memcpy(&target, &bits, sizeof(target));
        losses[row] = log_sum - target;
        if (!gradient) continue;
        for (int64_t i = 0; i < width; i += 16) {
            const __mmask16 lanes = first(width - i);
            store(values + i, exponential(_mm512_sub_ps(load(values + i, lanes), _mm512_set1_ps(log_sum))), lanes);
        }
        const __m512 at_target = _mm512_set1_ps(std::expm1(target - log_sum));
        store(values + targets[row], at_target, 1);
    }
}

}  // extern "C"
#pragma GCC visibility pop
