// Matrix products with bfloat16 weights on x64 processors.
//
// ggml computes them as dot products of rows, token by token: eight tokens take eight times as long as one. Here a
// tile of up to 12 tokens reads each weight once. Weights are those of the file.
#include "bfloat16.h"

#include "kernels.h"

namespace {

using bfloat16::panel_outputs;

class traits : public ggml::cpu::tensor_traits {
#ifdef KERNELS_AVX512
    const bool is_native = __builtin_cpu_supports("avx512bf16");
#else
    static constexpr bool is_native = false;
#endif

    /** The activations, then the shared loop. */
    size_t loop_offset(const ggml_tensor * x) const {
        return padded(rows_of(x) * x->ne[0] * (is_native ? sizeof(uint16_t) : sizeof(float)));
    }

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = loop_offset(op->src[1]) + shared_loop::bytes;
        return true;
    }

    template <typename By> void compute(const ggml_compute_params * params, ggml_tensor * op) const {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const int     inputs = (int) w->ne[0], tokens = (int) rows_of(x);
        const int64_t panels = w->ne[1] / panel_outputs;
        auto *        rounded = (typename By::activation *) params->wdata;
        for (int t = params->ith; t < tokens; t += params->nth)
            bfloat16::round_row<By>((const float *) row_at(x, t), inputs, inputs, rounded + (size_t) t * inputs);
        const size_t panel = (size_t) inputs * panel_outputs, stride = op->nb[1] / sizeof(float);
        // An even number, as two are multiplied at once. One thread reads all weights in order.
        const int64_t chunk = params->nth == 1 ? panels : std::max<int64_t>(2, panels / (params->nth * 4) / 2 * 2);
        shared_loop   loop((char *) params->wdata + loop_offset(x), params, (panels + chunk - 1) / chunk);
        for (int64_t c = loop.take(); c >= 0; c = loop.take()) {
            const int64_t first = c * chunk;
            for (int t = 0; t < tokens; t += bfloat16::chunk_rows)
                bfloat16::product<By>(std::min(bfloat16::chunk_rows, tokens - t), (int) std::min(chunk, panels - first),
                                      { rounded + (size_t) t * inputs, (size_t) inputs },
                                      { (const uint16_t *) w->data + first * panel, panel }, inputs / 2,
                                      { (float *) op->data + t * stride + first * panel_outputs, stride });
        }
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
#ifdef KERNELS_AVX512
        if (is_native) {
            compute<bfloat16::Native>(params, op);
            return true;
        }
#endif
        compute<bfloat16::Widened>(params, op);
        return true;
    }
};

}  // namespace

bool is_bfloat16_product(const ggml_tensor * op) {
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    return op->op == ggml_op_mul_mat && w->type == ggml_type_bf16 && w->ne[2] == 1 && w->ne[3] == 1 &&
           w->ne[0] % 16 == 0 && w->ne[1] % panel_outputs == 0 && x->type == ggml_type_f32 && x->nb[0] == sizeof(float);
}

ggml::cpu::tensor_traits * bfloat16_traits() {
    static traits one;
    return &one;
}

void pack_bfloat16(ggml_tensor * tensor, const void * data) {
    const auto *  from = (const uint16_t *) data;
    auto *        to = (uint16_t *) tensor->data;
    const int64_t inputs = tensor->ne[0];
    for (int64_t p = 0; p < tensor->ne[1] / panel_outputs; p++, from += inputs * panel_outputs)
        for (int64_t i = 0; i < inputs; i += 2)
            for (int64_t o = 0; o < panel_outputs; o++, to += 2) memcpy(to, from + o * inputs + i, 4);
}
