// Products with quantized weights are those of the numbers that ggml reads from the file, and a token's are
// the same to the bit beside any number of others. Prints what differs.
#include "../../../../engine/kernels/products.cpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

void (*barrier)(struct ggml_threadpool *);

struct type_traits {
    const char * name;
    int64_t      block;
    int64_t      interleaved;
    size_t       bytes;
    bool         is_quantized;
    void (*to_float)(const void * from, float * to, int64_t count);
};
extern "C" const type_traits * ggml_get_type_traits(int type);

static constexpr int64_t width = 768, height = 64;

/** Random bytes with scales of a usual size, which are the numbers of 16 bits at these places of a block. */
static std::vector<uint8_t> weights_of(const weight_format & format, std::initializer_list<size_t> scales) {
    std::mt19937         random(1);
    const size_t         bytes = ggml_get_type_traits(format.type)->bytes;
    std::vector<uint8_t> all(height * (width / format.length) * bytes);
    for (auto & each : all) each = (uint8_t) random();
    for (size_t at = 0; at < all.size(); at += bytes)
        for (const size_t scale : scales) {
            const uint16_t d = (uint16_t) (0x1c00 + random() % 0x800);
            memcpy(&all[at + scale], &d, 2);
        }
    return all;
}

static std::vector<float> multiply(const weight_format & format, const void * weights, const std::vector<float> & in,
                                   int64_t tokens) {
    const int64_t        blocks = width / block, most = format.most_outliers(blocks);
    const size_t         group_bytes = blocks * format.activations;
    std::vector<char>    x((tokens + format.group - 1) / format.group * group_bytes, (char) 0xff);
    std::vector<outlier> outliers(tokens * most + 1);
    std::vector<int32_t> counts(tokens);
    std::vector<float>   results(tokens * height);
    std::vector<float *> out(tokens);
    for (int64_t t = 0; t < tokens; t++) {
        out[t]              = results.data() + t * height;
        outlier * const own = outliers.data() + t * most;
        counts[t] = format.round(in.data() + t * width, x.data() + t / format.group * group_bytes,
                                 (int) (t % format.group), blocks, own);
        for (int32_t i = 0; i < counts[t]; i++) own[i].out = out[t];
    }
    format.multiply({ weights, blocks, height / rows, x.data(), tokens, out.data(), 0, counts.data(), outliers.data(),
                      most });
    return results;
}

static bool differs(const weight_format & format, std::initializer_list<size_t> scales) {
    const auto * const         traits = ggml_get_type_traits(format.type);
    const std::vector<uint8_t> file   = weights_of(format, scales);
    std::vector<float>         exact(height * width);
    traits->to_float(file.data(), exact.data(), height * width);
    std::vector<char> weights(height / rows * (width / format.length) * format.bytes);
    const size_t      of_rows = rows * (width / format.length) * traits->bytes;
    for (int64_t g = 0; g < height / rows; g++)
        format.interleave(file.data() + g * of_rows, width / format.length,
                          weights.data() + g * (width / format.length) * format.bytes);
    std::mt19937                    random(2);
    std::normal_distribution<float> normal;
    constexpr int64_t               most = 30;
    std::vector<float>              in(most * width);
    for (size_t i = 0; i < in.size(); i++) in[i] = i / width == 3 ? 0 : normal(random) * (i % 97 == 5 ? 30 : 1);
    const std::vector<float> all = multiply(format, weights.data(), in, most);
    double                   wrong = 0, size = 0;
    for (int64_t t = 0; t < most; t++)
        for (int64_t r = 0; r < height; r++) {
            double sum = 0;
            for (int64_t i = 0; i < width; i++) sum += (double) in[t * width + i] * exact[r * width + i];
            wrong += std::pow(all[t * height + r] - sum, 2);
            size += sum * sum;
        }
    bool found = std::sqrt(wrong / size) > 0.005;
    if (found) printf("%s: an error of %g of the products\n", traits->name, std::sqrt(wrong / size));
    for (int64_t tokens = 1; tokens < most; tokens++) {
        const std::vector<float> some = multiply(format, weights.data(), in, tokens);
        if (memcmp(some.data(), all.data(), some.size() * sizeof(float)) == 0) continue;
        printf("%s: others with %d tokens\n", traits->name, (int) tokens);
        found = true;
    }
    return found;
}

int main() {
    bool found = false;
    for (const weight_format * const * each = weight_formats; *each; each++) {
        const weight_format & format = **each;
        if (format.type == ggml_type_q6_k) found |= differs(format, { 208 });
        else if (format.type == ggml_type_q8_0) found |= differs(format, { 0 });
        else found |= differs(format, { 0, 2 });
    }
    return found;
}
