// Tiles of AMX: registers of 16 rows of 64 bytes, and a unit that multiplies them.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#if defined(KERNELS_AVX512) && __has_include(<amxint8intrin.h>)
#define KERNELS_AMX

// The compiler's own intrinsics do not say that they read memory.
#define TILE_LOAD(tile, from, stride) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t) (stride)) : "memory")
#define TILE_STORE(tile, to, stride) \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t) (stride)) : "memory")
#define TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
/** Adds to 16 × 16 sums in 32 bits: of `a`, 16 rows of 32 bfloat16 numbers, and `b`, 16 rows of 16 pairs of them. */
#define TILE_MULTIPLY_BFLOAT16(sum, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)

struct tile_configuration {
    uint8_t  palette, start_row, reserved[14];
    uint16_t bytes[16];  // of a row
    uint8_t  rows[16];
};

/** All tiles are 16 rows of 64 bytes. */
constexpr tile_configuration whole_tiles = {
    1, 0, {}, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 }
};

/** Configures the tiles of this thread, and leaves them as they were. */
class configured_tiles {
    alignas(64) tile_configuration before;

  public:
    explicit configured_tiles(const tile_configuration & ours) {
        asm volatile("sttilecfg %0" : "=m"(before));
        asm volatile("ldtilecfg %0" ::"m"(ours));
    }
    ~configured_tiles() {
        if (before.palette == 0) asm volatile("tilerelease");
        else asm volatile("ldtilecfg %0" ::"m"(before));
    }
};

/** What tiles may hold: the bits of cpuid's leaf 7. */
enum tile_numbers { bfloat16_tiles = 22, eight_bit_tiles = 25 };

/** Whether the processor multiplies tiles of these numbers and the system lets this process use them. */
inline bool can_use_tiles(tile_numbers numbers) {
    constexpr int has_tiles = 24;
    unsigned      a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> has_tiles & 1) || !(d >> numbers & 1)) return false;
    constexpr int request_permission = 0x1023, tile_data = 18;  // of asm/prctl.h
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#endif
