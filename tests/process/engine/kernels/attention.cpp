// Attention of many rows at once gives the numbers of few at a time, to the bit, and they are near the exact ones: with
// a cache in 16 and in eight bits, without tiles and in them. Prints what differs.
#include "../../../../engine/kernels/attention.cpp"

#include <cstdio>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

enum mask { none, open, causal, window, random_holes, blind_row, biases };

static uint16_t half(float x) { return (uint16_t) _mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)); }

static float number(uint16_t half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }

/** The nearest bfloat16 number; the one of greater magnitude, or the even one, where two are as near. */
static float rounded(float x, bool to_even) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    bits += to_even ? 0x7fff + (bits >> 16 & 1) : 0x8000;
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof(bits));
    return x;
}

static void write(half_rows, const float * from, int length, char * to) {
    for (int i = 0; i < length; i++) ((uint16_t *) to)[i] = half(from[i]);
}
static void write(eight_bit_cache_rows, const float * from, int length, char * to) {
    for (int b = 0; b < length; b += 32) {
        float largest = 0;
        for (int i = b; i < b + 32; i++) largest = std::max(largest, std::fabs(from[i]));
        char * const   block = to + eight_bit_cache_rows::bytes(b);
        const uint16_t scale = half(largest / 127);
        memcpy(block, &scale, sizeof(scale));
        for (int i = 0; i < 32; i++) block[2 + i] = (char) std::lround(from[b + i] * 127 / largest);
    }
}
static float read(half_rows, const char * row, int at) { return number(((const uint16_t *) row)[at]); }
static float read(eight_bit_cache_rows, const char * row, int at) {
    const char * block = row + eight_bit_cache_rows::bytes(at / 32 * 32);
    uint16_t     scale;
    memcpy(&scale, block, sizeof(scale));
    return number(scale) * (float) (int8_t) block[2 + at % 32];
}

/** The cache of a head, the queries, and what each row sees. */
template <int D, typename Rows> struct example {
    const int                     count;
    std::vector<char>             k, v;
    std::vector<uint16_t>         masks;
    std::vector<float>            q;
    const float *                 query[rows_tiles];
    const uint16_t *              seen[rows_tiles];
    view                          cache;
    static constexpr int          row = Rows::bytes(D), rows = rows_tiles;

    example(int count, mask kind) : count(count), k(count * row), v(count * row), masks(rows * count, 0), q(rows * D) {
        std::mt19937                    random(D + count + kind);
        std::normal_distribution<float> normal;
        std::vector<float>              numbers(D);
        for (int j = 0; j < count; j++)
            for (char * to : { &k[j * row], &v[j * row] }) {
                for (float & x : numbers) x = (to == &k[j * row] ? 2 : 1) * normal(random);
                write(Rows(), numbers.data(), D, to);
            }
        for (float & x : q) x = 2 * normal(random);
        constexpr uint16_t hidden = 0xfc00, not_a_number = 0x7e00;
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < count; j++) {
                uint16_t & m = masks[r * count + j];
                if (kind == causal && j > count - rows + r) m = hidden;
                if (kind == window && (j > count - 8 + r / 16 || j < count - 40 + r / 16)) m = hidden;
                if (kind == random_holes && (random() % 3 == 0 || j % 37 == 5)) m = hidden;
                if (kind == blind_row && r == 7) m = hidden;
                if (kind == biases) m = half(-(float) (random() % 5));
            }
        // What nobody sees was never written.
        if (kind == random_holes)
            for (int j = 5; j < count; j += 37)
                for (int at = 0; at + 2 <= row; at += 2) {
                    memcpy(&k[j * row + at], &not_a_number, 2);
                    memcpy(&v[j * row + at], &not_a_number, 2);
                }
        for (int r = 0; r < rows; r++) {
            query[r] = &q[r * D];
            seen[r]  = kind == none ? nullptr : &masks[r * count];
        }
        cache = { k.data(), v.data(), row, row, 0.125f };
    }

    float at(const std::vector<char> & rows, int j, int i, bool in_tiles) const {
        const float exact = read(Rows(), &rows[j * row], i);
        return in_tiles ? rounded(exact, Rows::block > 1) : exact;
    }

    /** Whether a row's attention is the one in 64 bits. In tiles, keys and values are rounded. */
    bool is_near(const partial & found, int r, bool in_tiles) const {
        std::vector<double> scores(count), sums(D);
        double              top = -INFINITY, total = 0;
        for (int j = 0; j < count; j++) {
            scores[j] = seen[r] ? number(seen[r][j]) : 0;
            if (scores[j] == -INFINITY) continue;
            double product = 0;
            for (int i = 0; i < D; i++) product += (double) at(k, j, i, in_tiles) * query[r][i];
            scores[j] += product * cache.scale;
            top = std::max(top, scores[j]);
        }
        for (int j = 0; j < count; j++) {
            if (scores[j] == -INFINITY) continue;
            const double weight = exp(scores[j] - top);
            total += weight;
            for (int i = 0; i < D; i++) sums[i] += weight * at(v, j, i, in_tiles);
        }
        if (total == 0) return found.weights[r] == 0;
        for (int i = 0; i < D; i++)
            if (!(std::fabs(found.values()[r * D + i] / found.weights[r] - sums[i] / total) < (in_tiles ? 3e-4 : 1e-4)))
                return false;
        return true;
    }
};

/** `many` computes all rows; `few(from, rows, out)` some. Returns what differs, or null. */
template <int D, typename Rows, typename Few>
static const char * compare(const example<D, Rows> & of, const partial & many, int rows, bool in_tiles,
                            const Few & few) {
    std::vector<char> memory(partial::bytes(D, rows_tiles));
    auto &            some = *(partial *) memory.data();
    for (int from = 0, next = 1; from < rows; next = next % (in_tiles ? 40 : (int) rows_few) + 1) {
        const int count = std::min(next, rows - from);
        few(from, count, some);
        if (memcmp(many.max + from, some.max, count * sizeof(float)) != 0) return "highest scores";
        if (memcmp(many.weights + from, some.weights, count * sizeof(float)) != 0) return "weights";
        if (memcmp(many.values() + from * D, some.values(), count * D * sizeof(float)) != 0) return "values";
        from += count;
    }
    for (int r = 0; r < rows; r++)
        if (!of.is_near(many, r, in_tiles)) return "distance";
    for (int i = 0; i < rows * D; i++)
        if (std::isnan(many.values()[i])) return "no number";
    return nullptr;
}

template <int D, typename Rows> static bool differs(int count, mask kind) {
    const example<D, Rows> of(count, kind);
    std::vector<char>      memory(partial::bytes(D, rows_tiles));
    auto &                 many  = *(partial *) memory.data();
    bool                   found = false;
    const auto             check = [&](const char * problem, const char * way) {
        if (problem)
            printf("%s: heads of %d, type %d, %d keys, mask %d, %s\n", problem, D, Rows::type, count, kind, way);
        found |= problem != nullptr;
    };
    attend_many_for(D, Rows::type)(of.cache, of.query, of.seen, 0, count, many);
    check(compare(of, many, rows_many, false,
                  [&](int from, int rows, partial & out) {
                      attend_for(D, Rows::type, rows)(of.cache, of.query + from, of.seen + from, 0, count, out);
                  }),
          "without tiles");
    const auto in_tiles = attend_tiles_for(D, Rows::type);
    if (!in_tiles) return found;
    in_tiles(of.cache, of.query, of.seen, rows_tiles, 0, count, many);
    check(compare(of, many, rows_tiles, true,
                  [&](int from, int rows, partial & out) {
                      in_tiles(of.cache, of.query + from, of.seen + from, rows, 0, count, out);
                  }),
          "in tiles");
    return found;
}

template <typename Rows> static bool any_differs(int count, mask kind) {
    bool found = differs<64, Rows>(count, kind) | differs<96, Rows>(count, kind) | differs<128, Rows>(count, kind) |
                 differs<192, Rows>(count, kind) | differs<256, Rows>(count, kind);
    if constexpr (Rows::block == 1) found |= differs<80, Rows>(count, kind);
    return found;
}

int main() {
    bool found = attend_for(80, ggml_type_q8_0, 1) != nullptr;
    for (const int count : { 1, 15, 16, 17, 33, 64, 100, 512 })
        for (const mask kind : { none, open, causal, window, random_holes, blind_row, biases })
            found |= any_differs<half_rows>(count, kind) | any_differs<eight_bit_cache_rows>(count, kind);
    return found;
}
