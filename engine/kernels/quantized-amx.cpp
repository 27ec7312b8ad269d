// Matrix products with quantized weights on x64 processors with AMX: a tile instruction multiplies a block of 16 rows
// with one of 16 tokens, four times as fast as AVX-512 VNNI. Scaling the sums, as there, takes longer than that.
#include <algorithm>
#include <cstring>

#include "quantized.h"
#include "tiles.h"

#ifdef KERNELS_AVX512

#define TILE_MULTIPLY(sum, x, w) asm volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #sum ::)

namespace {

#ifdef KERNELS_AMX

/** Tiles 0 and 1 have weights, 2 and 3 activations, the others sums. As in ggml's own kernels. */
template <int parts>
constexpr tile_configuration ours = { 1, 0, {}, { 64, 64, block / parts, block / parts, 64, 64, 64, 64 },
                                      { 8 / parts, 8 / parts, 16, 16, 16, 16, 16, 16 } };

constexpr int depth     = 4;   // sums on the way
constexpr int units_max = 96;  // of the rows that are multiplied at once

/** 16 rows of weights of any type as AMX reads them: signed, a unit for each scale. Memory that a thread uses again. */
struct unpacked {
    std::vector<char> memory;
    int8_t *          q;        // 512 weights of a block, less for a part of it
    float (*d)[rows];
    float (*minimum)[rows];     // of a block

    template <class T> void read(const T * w, int64_t blocks) {
        constexpr int per   = T::length / block;
        const size_t  bytes = blocks * (block * rows + (T::parts + 1) * rows * sizeof(float));
        if (memory.size() < bytes + 64) memory.resize(bytes + 64);
        q       = (int8_t *) (((uintptr_t) memory.data() + 63) / 64 * 64);
        d       = (float(*)[rows]) (q + blocks * block * rows);
        minimum = d + blocks * T::parts;
        for (int64_t b = 0; b < blocks; b += per, w++) {
            scales_of<T> scales;
            w->scales(scales);
            for (int j = 0; j < per; j++) {
                for (int p = 0; p < T::parts; p++)
                    _mm512_store_ps(d[(b + j) * T::parts + p], scales.d[j * T::parts + p]);
                if (T::has_minimum) _mm512_store_ps(minimum[b + j], scales.minimum[j]);
#pragma GCC unroll 8
                for (int k = 0; k < 8; k++)
                    _mm512_store_si512(q + ((b + j) * 8 + k) * 64,
                                       _mm512_sub_epi8(w->numbers(j, k), _mm512_set1_epi8((char) T::zero)));
            }
        }
    }

    template <class T> void add(const outlier & one, int64_t at) const {
        const __m512i numbers = _mm512_load_si512(q + (one.block * 8 + one.four) * 64);
        const int64_t unit    = one.block * T::parts + one.four * T::parts / 8;
        outlier_list::add<T>(one, _mm512_add_epi8(numbers, _mm512_set1_epi8((char) T::zero)), _mm512_load_ps(d[unit]),
                             T::has_minimum ? _mm512_load_ps(minimum[one.block]) : _mm512_setzero_ps(), one.out + at);
    }
};

/** Multiplies a unit with the tiles of its number. Its sums are stored later, as that waits for them. */
template <int I> inline void multiply(const int8_t * w, const int8_t * x) {
    if constexpr (I % 2 == 0) {
        TILE_LOAD(0, w, 64);
        TILE_LOAD(2, x, block);
    } else {
        TILE_LOAD(1, w, 64);
        TILE_LOAD(3, x, block);
    }
    if constexpr (I == 0) { TILE_ZERO(4); TILE_MULTIPLY(4, 2, 0); }
    if constexpr (I == 1) { TILE_ZERO(5); TILE_MULTIPLY(5, 3, 1); }
    if constexpr (I == 2) { TILE_ZERO(6); TILE_MULTIPLY(6, 2, 0); }
    if constexpr (I == 3) { TILE_ZERO(7); TILE_MULTIPLY(7, 3, 1); }
}

template <int I> inline void store(int32_t (*sums)[group][rows]) {
    if constexpr (I == 0) TILE_STORE(4, sums[I], 64);
    if constexpr (I == 1) TILE_STORE(5, sums[I], 64);
    if constexpr (I == 2) TILE_STORE(6, sums[I], 64);
    if constexpr (I == 3) TILE_STORE(7, sums[I], 64);
}

/**
 * 16 rows with `count` tokens, at most `N`: `units` from `from` on. Adds to `out` unless these are the first. `next`:
 * what is read ahead, for each unit as many bytes as weights of the file's form have.
 */
template <class T, int N>
void tile(const unpacked & w, const activations16<T> * x, int from, int units, float * const * out, int64_t at,
          int count, const char * next, const void * end) {
    constexpr int     parts = T::parts, per_block = T::length / block;
    constexpr int64_t bytes = sizeof(T) / per_block / parts;
    alignas(64) int32_t sums[depth][group][rows];
    __m512 total[N];
#pragma GCC unroll 16
    for (int t = 0; t < N; t++)
        total[t] = from == 0 || t >= count ? _mm512_setzero_ps() : _mm512_loadu_ps(out[t] + at);
    const auto w_of = [&](int u) { return w.q + (int64_t) (from + u) * (block * rows / parts); };
    const auto x_of = [&](int u) { return x[(from + u) / parts].q[0] + (from + u) % parts * (block / parts); };
    multiply<0>(w_of(0), x_of(0));
    if (units > 1) multiply<1>(w_of(1), x_of(1));
    if (units > 2) multiply<2>(w_of(2), x_of(2));
    store<0>(sums);
#define STEP(I)                                                                                            \
    if (u + I >= units) break;                                                                             \
    prefetch<bytes>(next + (from + u + I) * bytes, end);                                                   \
    if (u + I + 3 < units) multiply<(I + 3) % depth>(w_of(u + I + 3), x_of(u + I + 3));                    \
    if (u + I + 1 < units) store<(I + 1) % depth>(sums);                                                   \
    {                                                                                                      \
        const activations16<T> & one = x[(from + u + I) / parts];                                          \
        const __m512             d   = _mm512_load_ps(w.d[from + u + I]);                                  \
        _Pragma("GCC unroll 16") for (int t = 0; t < N; t++) {                                             \
            total[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[I][t])),                  \
                                       _mm512_mul_ps(d, _mm512_set1_ps(one.d[t])), total[t]);              \
            if constexpr (T::has_minimum)                                                                  \
                total[t] = _mm512_fmadd_ps(_mm512_load_ps(w.minimum[from + u + I]),                        \
                                           _mm512_set1_ps(one.correction[0][t]), total[t]);                \
        }                                                                                                  \
    }
    for (int u = 0; u < units; u += depth) {
        STEP(0)
        STEP(1)
        STEP(2)
        STEP(3)
    }
#undef STEP
#pragma GCC unroll 16
    for (int t = 0; t < N; t++)
        if (t < count) _mm512_storeu_ps(out[t] + at, total[t]);
}

template <class T>
constexpr decltype(&tile<T, 4>) tiles_of[] = { tile<T, 4>, tile<T, 8>, tile<T, 12>, tile<T, 16> };

#endif

}  // namespace

#ifdef KERNELS_AMX

template <class T> void multiply_amx(const product_rows & work) {
    static thread_local unpacked w;
    const configured_tiles       configured(ours<T::parts>);
    const int64_t                length = work.blocks * block / T::length;  // of a row
    const auto *                 begin = (const T *) work.weights, *end = begin + work.count * length;
    const auto *                 x     = (const activations16<T> *) work.x;
    const outlier_list           outliers(work);
    const int                    units = (int) work.blocks * T::parts;
    for (int64_t g = 0; g < work.count; g++) {
        w.read(begin + g * length, work.blocks);
        const char * const next = (const char *) (begin + (g + 1) * length);
        const int64_t      at   = work.at + g * rows;
        for (int from = 0; from < units; from += units_max)
            for (int64_t t = 0; t < work.tokens; t += group) {
                const int count = (int) std::min<int64_t>(group, work.tokens - t);
                tiles_of<T>[(count - 1) / 4](w, x + t / group * work.blocks, from, std::min(units_max, units - from),
                                             work.out + t, at, count, next, t == 0 ? end : nullptr);
            }
        for (const outlier & one : outliers.list()) w.add<T>(one, at);
    }
}

bool can_use_amx() { return can_use_tiles(eight_bit_tiles); }

#else

template <class T> void multiply_amx(const product_rows &) {}
bool can_use_amx() { return false; }

#endif

template void multiply_amx<q8_0_rows>(const product_rows &);
template void multiply_amx<q4_1_rows>(const product_rows &);
template void multiply_amx<q4_k_rows>(const product_rows &);
template void multiply_amx<q6_k_rows>(const product_rows &);

#endif
