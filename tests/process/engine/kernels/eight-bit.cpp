// AMX gives the numbers of AVX-512 VNNI to the bit. Prints what differs; exits with 2 where there is no AMX.
#include "../../../../engine/kernels/eight-bit-vnni.cpp"

#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

static bool differs(int64_t blocks, int64_t tokens, int64_t groups) {
    std::mt19937                    random(1);
    std::normal_distribution<float> normal;
    std::vector<weights16>          weights(blocks * groups);
    for (auto & each : weights) {
        for (auto & d : each.d) d = 0x1c00 + random() % 0x800;
        for (auto & q : each.q) q = random();
        for (int i = 0; i < block * rows; i += 97) each.q[i] = i % 2 ? 0 : 255;
    }
    std::vector<activations16> x((tokens + group - 1) / group * blocks);
    memset((void *) x.data(), 0xff, x.size() * sizeof(x[0]));
    std::vector<float> in(blocks * block), vnni(tokens * groups * rows), amx(vnni.size());
    const int64_t        most = most_outliers(blocks);
    std::vector<outlier> outliers(tokens * most);
    std::vector<int32_t> counts(tokens);
    std::vector<float *> out(tokens);
    for (int64_t t = 0; t < tokens; t++) {
        for (auto & each : in) each = t == 2 ? 0 : normal(random);
        for (int64_t large = 0; large < t % 5; large++) in[large * 37 % in.size()] *= 50;
        outlier * const own = outliers.data() + t * most;
        counts[t]           = quantize(in.data(), x.data() + t / group * blocks, t % group, blocks, own);
    }
    const auto           run = [&](auto kernel, std::vector<float> & results) {
        for (int64_t t = 0; t < tokens; t++) {
            out[t] = results.data() + t * groups * rows;
            for (int32_t i = 0; i < counts[t]; i++) outliers[t * most + i].out = out[t];
        }
        const product_rows work = { weights.data(), blocks, groups, x.data(), tokens, out.data(), 0, counts.data(),
                                    outliers.data(), most };
        kernel(eight_bit_rows(work));
    };
    run(multiply_vnni, vnni);
    run(multiply_amx, amx);
    const bool found = memcmp(vnni.data(), amx.data(), vnni.size() * sizeof(float)) != 0;
    if (found) printf("%d blocks, %d tokens, %d groups of rows\n", (int) blocks, (int) tokens, (int) groups);
    return found;
}

int main() {
    if (!can_use_amx()) return 2;
    bool found = false;
    for (const int blocks : { 1, 2, 3, 4, 5, 7, 18, 47, 48, 49, 97, 280 })
        for (const int tokens : { 1, 2, 3, 4, 5, 8, 9, 12, 13, 15, 16, 17, 24, 31, 32, 33, 40 })
            for (const int groups : { 1, 3 }) found |= differs(blocks, tokens, groups);
    return found;
}
