// What attention costs, the library's or ours: `attention LIBRARY_FOLDER KERNELS_FILE|library THREADS CASE…` prints the
// milliseconds of processor time of one operation, the least of several. A case is
// TYPE,LENGTH,HEADS,KEY_HEADS,TOKENS,KEYS,SEQUENCES: the cache's type (f16, q8_0), numbers of a head, query heads,
// heads of keys, and tokens and keys of each sequence.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

struct init_params {
    size_t mem_size;
    void * mem_buffer;
    bool   no_alloc;
};
struct tensor {  // as far as it is used here (engine/kernels/ggml.h)
    int     type;
    void *  buffer;
    int64_t ne[4];
    size_t  nb[4];
    char    others[248 - 40 - 16 - 64];
};

static void * library;
template <typename F> static F function(const char * name) {
    void * found = dlsym(library, name);
    if (!found) found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        fprintf(stderr, "The library has no %s.\n", name);
        exit(1);
    }
    return (F) found;
}

static double processor_ms() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}
static double wall_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(int count, char ** args) {
    if (count < 5) return 2;
    const std::string folder = args[1];
    for (const char * name : { "/libggml-base.so", "/libggml.v0.5.0.so" })
        if (!dlopen((folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL)) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    library = RTLD_DEFAULT;
    function<void (*)(const char *)>("ggml_backend_load_all_from_path")(folder.c_str());
    std::string backend;
    dl_iterate_phdr(
        [](dl_phdr_info * info, size_t, void * found) {
            const std::string path = info->dlpi_name ? info->dlpi_name : "";
            if (path.find("libggml-cpu") == std::string::npos) return 0;
            *(std::string *) found = path;
            return 1;
        },
        &backend);
    library = dlopen(backend.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (strcmp(args[2], "library") != 0) {
        void * kernels = dlopen(args[2], RTLD_NOW);
        if (!kernels) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        const char * problem = ((const char * (*) ()) dlsym(kernels, "tunery_add_kernels"))();
        if (problem) {
            fprintf(stderr, "%s\n", problem);
            return 1;
        }
    }
    const int  threads  = atoi(args[3]);
    const auto make =
        function<tensor * (*) (void *, int, int64_t, int64_t, int64_t, int64_t)>("ggml_new_tensor_4d");
    const auto data_of  = function<void * (*) (const tensor *)>("ggml_get_data");
    const auto bytes_of = function<size_t (*)(const tensor *)>("ggml_nbytes");
    const auto permute  = function<tensor * (*) (void *, tensor *, int, int, int, int)>("ggml_permute");
    const auto attend   = function<tensor * (*) (void *, tensor *, tensor *, tensor *, tensor *, float, float, float)>(
        "ggml_flash_attn_ext");
    const auto quantize = function<size_t (*)(int, const float *, void *, int64_t, int64_t, int64_t, const float *)>(
        "ggml_quantize_chunk");
    const auto compute  = function<int (*)(void *, void *, int)>("ggml_graph_compute_with_ctx");
    for (int at = 4; at < count; at++) {
        char type_name[8];
        long length, heads, key_heads, tokens, keys, sequences;
        if (sscanf(args[at], "%7[^,],%ld,%ld,%ld,%ld,%ld,%ld", type_name, &length, &heads, &key_heads, &tokens, &keys,
                   &sequences) != 7) {
            fprintf(stderr, "%s is no case.\n", args[at]);
            return 2;
        }
        const int    type  = strcmp(type_name, "q8_0") == 0 ? 8 : 1;
        const size_t cache = (size_t) length * key_heads * keys * sequences * 4;
        const size_t bytes = 2 * cache + (size_t) keys * tokens * sequences * 2 +
                             (size_t) length * heads * tokens * sequences * 16 + (256 << 20);
        void * memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(memory, bytes, MADV_HUGEPAGE);
        void * ctx = function<void * (*) (init_params)>("ggml_init")({ bytes, memory, false });
        // As llama.cpp lays them out: all heads of a token together.
        tensor * k    = make(ctx, type, length, key_heads, keys, sequences);
        tensor * v    = make(ctx, type, length, key_heads, keys, sequences);
        tensor * q    = make(ctx, 0, length, heads, tokens, sequences);
        tensor * mask = make(ctx, 1, keys, tokens, 1, sequences);
        std::mt19937                    random(7);
        std::normal_distribution<float> normal;
        std::vector<float>              numbers(1 << 16);
        for (float & x : numbers) x = normal(random);
        for (tensor * t : { k, v }) {
            const int64_t row = length * key_heads, rows = keys * sequences;
            const size_t  row_bytes = bytes_of(t) / rows;
            for (int64_t r = 0; r < rows; r++)
                quantize(type, numbers.data() + (r * 131 + (t == v ? 17 : 0)) % ((1 << 16) - row),
                         (char *) data_of(t) + r * row_bytes, 0, 1, row, nullptr);
        }
        for (int64_t i = 0; i < length * heads * tokens * sequences; i++)
            ((float *) data_of(q))[i] = numbers[(i * 31) & 0xffff];
        for (int64_t s = 0; s < sequences; s++)
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t j = 0; j < keys; j++)
                    ((uint16_t *) data_of(mask))[(s * tokens + t) * keys + j] =
                        j > keys - tokens + t ? 0xfc00 : 0;
        tensor * result = attend(ctx, permute(ctx, q, 0, 2, 1, 3), permute(ctx, k, 0, 2, 1, 3),
                                 permute(ctx, v, 0, 2, 1, 3), mask, 0.08f, 0, 0);
        void *   graph  = function<void * (*) (void *)>("ggml_new_graph")(ctx);
        function<void (*)(void *, tensor *)>("ggml_build_forward_expand")(graph, result);
        double least = 1e30;
        for (double began = wall_ms(), runs = 0; runs < 3 || wall_ms() - began < 600; runs++) {
            const double before = processor_ms();
            if (compute(ctx, graph, threads) != 0) return 1;
            least = std::min(least, processor_ms() - before);
        }
        printf("%.3f\n", least);
        fflush(stdout);
        function<void (*)(void *)>("ggml_free")(ctx);
        munmap(memory, bytes);
    }
    return 0;
}
