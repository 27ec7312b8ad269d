// AMX gives the numbers of AVX-512 VNNI to the bit. Prints what differs; exits with 2 where there is no AMX.
#include "../../../../engine/kernels/quantized-vnni.cpp"

#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

/** Random bytes, with scales of a usual size where they have 16 bits. */
template <class T> static std::vector<T> weights_of(int64_t count) {
    std::mt19937   random(1);
    std::vector<T> all(count);
    const auto     scale = [&] { return (uint16_t) (0x1c00 + random() % 0x800); };
    for (auto & each : all) {
        for (size_t at = 0; at < sizeof(T); at++) ((uint8_t *) &each)[at] = (uint8_t) random();
        for (auto & d : each.d) d = scale();
        if constexpr (std::is_same_v<T, q4_1_rows>)
            for (auto & m : each.m) m = scale();
        if constexpr (std::is_same_v<T, q4_k_rows>)
            for (auto & m : each.dmin) m = scale();
    }
    return all;
}

template <class T> static bool differs(int64_t blocks, int64_t tokens, int64_t groups) {
    const std::vector<T>            weights = weights_of<T>(blocks * block / T::length * groups);
    std::mt19937                    random(2);
    std::normal_distribution<float> normal;
    std::vector<activations16<T>>   x((tokens + group - 1) / group * blocks);
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
        counts[t]           = quantize<T>(in.data(), x.data() + t / group * blocks, t % group, blocks, own);
    }
    const auto           run = [&](auto kernel, std::vector<float> & results) {
        for (int64_t t = 0; t < tokens; t++) {
            out[t] = results.data() + t * groups * rows;
            for (int32_t i = 0; i < counts[t]; i++) outliers[t * most + i].out = out[t];
        }
        const product_rows work = { weights.data(), blocks, groups, x.data(), tokens, out.data(), 0, counts.data(),
                                    outliers.data(), most };
        kernel(work);
    };
    run(multiply_vnni<T>, vnni);
    run(multiply_amx<T>, amx);
    const bool found = memcmp(vnni.data(), amx.data(), vnni.size() * sizeof(float)) != 0;
    if (found)
        printf("type %d: %d blocks, %d tokens, %d groups of rows\n", T::type, (int) blocks, (int) tokens, (int) groups);
    return found;
}

template <class T> static bool differs() {
    bool          found = false;
    constexpr int per   = T::length / block;
    for (const int blocks : { 1, 2, 3, 4, 5, 7, 18, 47, 48, 49, 97, 280 })
        for (const int tokens : { 1, 2, 3, 4, 5, 8, 9, 12, 13, 15, 16, 17, 24, 31, 32, 33, 40 })
            for (const int groups : { 1, 3 }) {
                if (blocks < 20) found |= differs<T>(blocks * per, tokens, groups);
                else if (blocks % per == 0) found |= differs<T>(blocks, tokens, groups);
            }
    return found;
}

int main() {
    if (!can_use_amx()) return 2;
    const bool eight = differs<q8_0_rows>(), four = differs<q4_1_rows>();
    const bool four_k = differs<q4_k_rows>(), six_k = differs<q6_k_rows>();
    return eight || four || four_k || six_k;
}
