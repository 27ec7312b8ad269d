// Short causal convolutions of each channel with weights of its own, of documents packed into one sequence.
#include "lanes.h"
#include "scratch.h"

#include <algorithm>

namespace {

thread_local Scratch scratch;

/** Channels that one thread computes for all tokens. */
constexpr int64_t block_channels = 64;

/** Of 16 channels: bias and weights [width], of which the last is that of the token itself. */
struct Filter {
    static constexpr int64_t most = 8;
    __m512 weights[most], bias;
    int64_t width;

    Filter(const float * all, const float * biases, int64_t width, int64_t channels, int64_t channel, __mmask16 lanes)
        : width(width) {
        for (int64_t i = 0; i < width; ++i) weights[i] = load(all + (width - 1 - i) * channels + channel, lanes);
        bias = biases ? load(biases + channel, lanes) : _mm512_setzero_ps();
    }
};

/** Calls `work(steps back, token)` for a token and those before it in its document. */
template <typename Work> inline void each_before(const int64_t * previous, int64_t token, int64_t width, Work work) {
    for (int64_t back = 0; back < width && token >= 0; ++back, token = previous[token]) work(back, token);
}

template <typename Number>
void convolve(const Number * x, int64_t stride, const int64_t * previous, const float * weight, const float * bias,
              bool silu, Number * out, int64_t tokens, int64_t channels, int64_t width) {
    const int64_t blocks = (channels + block_channels - 1) / block_channels;
#pragma omp parallel for
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t channel = block * block_channels; channel < std::min(channels, (block + 1) * block_channels);
             channel += 16) {
            const __mmask16 lanes = first(channels - channel);
            const Filter filter(weight, bias, width, channels, channel, lanes);
            for (int64_t token = 0; token < tokens; ++token) {
                __m512 sum = filter.bias;
                each_before(previous, token, width, [&](int64_t back, int64_t from) {
                    sum = _mm512_fmadd_ps(filter.weights[back], load(x + from * stride + channel, lanes), sum);
                });
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
#pragma omp parallel for
    for (int64_t block = 0; block < blocks; ++block) {
        scratch.reset(tokens * 16 * sizeof(float));
        float * sums = scratch.take<float>(tokens * 16);
        for (int64_t channel = block * block_channels; channel < std::min(channels, (block + 1) * block_channels);
             channel += 16) {
            const __mmask16 lanes = first(channels - channel);
            const Filter filter(weight, bias, width, channels, channel, lanes);
            __m512 weight_sums[Filter::most], bias_sum = _mm512_setzero_ps();
            for (__m512 & sum : weight_sums) sum = _mm512_setzero_ps();
            memset(sums, 0, tokens * 16 * sizeof(float));
            for (int64_t token = 0; token < tokens; ++token) {
                __m512 above = load(gradient + token * gradient_stride + channel, lanes), sum = filter.bias;
                __m512 before[Filter::most];
                each_before(previous, token, width, [&](int64_t back, int64_t from) {
                    before[back] = load(x + from * stride + channel, lanes);
                    sum = _mm512_fmadd_ps(filter.weights[back], before[back], sum);
                });
                if (silu) {
                    const __m512 part = sigmoid(sum);
                    // (z s(z))' = s (1 + z (1 - s))
                    above = _mm512_mul_ps(
                        above, _mm512_mul_ps(part, _mm512_fmadd_ps(sum, _mm512_sub_ps(one, part), one)));
                }
                bias_sum = _mm512_add_ps(bias_sum, above);
                each_before(previous, token, width, [&](int64_t back, int64_t from) {
                    float * to = sums + from * 16;
                    _mm512_storeu_ps(to, _mm512_fmadd_ps(filter.weights[back], above, _mm512_loadu_ps(to)));
                    weight_sums[back] = _mm512_fmadd_ps(above, before[back], weight_sums[back]);
                });
            }
            for (int64_t token = 0; token < tokens; ++token)
                store(x_gradient + token * channels + channel, _mm512_loadu_ps(sums + token * 16), lanes);
            for (int64_t i = 0; i < width; ++i)
                store(weight_gradient + (width - 1 - i) * channels + channel, weight_sums[i], lanes);
            store(bias_gradient + channel, bias_sum, lanes);
        }
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
