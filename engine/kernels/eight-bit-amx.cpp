// Matrix products with Q8_0 weights on x64 processors with AMX: a tile instruction multiplies a block of 16 rows with
// one of 16 tokens, four times as fast as AVX-512 VNNI. Scaling the sums, as there, takes longer than that.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cpuid.h>
#include <cstring>

#include "eight-bit.h"

#ifdef KERNELS_AVX512

// The compiler's own intrinsics do not say that they read memory.
#define TILE_LOAD(tile, from, stride) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t) (stride)) : "memory")
#define TILE_STORE(tile, to, stride) \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t) (stride)) : "memory")
#define TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
#define TILE_MULTIPLY(sum, x, w) asm volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #sum ::)

namespace {

#if __has_include(<amxint8intrin.h>)

struct configuration {
    uint8_t  palette, start_row, reserved[14];
    uint16_t bytes[16];  // of a row
    uint8_t  rows[16];
};

/** Tiles 0 and 1 have weights, 2 and 3 activations, the others sums. As in ggml's own kernels. */
constexpr configuration ours = { 1, 0, {}, { 64, 64, 32, 32, 64, 64, 64, 64 }, { 8, 8, 16, 16, 16, 16, 16, 16 } };

/** Configures the tiles of this thread, and leaves them as they were. */
class tiles {
    alignas(64) configuration before;

  public:
    tiles() {
        asm volatile("sttilecfg %0" : "=m"(before));
        asm volatile("ldtilecfg %0" ::"m"(ours));
    }
    ~tiles() {
        if (before.palette == 0) asm volatile("tilerelease");
        else asm volatile("ldtilecfg %0" ::"m"(before));
    }
};

constexpr int     depth      = 4;   // blocks whose sums are on the way
constexpr int64_t blocks_max = 48;  // of the rows that are multiplied at once

/** Multiplies a block with the tiles of its number. Its sums are stored later, as that waits for them. */
template <int I> inline void multiply(const int8_t * w, const activations16 & x) {
    if constexpr (I % 2 == 0) {
        TILE_LOAD(0, w, 64);
        TILE_LOAD(2, x.q, block);
    } else {
        TILE_LOAD(1, w, 64);
        TILE_LOAD(3, x.q, block);
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

/** 16 rows with `count` tokens, at most `N`. `q`: the weights, signed. Adds to `out` unless blocks are the first. */
template <int N>
void tile(const weights16 * w, const int8_t * q, const activations16 * x, int64_t blocks, bool are_first,
          float * const * out, int64_t at, int count, const void * end) {
    alignas(64) int32_t sums[depth][group][rows];
    __m512 total[N];
#pragma GCC unroll 16
    for (int t = 0; t < N; t++)
        total[t] = are_first || t >= count ? _mm512_setzero_ps() : _mm512_loadu_ps(out[t] + at);
    multiply<0>(q, x[0]);
    if (blocks > 1) multiply<1>(q + block * rows, x[1]);
    if (blocks > 2) multiply<2>(q + 2 * block * rows, x[2]);
    store<0>(sums);
#define STEP(I)                                                                                            \
    if (b + I >= blocks) break;                                                                            \
    prefetch(w + b + I, end);                                                                              \
    if (b + I + 3 < blocks) multiply<(I + 3) % depth>(q + (b + I + 3) * block * rows, x[b + I + 3]);       \
    if (b + I + 1 < blocks) store<(I + 1) % depth>(sums);                                                  \
    {                                                                                                      \
        const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) w[b + I].d));                \
        _Pragma("GCC unroll 16") for (int t = 0; t < N; t++) total[t] =                                    \
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[I][t])),                             \
                            _mm512_mul_ps(d, _mm512_set1_ps(x[b + I].d[t])), total[t]);                    \
    }
    for (int64_t b = 0; b < blocks; b += depth) {
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

constexpr decltype(&tile<4>) tiles_of[] = { tile<4>, tile<8>, tile<12>, tile<16> };

#endif

}  // namespace

#if __has_include(<amxint8intrin.h>)

void multiply_amx(const eight_bit_rows & work) {
    const tiles  configured;
    alignas(64) int8_t q[blocks_max * block * rows];
    const auto *       end = work.weights + work.count * work.blocks;
    const outlier_list outliers(work);
    for (int64_t g = 0; g < work.count; g++) {
        for (int64_t from = 0; from < work.blocks; from += blocks_max) {
            const weights16 * w      = work.weights + g * work.blocks + from;
            const int64_t     blocks = std::min(blocks_max, work.blocks - from);
            for (int64_t b = 0; b < blocks; b++) {
                for (int64_t at = 0; at < block * rows; at += 64)
                    _mm512_store_si512(q + b * block * rows + at,
                                       _mm512_xor_si512(_mm512_loadu_si512(w[b].q + at), _mm512_set1_epi8(-128)));
            }
            for (int64_t t = 0; t < work.tokens; t += group) {
                const int count = (int) std::min<int64_t>(group, work.tokens - t);
                tiles_of[(count - 1) / 4](w, q, work.x + t / group * work.blocks + from, blocks, from == 0,
                                          work.out + t, work.at + g * rows, count, t == 0 ? end : nullptr);
            }
        }
        outliers.add(g, 1);
    }
}

bool can_use_amx() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1)) return false;
    constexpr int request_permission = 0x1023, tile_data = 18;  // of asm/prctl.h
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#else

void multiply_amx(const eight_bit_rows &) {}
bool can_use_amx() { return false; }

#endif

#endif
