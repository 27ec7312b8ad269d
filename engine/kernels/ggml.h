// The part of ggml's binary interface that the kernels use, of llama.cpp v0.5.0 (ggml.h, ggml-backend-impl.h and
// ggml-cpu/traits.h), which set-up installs without headers. engine/llama/kernels.ts refuses other versions.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int ggml_type_f32 = 0, ggml_type_f16 = 1, ggml_type_q4_1 = 3, ggml_type_q8_0 = 8, ggml_type_q4_k = 12;
constexpr int ggml_type_q6_k = 14, ggml_type_bf16 = 30;
constexpr int ggml_op_mul_mat = 29, ggml_op_mul_mat_id = 30, ggml_op_flash_attn_ext = 74;
constexpr int ggml_backend_device_type_cpu = 0;

struct ggml_backend_buffer;
struct ggml_backend_buffer_type;

struct ggml_tensor {
    int                   type;
    ggml_backend_buffer * buffer;
    int64_t               ne[4];  // elements by dimension
    size_t                nb[4];  // bytes between them
    int                   op;
    int32_t               op_params[16];
    int32_t               flags;
    ggml_tensor *         src[10];
    ggml_tensor *         view_src;
    size_t                view_offs;
    void *                data;
    char                  name[64];
    void *                extra;
    char                  padding[8];
};

struct ggml_backend_buffer_type {
    const char * (*get_name)(ggml_backend_buffer_type *);
    ggml_backend_buffer * (*alloc_buffer)(ggml_backend_buffer_type *, size_t size);
    size_t (*get_alignment)(ggml_backend_buffer_type *);
    size_t (*get_max_size)(ggml_backend_buffer_type *);
    size_t (*get_alloc_size)(ggml_backend_buffer_type *, const ggml_tensor *);
    bool (*is_host)(ggml_backend_buffer_type *);
    void * device;
    void * context;
};

struct ggml_backend_buffer {
    void (*free_buffer)(ggml_backend_buffer *);
    void * (*get_base)(ggml_backend_buffer *);
    int (*init_tensor)(ggml_backend_buffer *, ggml_tensor *);
    void (*memset_tensor)(ggml_backend_buffer *, ggml_tensor *, uint8_t value, size_t offset, size_t size);
    void (*set_tensor)(ggml_backend_buffer *, ggml_tensor *, const void * data, size_t offset, size_t size);
    void (*get_tensor)(ggml_backend_buffer *, const ggml_tensor *, void * data, size_t offset, size_t size);
    void * set_tensor_2d;
    void * get_tensor_2d;
    bool (*cpy_tensor)(ggml_backend_buffer *, const ggml_tensor * src, ggml_tensor * dst);
    void (*clear)(ggml_backend_buffer *, uint8_t value);
    void (*reset)(ggml_backend_buffer *);
    ggml_backend_buffer_type * buft;
    void *                     context;
    size_t                     size;
    int                        usage;
};

struct ggml_compute_params {
    int    ith, nth;  // this thread and how many there are
    size_t wsize;
    void * wdata;  // for all threads
    struct ggml_threadpool * threadpool;
    bool use_ref;
};

extern "C" {
ggml_backend_buffer *      ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type *, size_t size);
const char *               ggml_backend_buft_name(ggml_backend_buffer_type *);
bool                       ggml_backend_buft_is_host(ggml_backend_buffer_type *);
ggml_backend_buffer_type * ggml_backend_dev_buffer_type(void * device);
void *                     ggml_backend_dev_by_type(int type);
}

// In the CPU backend, for its own buffer types (ggml-cpu/traits.h).
namespace ggml::cpu {
class tensor_traits {
  public:
    virtual ~tensor_traits() {}
    /** Bytes of `wdata` that the operation needs. False: what ggml's own kernel needs. */
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    /** Computes the operation on every thread. False: ggml's own kernel is to. */
    virtual bool compute_forward(ggml_compute_params * params, ggml_tensor * op) = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type() {}
    virtual bool            supports_op(void * device, const ggml_tensor * op) = 0;
    virtual tensor_traits * get_tensor_traits(const ggml_tensor * op)          = 0;
};
}  // namespace ggml::cpu
