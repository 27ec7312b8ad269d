// Matrix products with Q8_0 weights in AVX2.
#include "sixteen-bit.h"

#ifndef KERNELS_AVX512

namespace {

using namespace sixteen_bit;

struct q8_0 {
    uint16_t d;
    int8_t   q[block];
};

/** A block of 16 rows: their scales, then two weights of each row, row after row, 16 times. */
struct weights16 {
    static constexpr int  blocks = 1, parts = 1;
    static constexpr bool has_minimum = false;

    uint16_t d[rows];
    int8_t   q[block / 2][rows][2];

    struct scales {
        explicit scales(const weights16 &) {}
        floats at(const weights16 & w, int, int) const { return widened_halves(w.d); }
    };

    struct eight_pairs {
        const int8_t (*q)[rows][2];
        eight_pairs(const weights16 & w, int, int quarter) : q(w.q + 4 * quarter) {}
        pairs at(int k) const {
            return { _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) q[k])),
                     _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) q[k][8])) };
        }
    };

    static void interleave(const void * data, int64_t count, void * out) {
        const auto * from = (const q8_0 *) data;
        auto *       to   = (weights16 *) out;
        for (int64_t b = 0; b < count; b++, to++)
            for (int64_t r = 0; r < rows; r++) {
                const q8_0 & one = from[r * count + b];
                to->d[r]         = one.d;
                for (int64_t k = 0; k < block / 2; k++) memcpy(to->q[k][r], one.q + 2 * k, 2);
            }
    }
};
static_assert(sizeof(q8_0) == 34 && sizeof(weights16) == rows * sizeof(q8_0), "as in the file, and as large");

}  // namespace

const weight_format eight_bit_format = sixteen_bit::format_of<weights16>(ggml_type_q8_0);

#endif
