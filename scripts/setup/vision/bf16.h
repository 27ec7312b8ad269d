// Products and attention in bfloat16 for the graphs of picture encoders, for processors with AVX-512's instructions for
// it. Where these are missing, or a tensor has another form, the functions return null: the library's own operations do
// it then.
#pragma once
#include "ggml.h"

/**
 * x times the transpose of w, [outputs, rows] in float32, x rounded to bfloat16. `w`: weights in 16 bits, [inputs,
 * outputs] in memory of the CPU, which are reordered in place at the first call: nothing else may read them.
 */
ggml_tensor * bf16_linear(ggml_context * ctx, ggml_tensor * w, ggml_tensor * x);

/** GELU by its approximation with the hyperbolic tangent, in the memory of `x`, float32. `weights`: as below. */
ggml_tensor * bf16_gelu(ggml_context * ctx, const ggml_tensor * weights, ggml_tensor * x);

/**
 * Attention of every position to every other, [size * heads, positions * batch] in float32. `q`, `k`, `v`: [size,
 * heads, positions, batch] in float32. `mask`: what is added to the scaled products, [positions, positions] in float32, or
 * null. `weights`: a weight of the layer, which shows where and how precisely the graph is computed.
 */
ggml_tensor * bf16_attention(ggml_context * ctx, const ggml_tensor * weights, ggml_tensor * q, ggml_tensor * k,
                             ggml_tensor * v, ggml_tensor * mask, float scale);
