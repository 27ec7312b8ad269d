// Attention in tiles of AMX, for any number of rows. Tiles multiply bfloat16 numbers: keys and values are rounded to
// them, which costs less than eight bits in the cache; queries and weights are sums of two. A sum of a row has the same
// order wherever the row is in a tile, and whatever the others are.
#include "tiles.h"

#include "attention.h"

#ifdef KERNELS_AMX

#pragma GCC push_options
#pragma GCC target("avx512bf16")

namespace {

constexpr int tile_rows = 16, tile_numbers = 512;  // of 16 bits
constexpr int keys_block = 64;                     // computed together
constexpr int keys_ahead = 64;                     // between what is computed and what is asked for

/** Bfloat16 numbers. A pair has numbers 2n and 2n + 1 of a key, or keys j and j + 16. */
struct tile {
    alignas(64) uint16_t numbers[tile_numbers];
};
/** Two tiles whose sum is meant. */
struct sum_of_tiles {
    tile high, low;
};

template <int D> struct operands {
    tile              k[keys_block / tile_rows][D / 32];  // rows are keys
    tile              v[keys_block / 32][D / 16];         // rows are pairs of keys; columns in the order of `unordered`
    sum_of_tiles      q[rows_tiles / tile_rows][D / 32];  // columns are rows of the result
    sum_of_tiles      p[keys_block / 32];                 // weights: rows are those of the result
    alignas(64) float scores[2][keys_block][tile_rows];  // of two tiles of rows in turn
};

/** 32 numbers of a row from `at` on, as bfloat16 numbers times `1 / factor`. */
inline __m512i load_bfloat16(half_rows, const char * row, int at) {
    // Without a change of exponents, which have another bias: three bits less, rounded. Numbers below 6e-5 become 0.
    const __m512i nearest = _mm512_add_epi16(_mm512_loadu_si512(row + 2 * at), _mm512_set1_epi16(4));
    return _mm512_and_si512(_mm512_srai_epi16(nearest, 3), _mm512_set1_epi16((short) 0x8fff));
}
inline __m512i load_bfloat16(eight_bit_cache_rows, const char * row, int at) {
    using rows = eight_bit_cache_rows;
    return (__m512i) _mm512_cvtne2ps_pbh(rows::load(row, at + 16), rows::load(row, at));
}

// Sums of numbers so small would be flushed to 0, so queries and weights are larger by `lift`.
template <typename Rows> constexpr float lift = 1;
template <> constexpr float              lift<half_rows> = 0x1p96f;
template <typename Rows> constexpr float rest = 1;
template <> constexpr float              rest<half_rows> = 0x1p16f;

/** Pairs of numbers as sums of two bfloat16 numbers: the nearest ones. */
inline void split(lanes first, lanes second, lanes & high, lanes & low) {
    const __m512i top = _mm512_set1_epi32((int) 0xffff0000), half = _mm512_set1_epi32(0x8000);
    const auto    rounded = [&](lanes x) {
        return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), top);
    };
    const __m512i first_high = rounded(first), second_high = rounded(second);
    const __m512i first_low  = rounded(subtract(first, _mm512_castsi512_ps(first_high)));
    const __m512i second_low = rounded(subtract(second, _mm512_castsi512_ps(second_high)));
    high = _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(first_high, 16), second_high));
    low  = _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(first_low, 16), second_low));
}

template <int D, typename Rows> void ask_for(const char * row) {
    for (int line = 0; line < Rows::bytes(D); line += 64) __builtin_prefetch(row + line, 0, 2);
}

/** Keys that nobody sees are zeros, as they may never have been written. */
template <int D, typename Rows>
void take_keys(const view & cache, int64_t at, int64_t end, uint64_t seen, operands<D> & to) {
    for (int j = 0; j < keys_block; j++) {
        if (at + j + keys_ahead < end) ask_for<D, Rows>(cache.k + (at + j + keys_ahead) * cache.k_stride);
        const bool   is_seen = seen >> j & 1;
        const char * row     = cache.k + (at + j) * cache.k_stride;
#pragma GCC unroll 8
        for (int s = 0; s < D / 32; s++)
            _mm512_store_si512(to.k[j / tile_rows][s].numbers + j % tile_rows * 32,
                               is_seen ? load_bfloat16(Rows(), row, 32 * s) : _mm512_setzero_si512());
    }
}

template <int D, typename Rows>
void take_values(const view & cache, int64_t at, int64_t end, uint64_t seen, operands<D> & to) {
    for (int pair = 0; pair < keys_block / 2; pair++) {
        const int first = pair / 16 * 32 + pair % 16, second = first + 16;
        for (const int j : { first, second })
            if (at + j + keys_ahead < end) ask_for<D, Rows>(cache.v + (at + j + keys_ahead) * cache.v_stride);
        const bool   sees_first = seen >> first & 1, sees_second = seen >> second & 1;
        const char * row        = cache.v + (at + first) * cache.v_stride;
#pragma GCC unroll 8
        for (int s = 0; s < D / 32; s++) {
            const __m512i one = sees_first ? load_bfloat16(Rows(), row, 32 * s) : _mm512_setzero_si512();
            const __m512i two =
                sees_second ? load_bfloat16(Rows(), row + 16 * cache.v_stride, 32 * s) : _mm512_setzero_si512();
            tile * const  tiles = &to.v[first / 32][2 * s];
            _mm512_store_si512(tiles[0].numbers + pair % 16 * 32, _mm512_unpacklo_epi16(one, two));
            _mm512_store_si512(tiles[1].numbers + pair % 16 * 32, _mm512_unpackhi_epi16(one, two));
        }
    }
}

/** Brings sums of a row from the order of columns that pairs of values have into their own. */
template <int D> void order(float * sums) {
    const __m512i first  = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int i = 0; i < D; i += 32) {
        const lanes one = load(sums + i), two = load(sums + i + 16);
        store(sums + i, _mm512_permutex2var_ps(one, first, two));
        store(sums + i + 16, _mm512_permutex2var_ps(one, second, two));
    }
}

/** Rows that are not there are zeros. */
template <int D> void take_queries(const float * const * q, int count, float factor, operands<D> & to) {
    for (int t = 0; t * tile_rows < count; t++)
        for (int s = 0; s < D / 32; s++) {
            sum_of_tiles & tiles = to.q[t][s];
            for (int half = 0; half < 2; half++) {
                lanes numbers[16];
                for (int r = 0; r < tile_rows; r++) {
                    const int row = t * tile_rows + r;
                    numbers[r]    = row < count ? multiply(load(q[row] + 32 * s + 16 * half), all(factor)) : all(0);
                }
                transpose(numbers);
                for (int d = 0; d < 16; d += 2) {
                    lanes high, low;
                    split(numbers[d], numbers[d + 1], high, low);
                    store((float *) (tiles.high.numbers + 32 * (8 * half + d / 2)), high);
                    store((float *) (tiles.low.numbers + 32 * (8 * half + d / 2)), low);
                }
            }
        }
}

/** Products of 16 rows with all keys of the block, by key. */
template <int D> void multiply_keys(operands<D> & by, int t, float (*scores)[tile_rows]) {
    static_assert(keys_block == 4 * tile_rows);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
#define MULTIPLY(J, TILE)                        \
    TILE_LOAD(TILE, by.k[J][s].numbers, 64);     \
    TILE_MULTIPLY_BFLOAT16(J, TILE, 4);          \
    TILE_MULTIPLY_BFLOAT16(J, TILE, 5);
#pragma GCC unroll 8
    for (int s = 0; s < D / 32; s++) {
        TILE_LOAD(4, by.q[t][s].high.numbers, 64);
        TILE_LOAD(5, by.q[t][s].low.numbers, 64);
        MULTIPLY(0, 6)
        MULTIPLY(1, 7)
        MULTIPLY(2, 6)
        MULTIPLY(3, 7)
    }
#undef MULTIPLY
    TILE_STORE(0, scores[0], 64);
    TILE_STORE(1, scores[16], 64);
    TILE_STORE(2, scores[32], 64);
    TILE_STORE(3, scores[48], 64);
}

/** Adds the values of the block by their weights to 16 rows. */
template <int D> void add_values(const operands<D> & by, float * sums) {
    constexpr int row = D * sizeof(float);
#define MULTIPLY(SUM, TILE)                          \
    TILE_LOAD(TILE, by.v[s][t + SUM].numbers, 64);   \
    TILE_MULTIPLY_BFLOAT16(SUM, 4, TILE);            \
    TILE_MULTIPLY_BFLOAT16(SUM, 5, TILE);
    for (int t = 0; t < D / 16; t += 2) {
        TILE_LOAD(0, sums + 16 * t, row);
        TILE_LOAD(1, sums + 16 * t + 16, row);
#pragma GCC unroll 2
        for (int s = 0; s < keys_block / 32; s++) {
            TILE_LOAD(4, by.p[s].high.numbers, 64);
            TILE_LOAD(5, by.p[s].low.numbers, 64);
            MULTIPLY(0, 6)
            MULTIPLY(1, 7)
        }
        TILE_STORE(0, sums + 16 * t, row);
        TILE_STORE(1, sums + 16 * t + 16, row);
    }
#undef MULTIPLY
}

/** Largest score and sum of weights of each row so far. */
struct softmax {
    alignas(64) float max[rows_tiles], total[rows_tiles];
};

/**
 * Scores of 16 rows become weights, in tiles. `is_masked`: not all of `mask` is 0. Writes by what former sums shrink;
 * false if by nothing.
 */
template <int D>
bool weigh(operands<D> & by, float (*scores)[tile_rows], float scale, float factor, const uint16_t * const * mask,
           bool is_masked, int64_t at, int count, int tile, softmax & of, float * shrink) {
    const lanes max = load(of.max + tile * tile_rows);
    lanes       top = max;
    for (int first = 0; first < keys_block; first += 16) {
        const int some = std::clamp(count - first, 0, 16);
        lanes     biases[16];
        if (is_masked) {
            for (int r = 0; r < tile_rows; r++)
                biases[r] = mask[r] && some > 0 ? widen(load_halves(mask[r] + at + first, some)) : all(0);
            transpose(biases);
        }
        for (int j = 0; j < 16; j++) {
            float * const score = scores[first + j];
            lanes         s     = multiply_add(load(score), all(scale), is_masked ? biases[j] : all(0));
            if (j >= some) s = all(-INFINITY);
            store(score, s);
            top = maximum(top, s);
        }
    }
    const lane_mask any = is_unequal(top, all(-INFINITY)), before = is_unequal(max, all(-INFINITY));
    const lanes     less = select(before, exp_of(subtract(max, top)));
    lanes           sums[16];
    for (int s = 0; s < keys_block / 32; s++) {
        lanes high[16], low[16];
        for (int j = 0; j < 16; j++) {
            const lanes even = select(any, exp_of(subtract(load(scores[32 * s + j]), top)));
            const lanes odd  = select(any, exp_of(subtract(load(scores[32 * s + 16 + j]), top)));
            sums[j]          = s == 0 ? add(even, odd) : add(sums[j], add(even, odd));
            split(multiply(even, all(factor)), multiply(odd, all(factor)), high[j], low[j]);
        }
        transpose(high);
        transpose(low);
        for (int r = 0; r < tile_rows; r++) {
            store((float *) (by.p[s].high.numbers + 32 * r), high[r]);
            store((float *) (by.p[s].low.numbers + 32 * r), low[r]);
        }
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sums[i] = add(sums[i], sums[i + half]);
    store(of.total + tile * tile_rows, add(multiply(load(of.total + tile * tile_rows), less), sums[0]));
    store(of.max + tile * tile_rows, top);
    store(shrink, less);
    return is_unequal(less, all(1)) != 0;
}

/** The same of one of few rows: a vector has keys. The numbers are those of `weigh`, to the bit. */
template <int D>
bool weigh_one(operands<D> & by, float scale, float factor, const uint16_t * mask, int64_t at, int count, int row,
               softmax & of, float & shrink) {
    const __m512i columns = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(tile_rows));
    lanes weights[keys_block / 16];
    float top = of.max[row];
    for (int v = 0; v < keys_block / 16; v++) {
        const int   some = std::clamp(count - 16 * v, 0, 16);
        const lanes bias = mask && some > 0 ? widen(load_halves(mask + at + 16 * v, some)) : all(0);
        const lanes product = _mm512_i32gather_ps(columns, &by.scores[0][16 * v][row], sizeof(float));
        weights[v] = select(first_lanes(some), multiply_add(product, all(scale), bias), all(-INFINITY));
        top        = std::max(top, reduce_max(weights[v]));
    }
    const bool any = top != -INFINITY;
    for (lanes & weight : weights) weight = any ? exp_of(subtract(weight, all(top))) : all(0);
    for (int s = 0; s < keys_block / 32; s++) {
        lanes high, low;
        split(multiply(weights[2 * s], all(factor)), multiply(weights[2 * s + 1], all(factor)), high, low);
        store((float *) (by.p[s].high.numbers + 32 * row), high);
        store((float *) (by.p[s].low.numbers + 32 * row), low);
    }
    shrink = of.max[row] == -INFINITY ? 0 : exp_of(of.max[row] - top);
    const lanes sums = add(add(weights[0], weights[1]), add(weights[2], weights[3]));
    of.total[row]    = of.total[row] * shrink + reduce_add(sums);
    of.max[row]      = top;
    return shrink != 1;
}

/** The keys of a block that some row sees; the tiles of rows that see one, and those with a mask that is not all 0. */
struct sight {
    uint64_t seen   = 0;
    unsigned masked = 0, seeing = 0;

    sight(const uint16_t * const * mask, int rows, int64_t at, int count) {
        const uint64_t  inside = count == 64 ? ~0ull : (1ull << count) - 1;
        const __mmask32 some[] = { (__mmask32) inside, (__mmask32) (inside >> 32) };
        const uint16_t * before = nullptr;
        bool             sees = true, has_mask = false;  // of the row before
        for (int r = 0; r < rows; r++) {
            if (!mask[r]) {
                seen = inside;
                sees = true;
                has_mask = false;
            } else if (mask[r] != before) {  // heads of a token have the same mask
                sees = has_mask = false;
                for (int half = 0; half < 2; half++) {
                    const __m512i  m = _mm512_maskz_loadu_epi16(some[half], mask[r] + at + 32 * half);
                    const uint64_t open =
                        _mm512_mask_cmpneq_epu16_mask(some[half], m, _mm512_set1_epi16((short) 0xfc00));
                    seen |= open << 32 * half;
                    sees |= open != 0;
                    has_mask |= _mm512_test_epi16_mask(m, m) != 0;
                }
            }
            before = mask[r];
            seeing |= (unsigned) sees << r / tile_rows;
            masked |= (unsigned) has_mask << r / tile_rows;
        }
    }
};

constexpr int rows_one_by_one = 6;

template <int D> void shrink_row(float * sums, float by) {
    for (int i = 0; i < D; i += 16) store(sums + i, multiply(load(sums + i), all(by)));
}

template <int D, typename Rows>
void attend(const view & cache, const float * const * q, const uint16_t * const * mask, int rows, int64_t begin,
            int64_t end, partial & out) {
    const int         count = (rows + tile_rows - 1) / tile_rows;
    const configured_tiles configured(whole_tiles);
    operands<D>       by;
    softmax           of;
    const uint16_t *  masks[rows_tiles] = {};
    std::copy(mask, mask + rows, masks);
    for (int64_t j = begin; j < std::min(end, begin + keys_ahead); j++) {
        ask_for<D, Rows>(cache.k + j * cache.k_stride);
        ask_for<D, Rows>(cache.v + j * cache.v_stride);
    }
    take_queries(q, rows, lift<Rows>, by);
    const float scale = cache.scale * rest<Rows>;
    std::fill(of.max, of.max + count * tile_rows, -INFINITY);
    std::fill(of.total, of.total + count * tile_rows, 0.0f);
    std::fill(out.values(), out.values() + count * tile_rows * D, 0.0f);
    if (rows <= rows_one_by_one) memset(by.p, 0, sizeof(by.p));
    for (int64_t at = begin; at < end; at += keys_block) {
        const int   some = (int) std::min<int64_t>(keys_block, end - at);
        const sight in(masks, rows, at, some);
        if (!in.seen) continue;
        take_keys<D, Rows>(cache, at, end, in.seen, by);
        if (rows <= rows_one_by_one) {
            float * const sums = out.values();
            multiply_keys(by, 0, by.scores[0]);
            // Meanwhile the tiles multiply.
            take_values<D, Rows>(cache, at, end, in.seen, by);
            for (int r = 0; r < rows; r++) {
                float shrink;
                if (weigh_one(by, scale, lift<Rows>, masks[r], at, some, r, of, shrink))
                    shrink_row<D>(sums + r * D, shrink);
            }
            add_values(by, sums);
            continue;
        }
        take_values<D, Rows>(cache, at, end, in.seen, by);
        int tiles[rows_tiles / tile_rows], seeing = 0;
        for (int t = 0; t < count; t++)
            if (in.seeing >> t & 1) tiles[seeing++] = t;
        // The next products are computed before the last weights are read, which are still on their way to memory.
        multiply_keys(by, tiles[0], by.scores[0]);
        for (int i = 0; i < seeing; i++) {
            const int         t    = tiles[i];
            float * const     sums = out.values() + t * tile_rows * D;
            alignas(64) float shrink[tile_rows];
            const bool        is_masked = in.masked >> t & 1;
            const bool        shrinks   = weigh(by, by.scores[i % 2], scale, lift<Rows>, masks + t * tile_rows,
                                                is_masked, at, some, t, of, shrink);
            if (i + 1 < seeing) multiply_keys(by, tiles[i + 1], by.scores[(i + 1) % 2]);
            if (shrinks)
                for (int r = 0; r < tile_rows; r++) shrink_row<D>(sums + r * D, shrink[r]);
            add_values(by, sums);
        }
    }
    std::copy(of.max, of.max + rows, out.max);
    for (int r = 0; r < rows; r++) {
        order<D>(out.values() + r * D);
        out.weights[r] = of.total[r] / rest<Rows>;
    }
}

template <typename Rows> attend_tiles_function attend_for(int64_t length) {
    switch (length) {
        case 64: return attend<64, Rows>;
        case 96: return attend<96, Rows>;
        case 128: return attend<128, Rows>;
        case 192: return attend<192, Rows>;
        case 256: return attend<256, Rows>;
        default: return nullptr;
    }
}

}  // namespace

#pragma GCC pop_options

attend_tiles_function attend_tiles_for(int64_t length, int type) {
    static const bool has_tiles = can_use_tiles(bfloat16_tiles);
    if (!has_tiles) return nullptr;
    return type == ggml_type_q8_0 ? attend_for<eight_bit_cache_rows>(length) : attend_for<half_rows>(length);
}

#else

attend_tiles_function attend_tiles_for(int64_t, int) { return nullptr; }

#endif
