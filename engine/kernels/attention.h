// What the two ways to compute attention share: few rows (attention.cpp) and many (attention-many.cpp). A row is a pair
// of a query head and a token. Both give the same numbers to the bit.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"

constexpr int64_t keys       = 16;   // computed together
constexpr int64_t part_keys  = 512;  // of a part
constexpr int64_t rows_few   = 4;    // rows that read keys together
constexpr int64_t rows_many  = 32;

/**
 * How many 16 numbers of a head's values are added up together for `rows` rows: their sums are in registers. The order
 * of a sum does not depend on it.
 */
constexpr int slices_for(int length, int rows) {
    const int all = length / 16;
    if (width == 16 && all <= 8) return all;
    int most = registers * 3 / 4 / (rows * (16 / width));
    while (all % most) most--;
    return most;
}

/** Attention of rows to some of the keys: the highest score, and sums relative to it. Of `bytes` of memory. */
struct partial {
    float max[rows_many], weights[rows_many];

    static size_t bytes(int64_t length) { return sizeof(partial) + rows_many * length * sizeof(float); }
    /** Row after row. */
    float *       values() { return (float *) (this + 1); }
    const float * values() const { return (const float *) (this + 1); }

    void add(const partial & other, int count, int64_t length) {
        for (int r = 0; r < count; r++) {
            if (other.max[r] == -INFINITY) continue;
            const float  top = std::max(max[r], other.max[r]);
            const float  own = max[r] == -INFINITY ? 0 : expf(max[r] - top), others = expf(other.max[r] - top);
            max[r]     = top;
            weights[r] = weights[r] * own + other.weights[r] * others;
            float *       to   = values() + r * length;
            const float * from = other.values() + r * length;
            for (int64_t i = 0; i < length; i++) to[i] = to[i] * own + from[i] * others;
        }
    }
};

/** The keys and values of a head. */
struct view {
    const char *k, *v;
    size_t      k_stride, v_stride;
    float       scale;
};

/** `rows_many` rows with the keys from `begin` to `end`. `mask`: 16-bit numbers that are added to scores, or null. */
using attend_many_function = void (*)(const view & cache, const float * const * q, const uint16_t * const * mask,
                                      int64_t begin, int64_t end, partial & out);
/** Null for a length of heads that is not supported. */
attend_many_function attend_many_for(int64_t length);
