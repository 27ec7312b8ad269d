#ifndef KERNELS_AVX512
#include "kernels.h"
bool is_attention(const ggml_tensor *) { return false; }
ggml::cpu::tensor_traits * attention_traits() { return nullptr; }
bool is_low_rank_product(const ggml_tensor *) { return false; }
ggml::cpu::tensor_traits * low_rank_traits() { return nullptr; }
bool is_bfloat16_product(const ggml_tensor *) { return false; }
ggml::cpu::tensor_traits * bfloat16_traits() { return nullptr; }
void pack_bfloat16(ggml_tensor *, const void *) {}
extern "C" __attribute__((visibility("default"))) int32_t tunery_largest(const float *, int32_t, const uint32_t *, int32_t, double *, int32_t *) { return -1; }
#endif
