// A product with a factor of an adapter is the exact one, and the same to the bit however many threads compute it and
// however many tokens are beside. Prints what differs.
#include "../../../../engine/kernels/low-rank.cpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

void (*barrier)(struct ggml_threadpool *);

static ggml_tensor matrix(int type, size_t size, int64_t width, int64_t height, void * data) {
    ggml_tensor made = {};
    made.type        = type;
    made.ne[0] = width, made.ne[1] = height, made.ne[2] = made.ne[3] = 1;
    made.nb[0] = size, made.nb[1] = size * width, made.nb[2] = made.nb[3] = size * width * height;
    made.data = data;
    return made;
}

static bool differs(int64_t width, int64_t height, int64_t tokens) {
    std::mt19937                    random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t>           factor(width * height + 4 * width);  // the kernel asks for rows beyond the last
    std::vector<float>              exact(width * height), x(tokens * width), first(tokens * height);
    for (int64_t i = 0; i < width * height; i++) {
        exact[i]  = (float) (random() % 64) / 32 - 1;
        factor[i] = _cvtss_sh(exact[i], 0);
    }
    for (auto & each : x) each = normal(random);
    ggml_tensor w = matrix(ggml_type_f16, 2, width, height, factor.data());
    bool        found = false;
    for (const int threads : { 1, 2, 3, 5 }) {
        std::vector<float> out(tokens * height, NAN);
        ggml_tensor        in = matrix(ggml_type_f32, 4, width, tokens, x.data());
        ggml_tensor        op = matrix(ggml_type_f32, 4, height, tokens, out.data());
        op.op = ggml_op_mul_mat, op.src[0] = &w, op.src[1] = &in;
        if (!is_low_rank_product(&op)) return printf("not taken\n"), true;
        for (int thread = 0; thread < threads; thread++) {
            ggml_compute_params params = {};
            params.ith = thread, params.nth = threads;
            low_rank_traits()->compute_forward(&params, &op);
        }
        if (threads == 1) first = out;
        bool wrong = memcmp(first.data(), out.data(), out.size() * sizeof(float)) != 0;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t r = 0; r < height; r++) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < width; i++) {
                    sum += (double) exact[r * width + i] * x[t * width + i];
                    size += std::fabs((double) exact[r * width + i] * x[t * width + i]);
                }
                wrong |= !(std::fabs(out[t * height + r] - sum) <= 1e-5 * size + 1e-6);
            }
        if (wrong) printf("%d x %d, %d tokens, %d threads\n", (int) width, (int) height, (int) tokens, threads);
        found |= wrong;
    }
    return found;
}

int main() {
    bool found = false;
    for (const int tokens : { 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 70 }) {
        found |= differs(576, 16, tokens) | differs(1536, 48, tokens);
        found |= differs(16, 576, tokens) | differs(64, 1536, tokens);
    }
    return found;
}
