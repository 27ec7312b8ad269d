// Adds the kernels to ggml's CPU backend, as a buffer type that llama.cpp prefers for the weights that it supports: the
// way of the backend's own interleaved types. The backend asks each buffer type first when it computes an operation.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "kernels.h"

void (*barrier)(struct ggml_threadpool *);

namespace {

void * device;
ggml_backend_buffer_type * buffer_type();

class buffer_traits : public ggml::cpu::extra_buffer_type {
    /** llama.cpp asks it of each weight, to choose its buffer. */
    bool supports_op(void *, const ggml_tensor * op) override {
        const ggml_backend_buffer *weights = op->src[0]->buffer, *x = op->src[1] ? op->src[1]->buffer : nullptr;
        return weights && weights->buft == buffer_type() && (is_quantized_product(op) || is_bfloat16_product(op)) &&
               (!x || ggml_backend_buft_is_host(x->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (op->op == ggml_op_mul_mat || op->op == ggml_op_mul_mat_id) {
            if (op->src[0]->buffer && op->src[0]->buffer->buft == buffer_type())
                return op->src[0]->type == ggml_type_bf16 ? bfloat16_traits() : quantized_traits(op->src[0]->type);
            return is_low_rank_product(op) ? low_rank_traits() : nullptr;
        }
        return is_attention(op) ? attention_traits() : nullptr;
    }
};

void set_tensor(ggml_backend_buffer *, ggml_tensor * tensor, const void * data, size_t, size_t) {
    if (tensor->type == ggml_type_bf16) pack_bfloat16(tensor, data);
    else interleave(tensor, data);
}

ggml_backend_buffer * alloc_buffer(ggml_backend_buffer_type * type, size_t size) {
    ggml_backend_buffer * buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), size);
    if (!buffer) return nullptr;
    // Weights are read from end to end in each step: pages of 4 KB cost a fifth more time. A system without large ones
    // ignores it.
    constexpr uintptr_t page  = 4096;
    const uintptr_t     begin = ((uintptr_t) buffer->get_base(buffer) + page - 1) / page * page;
    const uintptr_t     end   = ((uintptr_t) buffer->get_base(buffer) + size) / page * page;
    if (begin < end) madvise((void *) begin, end - begin, MADV_HUGEPAGE);
    buffer->buft        = type;
    buffer->init_tensor = nullptr;
    buffer->set_tensor  = set_tensor;
    buffer->get_tensor  = nullptr;
    buffer->cpy_tensor  = nullptr;
    return buffer;
}

ggml_backend_buffer_type * buffer_type() {
    static ggml_backend_buffer_type type = {
        /* .get_name       = */ [](ggml_backend_buffer_type *) { return "CPU_TUNERY"; },
        /* .alloc_buffer   = */ alloc_buffer,
        /* .get_alignment  = */ [](ggml_backend_buffer_type *) -> size_t { return 64; },
        /* .get_max_size   = */ nullptr,
        /* .get_alloc_size = */ nullptr,
        /* .is_host        = */ nullptr,
        /* .device         = */ device,
        /* .context        = */ new buffer_traits(),
    };
    return &type;
}

/**
 * ggml's buffers for AMX, without stacks of matrices: it takes such weights when a model is loaded, and aborts when
 * they are multiplied with a view, as in latent attention.
 */
class matrices_alone : public ggml::cpu::extra_buffer_type {
  public:
    explicit matrices_alone(extra_buffer_type * all) : all(all) {}

    bool supports_op(void * device, const ggml_tensor * op) override {
        return op->src[0] && op->src[0]->ne[2] == 1 && all->supports_op(device, op);
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return all->get_tensor_traits(op);
    }

  private:
    extra_buffer_type * const all;
};

int find_cpu_backend(dl_phdr_info * info, size_t, void * found) {
    const std::string path = info->dlpi_name ? info->dlpi_name : "";
    if (path.find("libggml-cpu") == std::string::npos) return 0;
    *(std::string *) found = path;
    return 1;
}

void * cpu_backend() {
    std::string path;
    dl_iterate_phdr(find_cpu_backend, &path);
    return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
}

using buffer_types = std::vector<ggml_backend_buffer_type *> & (*) ();
buffer_types types_of(void * library) {
    return (buffer_types) dlsym(library, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
}

/** Not inlined: it may begin with instructions that the caller has yet to ask for. */
__attribute__((noinline)) void keep_stacks_from_amx() {
    void * const       library = cpu_backend();
    const buffer_types types   = library ? types_of(library) : nullptr;
    if (!types) return;
    for (ggml_backend_buffer_type * type : types())
        if (type->context && std::string(ggml_backend_buft_name(type)) == "AMX")
            type->context = new matrices_alone((ggml::cpu::extra_buffer_type *) type->context);
}

__attribute__((noinline)) const char * add() {
    void * const library = cpu_backend();
    if (!library) return "the CPU backend is not loaded";
    const buffer_types types = types_of(library);
    barrier = (void (*)(struct ggml_threadpool *)) dlsym(library, "ggml_barrier");
    device  = ggml_backend_dev_by_type(ggml_backend_device_type_cpu);
    if (!types || !barrier || !device) return "the CPU backend is of another version";
    types().insert(types().begin(), buffer_type());
    return nullptr;
}

}  // namespace

/** Mends the CPU backend, which must be loaded, before the first model is: once, with or without the kernels. */
extern "C" __attribute__((visibility("default"), target("no-avx"))) void tunery_mend_backend() {
    static bool is_mended = false;
    // All processors with AMX have these.
    if (!is_mended && __builtin_cpu_supports("avx512vnni")) keep_stacks_from_amx();
    is_mended = true;
}

/**
 * Adds the kernels to the CPU backend, which must be loaded, before the first model is. Null; or why they were not
 * added, and then nothing has changed. Runs on every x64 processor, as bundles bring the kernels to other machines.
 */
extern "C" __attribute__((visibility("default"), target("no-avx"))) const char * tunery_add_kernels() {
    static bool is_added = false;
    if (is_added) return nullptr;
#ifdef KERNELS_AVX512
    for (const bool has : { __builtin_cpu_supports("avx512f") != 0, __builtin_cpu_supports("avx512bw") != 0,
                            __builtin_cpu_supports("avx512dq") != 0, __builtin_cpu_supports("avx512vl") != 0,
                            __builtin_cpu_supports("avx512vnni") != 0 })
        if (!has) return "the processor has no AVX-512 VNNI";
#else
    for (const bool has : { __builtin_cpu_supports("avx2") != 0, __builtin_cpu_supports("fma") != 0,
                            __builtin_cpu_supports("f16c") != 0 })
        if (!has) return "the processor has no AVX2";
#endif
    const char * const problem = add();
    is_added                   = !problem;
    return problem;
}
