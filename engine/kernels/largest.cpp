// The largest of the logits of a vocabulary, and their exponentials: what a sampler chooses from.
#include <cstdint>
#include <limits>

#include "lanes.h"

static bool is_supported() {
#ifdef KERNELS_AVX512
    static const bool has_all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
#else
    static const bool has_all = __builtin_cpu_supports("avx2");
#endif
    return has_all;
}

/**
 * The largest of `n` numbers in descending order, of equals the first: at most `size` of them, into `values` and
 * `indices`. `mask` has a bit for each number that may be taken, 32 in a word; null: all. Returns how many there are.
 * Numbers that are not a number or minus infinity are never taken. -1: this processor lacks the instructions.
 */
extern "C" __attribute__((visibility("default"))) int32_t tunery_largest(const float * numbers, int32_t n,
                                                                        const uint32_t * mask, int32_t size,
                                                                        double * values, int32_t * indices) {
    if (!is_supported()) return -1;
    int32_t count = 0;
    float   above = -std::numeric_limits<float>::infinity();
    for (int32_t at = 0; at < n; at += 16) {
        const int   inside = n - at < 16 ? n - at : 16;
        const lanes chunk  = inside == 16 ? load(numbers + at) : load_some(numbers + at, inside);
        unsigned candidates = bits_greater(chunk, all(above), inside);
        if (mask && candidates) candidates &= mask[at / 32] >> (at % 32);
        for (; candidates; candidates &= candidates - 1) {
            const int32_t index = at + __builtin_ctz(candidates);
            const float   value = numbers[index];
            // The bound has risen since the comparison.
            if (!(value > above)) continue;
            int32_t rank = count < size ? count++ : size - 1;
            for (; rank > 0 && values[rank - 1] < value; rank--) {
                values[rank]  = values[rank - 1];
                indices[rank] = indices[rank - 1];
            }
            values[rank]  = value;
            indices[rank] = index;
            if (count == size) above = (float) values[size - 1];
        }
    }
    return count;
}

/**
 * e^((x - most) * scale) of `n` numbers x, none of which is above `most`, into `out`; null: nowhere. Returns their sum;
 * what is not finite makes it so. -1: this processor lacks the instructions.
 */
extern "C" __attribute__((visibility("default"))) double tunery_exponentials(const float * numbers, int32_t n,
                                                                            float most, float scale, float * out) {
    if (!is_supported()) return -1;
    double sum = 0;
    for (int32_t at = 0; at < n; at += 16) {
        const int   inside = n - at < 16 ? n - at : 16;
        const lanes x      = inside == 16 ? load(numbers + at) : load_some(numbers + at, inside);
        const lanes e      = select(first_lanes(inside), exp_of(multiply(subtract(x, all(most)), all(scale))));
        sum += reduce_add(e);
        if (!out) continue;
        if (inside == 16) {
            store(out + at, e);
            continue;
        }
        float last[16];
        store(last, e);
        for (int i = 0; i < inside; i++) out[at + i] = last[i];
    }
    return sum;
}
