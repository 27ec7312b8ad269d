// Attention of 32 rows at once gives the numbers of up to four at a time, to the bit, and they are near the exact ones.
// Prints what differs.
#include "../../../../engine/kernels/attention.cpp"

#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

enum mask { none, open, causal, random_holes, blind_row, biases };

static uint16_t half(float x) { return (uint16_t) _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)); }

static float number(uint16_t half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }

/** Whether a row's attention is the one in 64 bits. */
static bool is_near(const view & cache, const float * q, const uint16_t * mask, int count, int length,
                    const partial & found, int row) {
    std::vector<double> scores(count), sums(length);
    double              top = -INFINITY, total = 0;
    for (int j = 0; j < count; j++) {
        const auto * key = (const uint16_t *) (cache.k + j * cache.k_stride);
        scores[j]        = mask ? number(mask[j]) : 0;
        if (scores[j] == -INFINITY) continue;
        double product = 0;
        for (int i = 0; i < length; i++) product += (double) number(key[i]) * q[i];
        scores[j] += product * cache.scale;
        top = std::max(top, scores[j]);
    }
    for (int j = 0; j < count; j++) {
        if (scores[j] == -INFINITY) continue;
        const auto * value  = (const uint16_t *) (cache.v + j * cache.v_stride);
        const double weight = exp(scores[j] - top);
        total += weight;
        for (int i = 0; i < length; i++) sums[i] += weight * number(value[i]);
    }
    if (total == 0) return found.weights[row] == 0;
    for (int i = 0; i < length; i++)
        if (!(std::fabs(found.values()[row * length + i] / found.weights[row] - sums[i] / total) < 1e-4)) return false;
    return true;
}

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
    std::vector<char> memory(2 * partial::bytes(D));
    auto &            many = *(partial *) memory.data(), &few = *(partial *) (memory.data() + partial::bytes(D));
    attend_many_for(D)(cache, query, seen, 0, count, many);
    bool found = false;
    // Also fewer rows than are computed together, as at the end of a head's.
    for (int from = 0, rows = 0; from < rows_many; from += rows) {
        rows = (int) std::min(rows % rows_few + 1, rows_many - from);
        attend_for(D, rows)(cache, query + from, seen + from, 0, count, few);
        found |= memcmp(many.max + from, few.max, rows * sizeof(float)) != 0;
        found |= memcmp(many.weights + from, few.weights, rows * sizeof(float)) != 0;
        found |= memcmp(many.values() + from * D, few.values(), rows * D * sizeof(float)) != 0;
    }
    for (int r = 0; r < rows_many; r++) found |= !is_near(cache, query[r], seen[r], count, D, many, r);
    for (int i = 0; i < rows_many * D; i++) found |= std::isnan(many.values()[i]);
    if (found) printf("heads of %d, %d keys, mask %d\n", D, count, kind);
    return found;
}

int main() {
    bool found = false;
    for (const int count : { 1, 15, 16, 17, 33, 100, 512 })
        for (const mask kind : { none, open, causal, random_holes, blind_row, biases })
            found |= differs<64>(count, kind) | differs<80>(count, kind) | differs<96>(count, kind) |
                     differs<128>(count, kind) | differs<192>(count, kind) | differs<256>(count, kind);
    return found;
}
