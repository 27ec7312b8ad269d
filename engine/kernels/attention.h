// What the ways to compute attention share: few rows (attention.cpp), many (attention-many.cpp), and any number of them
// in tiles of AMX (attention-amx.cpp). A row is a pair of a query head and a token. The first two give the same numbers
// to the bit, and the third is used for all rows or for none.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ggml.h"
#include "lanes.h"

constexpr int64_t keys       = 16;   // computed together
constexpr int64_t part_keys  = 512;  // of a part
constexpr int64_t rows_few   = 4;    // rows that read keys together
constexpr int64_t rows_many  = 32;
constexpr int64_t rows_tiles = 128;  // in tiles of AMX

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
    float max[rows_tiles], weights[rows_tiles];

    static size_t bytes(int64_t length, int64_t rows) { return sizeof(partial) + rows * length * sizeof(float); }
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

/** Rows of a cache in 16 bits. */
struct half_rows {
    static constexpr int type = ggml_type_f16, block = 1;
    static constexpr int bytes(int length) { return 2 * length; }
    /** 16 numbers from `at` on, and as many as a register holds. */
    static lanes  load(const char * row, int at) { return widen((const uint16_t *) row + at); }
    static vector load_some(const char * row, int at) { return widen_vector((const uint16_t *) row + at); }
};

/** Rows of a cache in eight bits: blocks of 32 integers with a scale in 16 bits (Q8_0). Its products are exact. */
struct eight_bit_cache_rows {
    static constexpr int type = ggml_type_q8_0, block = 32, block_bytes = 34;
    static constexpr int bytes(int length) { return length / block * block_bytes; }
    static lanes load(const char * row, int at) {
        const char * of = row + at / block * block_bytes;
        return multiply(widen_bytes((const int8_t *) of + 2 + at % block), widen_one(of));
    }
    static vector load_some(const char * row, int at) {
        const char * of = row + at / block * block_bytes;
        return multiply(widen_byte_vector((const int8_t *) of + 2 + at % block), widen_one_vector(of));
    }
};

/** Rows with the keys from `begin` to `end`. `mask`: 16-bit numbers that are added to scores, or null. */
using attend_function = void (*)(const view & cache, const float * const * q, const uint16_t * const * mask,
                                 int64_t begin, int64_t end, partial & out);
/** For `rows_many` rows. Null for a length of heads, or a type of cache, that is not supported. */
attend_function attend_many_for(int64_t length, int type);

/** For up to `rows_tiles` rows, whose number is passed too. */
using attend_tiles_function = void (*)(const view & cache, const float * const * q, const uint16_t * const * mask,
                                       int count, int64_t begin, int64_t end, partial & out);
/** Null also where the processor has no tiles. Sums of a row are in memory for the next multiple of 16 rows. */
attend_tiles_function attend_tiles_for(int64_t length, int type);
