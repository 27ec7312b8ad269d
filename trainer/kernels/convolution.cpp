// Short causal convolutions of each channel with weights of its own, of documents packed into one sequence.
#include "lanes.h"
#include "scratch.h"

#include <algorithm>

namespace {

thread_local Scratch scratch;

/** Channels that one thread computes for all tokens: of each row, few lines of the cache. */
constexpr int64_t block_channels = 128;
/** The most tokens that a result depends on. */
constexpr int64_t widest = 8;

/** A token and those before it in its document: rows of x, at most `width`. */
template <typename Number> struct Before {
    const Number * rows[widest];
    int64_t tokens[widest], count = 0;

    Before(const Number * x, int64_t stride, const int64_t * previous, int64_t token, int64_t width) {
        for (; count < width && token >= 0; token = previous[token]) {
            rows[count] = x + token * stride;
            tokens[count++] = token;
        }
    }

    /** 16 channels of the convolution: weight [width, channels], the token's own last. */
    __m512 sum(const float * weight, const float * bias, int64_t width, int64_t channels, int64_t channel,
               __mmask16 lanes) const {
        __m512 total = bias ? load(bias + channel, lanes) : _mm512_setzero_ps();
        for (int64_t back = 0; back < count; ++back) {
            const __m512 factor = load(weight + (width - 1 - back) * channels + channel, lanes);
            total = _mm512_fmadd_ps(factor, load(rows[back] + channel, lanes), total);
        }
        return total;
    }
};

template <typename Number>
void convolve(const Number * x, int64_t stride, const int64_t * previous, const float * weight, const float * bias,
              bool silu, Number * out, int64_t tokens, int64_t channels, int64_t width) {
#pragma omp parallel for
    for (int64_t token = 0; token < tokens; ++token) {
        const Before<Number> before(x, stride, previous, token, width);
        for (int64_t channel = 0; channel < channels; channel += 16) {
            const __mmask16 lanes = first(channels - channel);
            const __m512 sum = before.sum(weight, bias, width, channels, channel, lanes);
            store(out + token * channels + channel, silu ? _mm512_mul_ps(sum, sigmoid(sum)) : sum, lanes);
        }
    }
}

template <typename Number>
void convolve_backward(const Number * x, int64_t stride, const int64_t * previous, const float * weight,
                       const float * bias, bool silu, const Number * gradient, int64_t gradient_stride,
                       Number * x_gradient, float * weight_gradient, float * bias_gradient, int64_t tokens,
                       int64_t channels, int64_t width) {
    const int64_t blocks = (channels + block_channels - 1) / block_channels;
    const __m512 one = _mm512_set1_ps(1.0f);
    memset(weight_gradient, 0, width * channels * sizeof(float));
    memset(bias_gradient, 0, channels * sizeof(float));
#pragma omp parallel for
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = block * block_channels, end = std::min(channels, begin + block_channels);
        scratch.reset(tokens * block_channels * sizeof(float));
        float * sums = scratch.take<float>(tokens * block_channels);
        memset(sums, 0, tokens * block_channels * sizeof(float));
        const auto add = [](float * to, __m512 value, __mmask16 lanes) {
            store(to, _mm512_add_ps(load(to, lanes), value), lanes);
        };
        for (int64_t token = 0; token < tokens; ++token) {
            const Before<Number> before(x, stride, previous, token, width);
            for (int64_t channel = begin; channel < end; channel += 16) {
                const __mmask16 lanes = first(end - channel);
                __m512 above = load(gradient + token * gradient_stride + channel, lanes);
                if (silu) {
                    const __m512 sum = before.sum(weight, bias, width, channels, channel, lanes);
                    const __m512 part = sigmoid(sum);
                    // (z s(z))' = s (1 + z (1 - s))
                    const __m512 slope = _mm512_fmadd_ps(sum, _mm512_sub_ps(one, part), one);
                    above = _mm512_mul_ps(above, _mm512_mul_ps(part, slope));
                }
                add(bias_gradient + channel, above, lanes);
                for (int64_t back = 0; back < before.count; ++back) {
                    const int64_t at = (width - 1 - back) * channels + channel;
                    const __m512 value = load(before.rows[back] + channel, lanes);
                    add(weight_gradient + at, _mm512_mul_ps(above, value), lanes);
                    float * to = sums + before.tokens[back] * block_channels + channel - begin;
                    add(to, _mm512_mul_ps(above, load(weight + at, lanes)), lanes);
                }
            }
        }
        for (int64_t token = 0; token < tokens; ++token)
            for (int64_t channel = begin; channel < end; channel += 16)
                store(x_gradient + token * channels + channel,
                      _mm512_loadu_ps(sums + token * block_channels + channel - begin), first(end - channel));
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/**
 * out [tokens, channels] = sum of weight [width, channels] times the token, by the last weight, and those before it,
 * plus bias [channels] or null, through silu if that is set. x [tokens, channels], rows with a stride, and out are
 * float32 if `wide`, else bfloat16. previous [tokens]: the token before in the same document, which comes earlier, or
 * -1. Width is 8 at most.
 */
void tunery_convolve(const void * x, int64_t stride, const int64_t * previous, const float * weight, const float * bias,
                     int32_t silu, int32_t wide, void * out, int64_t tokens, int64_t channels, int64_t width) {
    if (wide)
        convolve((const float *) x, stride, previous, weight, bias, silu, (float *) out, tokens, channels, width);
    else
        convolve((const bf16 *) x, stride, previous, weight, bias, silu, (bf16 *) out, tokens, channels, width);
}

/** The gradients of x [tokens, channels], weight and bias, from those of the results, rows with a stride. */
void tunery_convolve_backward(const void * x, int64_t stride, const int64_t * previous, const float * weight,
                              const float * bias, int32_t silu, int32_t wide, const void * gradient,
                              int64_t gradient_stride, void * x_gradient, float * weight_gradient,
                              float * bias_gradient, int64_t tokens, int64_t channels, int64_t width) {
    if (wide)
        convolve_backward((const float *) x, stride, previous, weight, bias, silu, (const float *) gradient,
                          gradient_stride, (float *) x_gradient, weight_gradient, bias_gradient, tokens, channels,
                          width);
    else
        convolve_backward((const bf16 *) x, stride, previous, weight, bias, silu, (const bf16 *) gradient,
                          gradient_stride, (bf16 *) x_gradient, weight_gradient, bias_gradient, tokens, channels,
                          width);
}

}  // extern "C"
#pragma GCC visibility pop
