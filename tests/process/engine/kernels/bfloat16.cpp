// A row's products are near the exact ones, and the same to the bit beside any number of others: with the instructions
// for bfloat16, where the processor has them, and without. Prints what differs.
#include "../../../../engine/kernels/bfloat16.cpp"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

template <typename By>
static std::vector<float> multiply(const std::vector<float> & x, const std::vector<uint16_t> & w, int inputs, int rows,
                                   int panels) {
    std::vector<typename By::activation> own(x.size());
    for (int r = 0; r < rows; r++)
        bfloat16::round_row<By>(x.data() + r * inputs, inputs, inputs, own.data() + r * inputs);
    const size_t       panel = (size_t) inputs * panel_outputs, outputs = (size_t) panels * panel_outputs;
    std::vector<float> out(rows * outputs);
    bfloat16::product<By>(rows, panels, { own.data(), (size_t) inputs }, { w.data(), panel }, inputs / 2,
                          { out.data(), outputs });
    return out;
}

/** `error`: of an activation. */
template <typename By> static bool differs(const char * name, double error, int inputs, int rows, int panels) {
    std::mt19937                    random(1);
    std::normal_distribution<float> normal;
    std::vector<float>              x(rows * inputs);
    std::vector<uint16_t>           file((size_t) panels * panel_outputs * inputs), w(file.size());
    for (auto & each : x) each = normal(random);
    for (auto & each : file) {
        const float    weight = normal(random);
        uint32_t       bits;
        memcpy(&bits, &weight, 4);
        each = (uint16_t) (bits >> 16);
    }
    ggml_tensor tensor = {};
    tensor.ne[0] = inputs, tensor.ne[1] = panels * panel_outputs, tensor.data = w.data();
    pack_bfloat16(&tensor, file.data());
    const auto   all     = multiply<By>(x, w, inputs, rows, panels);
    const size_t outputs = (size_t) panels * panel_outputs;
    bool         found   = false;
    for (int r = 0; r < rows; r++) {
        const std::vector<float> row(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
        const auto               alone = multiply<By>(row, w, inputs, 1, panels);
        found |= memcmp(alone.data(), all.data() + r * outputs, outputs * sizeof(float)) != 0;
        for (size_t o = 0; o < outputs; o++) {
            double exact = 0;
            for (int i = 0; i < inputs; i++) {
                const uint32_t bits = (uint32_t) file[o * inputs + i] << 16;
                float          weight;
                memcpy(&weight, &bits, 4);
                exact += (double) weight * row[i];
            }
            // The errors of activations add up like the square root of their number.
            found |= !(std::fabs(all[r * outputs + o] - exact) <= error * std::sqrt((double) inputs));
        }
    }
    if (found) printf("%s: %d inputs, %d rows, %d panels\n", name, inputs, rows, panels);
    return found;
}

int main() {
    bool found = false;
    for (const int inputs : { 16, 48, 576, 1024 })
        for (const int rows : { 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 24, 25, 33 })
            for (const int panels : { 1, 2, 3 }) {
                found |= differs<bfloat16::Widened>("widened", 1e-5, inputs, rows, panels);
#ifdef KERNELS_AVX512
                if (__builtin_cpu_supports("avx512bf16"))
                    found |= differs<bfloat16::Native>("native", 0.02, inputs, rows, panels);
#endif
            }
    return found;
}
