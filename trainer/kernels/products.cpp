#include "products.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr int block_rows = 8, block_panels = 2;

void multiply_avx512(const Product & product) {
    const auto [a, a_stride, packed, panel, c, c_stride, rows, columns, depth, add] = product;
    const bf16 * b = packed;
    for (int64_t column = 0; column < columns; column += block_panels * panel_columns, b += block_panels * panel)
        for (int64_t row = 0; row < rows; row += block_rows) {
            // Unrolled, so that the sums are in registers.
            __m512 sums[block_rows][block_panels];
            float * to = c + row * c_stride + column;
#pragma GCC unroll 8
            for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 2
                for (int p = 0; p < block_panels; ++p)
                    sums[r][p] = add ? _mm512_loadu_ps(to + r * c_stride + p * panel_columns) : _mm512_setzero_ps();
            for (int64_t k = 0; k < depth; k += 2) {
                __m512bh weights[block_panels];
#pragma GCC unroll 2
                for (int p = 0; p < block_panels; ++p)
                    weights[p] = (__m512bh) _mm512_loadu_si512(b + p * panel + k * panel_columns);
#pragma GCC unroll 8
                for (int r = 0; r < block_rows; ++r) {
                    int32_t pair;
                    memcpy(&pair, a + (row + r) * a_stride + k, sizeof(pair));
                    const __m512bh both = (__m512bh) _mm512_set1_epi32(pair);
#pragma GCC unroll 2
                    for (int p = 0; p < block_panels; ++p) sums[r][p] = _mm512_dpbf16_ps(sums[r][p], both, weights[p]);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 2
                for (int p = 0; p < block_panels; ++p)
                    _mm512_storeu_ps(to + r * c_stride + p * panel_columns, sums[r][p]);
        }
}

void multiply_amx(const Product & product) {
    const auto [a, a_stride, packed, panel, c, c_stride, rows, columns, depth, add] = product;
    const int64_t c_bytes = c_stride * 4, a_bytes = a_stride * 2;
    const bf16 * b = packed;
    for (int64_t column = 0; column < columns; column += side, b += 2 * panel)
        for (int64_t row = 0; row < rows; row += side) {
            float * upper = c + row * c_stride + column;
            float * lower = upper + 16 * c_stride;
            if (add) {
                _tile_loadd(0, upper, c_bytes);
                _tile_loadd(1, upper + 16, c_bytes);
                _tile_loadd(2, lower, c_bytes);
                _tile_loadd(3, lower + 16, c_bytes);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int64_t k = 0; k < depth; k += side) {
                _tile_loadd(4, a + row * a_stride + k, a_bytes);
                _tile_loadd(6, b + k * panel_columns, 64);
                _tile_loadd(7, b + panel + k * panel_columns, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_loadd(5, a + (row + 16) * a_stride + k, a_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, upper, c_bytes);
            _tile_stored(1, upper + 16, c_bytes);
            _tile_stored(2, lower, c_bytes);
            _tile_stored(3, lower + 16, c_bytes);
        }
}

namespace {

/** Eight tiles of 16 rows of 64 bytes. Not a local variable: gcc 12 believes that only its first 8 bytes are read. */
struct {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
} all_tiles;
static_assert(sizeof(all_tiles) == 64);

}  // namespace

Tiles::Tiles() {
    if (!has_amx()) return;
    _tile_storeconfig(before);
    _tile_loadconfig(&all_tiles);
}

Tiles::~Tiles() {
    if (has_amx()) _tile_loadconfig(before);
}

/** Linux keeps the tiles' registers only of processes that asked for them. */
bool has_amx() {
    static const bool has = [] {
        unsigned a, b, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
        constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
        constexpr long request_permission = 0x1023, tile_data = 18;
        return (d & amx_bf16) && (d & amx_tile) && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return has;
}

extern "C" __attribute__((visibility("default"))) int32_t tunery_kernels_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16");
}
