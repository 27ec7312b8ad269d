// A row's products are the same to the bit beside any number of others, and those of a processor without the
// instructions for bfloat16 are near them. Prints what differs; exits with 2 where they are missing.
#include "../../../../engine/kernels/bfloat16.cpp"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

template <typename By>
static std::vector<float> multiply(const std::vector<float> & x, const std::vector<uint16_t> & w, int inputs, int rows,
                                   int panels) {
    std::vector<uint16_t> rounded(x.size());
    for (int r = 0; r < rows; r++)
        bfloat16::round_row<By>(x.data() + r * inputs, inputs, inputs, rounded.data() + r * inputs);
    const size_t       panel = (size_t) inputs * panel_outputs, outputs = (size_t) panels * panel_outputs;
    std::vector<float> out(rows * outputs);
    bfloat16::product<By>(rows, panels, { rounded.data(), (size_t) inputs }, { w.data(), panel }, inputs / 2,
                          { out.data(), outputs });
    return out;
}

static bool differs(int inputs, int rows, int panels) {
    std::mt19937                    random(1);
    std::normal_distribution<float> normal;
    std::vector<float>              x(rows * inputs);
    std::vector<uint16_t>           file((size_t) panels * panel_outputs * inputs), w(file.size());
    for (auto & each : x) each = normal(random);
    for (size_t i = 0; i < file.size(); i += 16) {
        float some[16];
        for (auto & each : some) each = normal(random);
        bfloat16::round_row<bfloat16::Widened>(some, 16, 16, file.data() + i);
    }
    ggml_tensor tensor = {};
    tensor.ne[0] = inputs, tensor.ne[1] = panels * panel_outputs, tensor.data = w.data();
    pack_bfloat16(&tensor, file.data());
    const auto   all = multiply<bfloat16::Native>(x, w, inputs, rows, panels);
    const auto   wide = multiply<bfloat16::Widened>(x, w, inputs, rows, panels);
    const size_t outputs = (size_t) panels * panel_outputs;
    bool         found = false;
    for (int r = 0; r < rows; r++) {
        const std::vector<float> row(x.begin() + r * inputs, x.begin() + (r + 1) * inputs);
        const auto               alone = multiply<bfloat16::Native>(row, w, inputs, 1, panels);
        found |= memcmp(alone.data(), all.data() + r * outputs, outputs * sizeof(float)) != 0;
        for (size_t o = 0; o < outputs; o++) {
            double exact = 0;
            for (int i = 0; i < inputs; i++) {
                const uint32_t bits = (uint32_t) file[o * inputs + i] << 16;
                float          weight;
                memcpy(&weight, &bits, 4);
                exact += (double) weight * row[i];
            }
            // Activations have eight bits: their errors add up like the square root of their number.
            const double most = 0.02 * std::sqrt((double) inputs);
            found |= std::fabs(all[r * outputs + o] - exact) > most || std::fabs(wide[r * outputs + o] - exact) > most;
        }
    }
    if (found) printf("%d inputs, %d rows, %d panels\n", inputs, rows, panels);
    return found;
}

int main() {
    if (!__builtin_cpu_supports("avx512bf16")) return 2;
    bool found = false;
    for (const int inputs : { 16, 48, 576, 1024 })
        for (const int rows : { 1, 2, 3, 4, 5, 8, 11, 12, 13, 16, 24, 25, 33 })
            for (const int panels : { 1, 2, 3 }) found |= differs(inputs, rows, panels);
    return found;
}
