// What the kernels share. Each operation is computed by all threads of a pool at once.
#pragma once
#include <atomic>

#include "ggml.h"

extern void (*barrier)(struct ggml_threadpool *);

inline int64_t rows_of(const ggml_tensor * t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

inline char * row_at(const ggml_tensor * t, int64_t row) {
    const int64_t i1 = row % t->ne[1], i2 = row / t->ne[1] % t->ne[2], i3 = row / (t->ne[1] * t->ne[2]);
    return (char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
}

inline size_t  padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/** Hands out numbers from 0 to `count` to the threads: each begins with its own, as one may lose its core meanwhile. */
class shared_loop {
    std::atomic<int64_t> * next;
    int64_t                at;
    const int64_t          count;

  public:
    static constexpr size_t bytes = 64;

    /** `memory`: of `bytes`, the same for all threads. They wait for each other here. */
    shared_loop(void * memory, const ggml_compute_params * params, int64_t count) :
        next((std::atomic<int64_t> *) memory), at(params->ith), count(count) {
        if (params->ith == 0) next->store(params->nth, std::memory_order_relaxed);
        barrier(params->threadpool);
    }

    /** The next number, or -1. */
    int64_t take() {
        if (at >= count) return -1;
        const int64_t taken = at;
        at                  = next->fetch_add(1, std::memory_order_relaxed);
        return taken;
    }
};

/** Products with quantized weights, also of experts, in a layout of their own. */
bool                       is_quantized_product(const ggml_tensor * op);
ggml::cpu::tensor_traits * quantized_traits(int type);
/** Brings weights of the file into that layout. */
void interleave(ggml_tensor * tensor, const void * data);

/** Products with bfloat16 weights, in a layout of their own too. */
bool                       is_bfloat16_product(const ggml_tensor * op);
ggml::cpu::tensor_traits * bfloat16_traits();
void                       pack_bfloat16(ggml_tensor * tensor, const void * data);

/** Products with a factor of an adapter. */
bool                       is_low_rank_product(const ggml_tensor * op);
ggml::cpu::tensor_traits * low_rank_traits();

/** Attention to a cache in 16 bits. */
bool                       is_attention(const ggml_tensor * op);
ggml::cpu::tensor_traits * attention_traits();
