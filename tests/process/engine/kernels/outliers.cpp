// A few large activations of a token take no precision from its others. Prints the error of a product with and without
// them, as a share of its size.
#include "../../../../engine/kernels/quantized-vnni.cpp"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);
bool can_use_amx() { return false; }
template <class T> void multiply_amx(const product_rows &) {}

constexpr int64_t blocks = 18, groups = 4, tokens = 20;

static double error_of(int large) {
    std::mt19937                    random(1);
    std::normal_distribution<float> normal;
    std::vector<q8_0_rows>          weights(blocks * groups);
    for (auto & each : weights) {
        for (auto & d : each.d) d = 0x3c00;  // 1
        for (auto & four : each.q)
            for (auto & q : four) q = random();
    }
    std::vector<float>         in(blocks * block);
    std::vector<activations16<q8_0_rows>> x((tokens + group - 1) / group * blocks);
    std::vector<float>         results(tokens * groups * rows);
    std::vector<outlier>       outliers(tokens * most_outliers(blocks));
    std::vector<float *>       out(tokens);
    std::vector<int32_t>       counts(tokens);
    std::vector<double>        exact(results.size());
    for (int64_t t = 0; t < tokens; t++) {
        for (auto & each : in) each = normal(random);
        for (int i = 0; i < large; i++) in[(100 * i + 3 * t) % in.size()] = 40 + i;
        out[t]              = results.data() + t * groups * rows;
        outlier * const own = outliers.data() + t * most_outliers(blocks);
        counts[t]           = quantize<q8_0_rows>(in.data(), x.data() + t / group * blocks, t % group, blocks, own);
        for (int32_t i = 0; i < counts[t]; i++) own[i].out = out[t];
        for (int64_t g = 0; g < groups; g++)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < blocks * block; i++)
                    exact[(t * groups + g) * rows + r] +=
                        in[i] * (weights[g * blocks + i / block].q[i % block / 4][4 * r + i % 4] - 128.0);
    }
    multiply<q8_0_rows>({ weights.data(), blocks, groups, x.data(), tokens, out.data(), 0, counts.data(),
                          outliers.data(), most_outliers(blocks) });
    double wrong = 0, size = 0;
    for (size_t i = 0; i < exact.size(); i++) {
        wrong += std::pow(results[i] - exact[i], 2);
        size += std::pow(exact[i], 2);
    }
    return std::sqrt(wrong / size);
}

int main() { printf("%g %g", error_of(0), error_of(3)); }
