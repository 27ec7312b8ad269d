// Attention of 32 rows at once gives the numbers of four at a time, to the bit. Prints what differs.
#include "../../../../engine/kernels/attention.cpp"

#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

enum mask { none, open, causal, random_holes, blind_row, biases };

static uint16_t half(float x) { return (uint16_t) _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)); }

template <int D> static bool differs(int count, mask kind) {
    std::mt19937                    random(D + count + kind);
    std::normal_distribution<float> normal;
    std::vector<uint16_t>           k(count * D), v(count * D), masks(rows_many * count, 0);
    std::vector<float>              q(rows_many * D);
    for (auto & x : k) x = half(2 * normal(random));
    for (auto & x : v) x = half(normal(random));
    for (auto & x : q) x = 2 * normal(random);
    constexpr uint16_t hidden = 0xfc00, not_a_number = 0x7e00;
    for (int r = 0; r < rows_many; r++)
        for (int j = 0; j < count; j++) {
            uint16_t & m = masks[r * count + j];
            if (kind == causal && j > count - rows_many + r) m = hidden;
            if (kind == random_holes && (random() % 3 == 0 || j % 37 == 5)) m = hidden;
            if (kind == blind_row && r == 7) m = hidden;
            if (kind == biases) m = half(-(float) (random() % 5));
        }
    // What nobody sees was never written.
    if (kind == random_holes)
        for (int j = 5; j < count; j += 37)
            for (int d = 0; d < D; d++) k[j * D + d] = v[j * D + d] = not_a_number;
    const view       cache = { (char *) k.data(), (char *) v.data(), 2 * D, 2 * D, 0.125f };
    const float *    query[rows_many];
    const uint16_t * seen[rows_many];
    for (int r = 0; r < rows_many; r++) {
        query[r] = &q[r * D];
        seen[r]  = kind == none ? nullptr : &masks[r * count];
    }
    static partial many, few;
    attend_many_for(D)(cache, query, seen, 0, count, many);
    bool found = false;
    for (int from = 0; from < rows_many; from += rows_few) {
        attend_for(D, rows_few)(cache, query + from, seen + from, 0, count, few);
        found |= memcmp(many.max + from, few.max, rows_few * sizeof(float)) != 0;
        found |= memcmp(many.weights + from, few.weights, rows_few * sizeof(float)) != 0;
        found |= memcmp(many.values + from * D, few.values, rows_few * D * sizeof(float)) != 0;
    }
    for (int i = 0; i < rows_many * D; i++) found |= std::isnan(many.values[i]);
    if (found) printf("heads of %d, %d keys, mask %d\n", D, count, kind);
    return found;
}

int main() {
    bool found = false;
    for (const int count : { 1, 15, 16, 17, 33, 100, 512 })
        for (const mask kind : { none, open, causal, random_holes, blind_row, biases })
            found |= differs<64>(count, kind) | differs<80>(count, kind) | differs<96>(count, kind) |
                     differs<128>(count, kind);
    return found;
}
