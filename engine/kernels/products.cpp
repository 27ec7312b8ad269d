// Matrix products with quantized weights.
//
// ggml computes them as dot products of rows. Here 16 rows are interleaved, and a tile of several tokens reads each
// weight once. The weights are those of the file: each block is summed exactly before it is scaled. How activations are
// rounded depends on the instructions. The tokens of a mixture are sorted by expert.
#include "products.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace {

/** The tokens of a matrix: all of them; of an expert's matrix those that the router has sent to it. */
struct part {
    int64_t matrix;
    int64_t first;  // of its groups of tokens
    int64_t tokens;
};

class traits : public ggml::cpu::tensor_traits {
  public:
    const weight_format & format;

    explicit traits(const weight_format & format) : format(format) {}

  private:
    /** Where things are in the memory that the threads share. */
    struct layout {
        const int64_t results, parts_max, groups_max;
        const size_t  out, places, parts, outliers, counts, loop, end;

        layout(const ggml_tensor * op, const weight_format & format) :
            results(rows_of(op)),
            parts_max(std::min(op->src[0]->ne[2], results)),
            // The last group of each part may have one token.
            groups_max((results + (format.group - 1) * parts_max) / format.group),
            out(padded(groups_max * (op->src[0]->ne[0] / block) * format.activations)),
            places(out + padded(groups_max * format.group * sizeof(float *))),
            parts(places + padded(results * sizeof(int32_t))),
            outliers(parts + padded((parts_max + 1) * sizeof(part))),
            counts(outliers + padded(groups_max * format.group * format.most_outliers(op->src[0]->ne[0] / block) *
                                     sizeof(outlier))),
            loop(counts + padded(groups_max * format.group * sizeof(int32_t))),
            end(loop + shared_loop::bytes) {}
    };

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = layout(op, format).end;
        return true;
    }

    /** Sorts the tokens by expert: the place of each result, and the parts. One without tokens ends them. */
    void sort(const ggml_tensor * op, int32_t * places, part * parts) const {
        const ggml_tensor * ids = op->src[2];
        const int64_t       results = rows_of(op);
        const auto matrix_of = [&](int64_t r) {
            return *(const int32_t *) ((char *) ids->data + r % ids->ne[0] * ids->nb[0] + r / ids->ne[0] * ids->nb[1]);
        };
        std::vector<int64_t> next(op->src[0]->ne[2]);
        for (int64_t r = 0; r < results; r++) next[matrix_of(r)]++;
        int64_t first = 0;
        for (int64_t matrix = 0; matrix < (int64_t) next.size(); matrix++) {
            const int64_t tokens = next[matrix];
            next[matrix]         = first * format.group;
            if (!tokens) continue;
            *parts++ = { matrix, first, tokens };
            first += (tokens + format.group - 1) / format.group;
        }
        *parts = {};
        for (int64_t r = 0; r < results; r++) places[r] = next[matrix_of(r)]++;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const layout  at(op, format);
        char * const  memory  = (char *) params->wdata;
        auto * const  out     = (float **) (memory + at.out);
        auto * const  places  = (int32_t *) (memory + at.places);
        auto * const  sorted  = (part *) (memory + at.parts);
        auto * const  outliers = (outlier *) (memory + at.outliers);
        auto * const  counts  = (int32_t *) (memory + at.counts);
        const int64_t blocks = w->ne[0] / block, groups = w->ne[1] / rows, most = format.most_outliers(blocks);
        const int64_t group = format.group;
        // A group of tokens, and 16 rows of the matrix.
        const size_t group_bytes = blocks * format.activations, row_bytes = w->ne[0] / format.length * format.bytes;
        const bool    has_experts = op->op == ggml_op_mul_mat_id;
        if (has_experts) {
            if (params->ith == 0) sort(op, places, sorted);
            barrier(params->threadpool);
        }
        // Threads that write neighbours of a group would take its cache lines from each other.
        const int64_t unit  = at.results < 2 * params->nth * group ? 1 : group;
        const int64_t share = (at.results + params->nth * unit - 1) / (params->nth * unit) * unit;
        for (int64_t r = params->ith * share; r < std::min(at.results, (params->ith + 1) * share); r++) {
            // A token of several experts is rounded for each: that is little beside its products.
            const int64_t row   = has_experts ? r / op->ne[1] * x->ne[1] + r % op->ne[1] % x->ne[1] : r;
            const int64_t place = has_experts ? places[r] : r;
            const auto    from  = (const float *) row_at(x, row);
            outlier * const own = outliers + place * most;
            char * const into = memory + place / group * group_bytes;
            counts[place]     = format.round(from, into, (int) (place % group), blocks, own);
            out[place]    = (float *) row_at(op, r);
            for (int32_t i = 0; i < counts[place]; i++) own[i].out = out[place];
        }
        const part         whole = { 0, 0, at.results };
        const part * const parts = has_experts ? sorted : &whole;
        int64_t            count = 1;
        while (has_experts && parts[count].tokens) count++;
        // One thread reads all weights in order. Experts have unequal numbers of tokens, so their chunks are smaller.
        const int64_t wanted = params->nth == 1 ? count : params->nth * (has_experts ? 8 : 4);
        const int64_t chunk  = std::min(groups, std::max<int64_t>(1, groups * count / wanted));
        const int64_t chunks = (groups + chunk - 1) / chunk;
        shared_loop   loop(memory + at.loop, params, count * chunks);
        for (int64_t c = loop.take(); c >= 0; c = loop.take()) {
            const part &  one   = parts[c / chunks];
            const int64_t first = c % chunks * chunk;
            format.multiply({ (const char *) w->data + (one.matrix * groups + first) * row_bytes, blocks,
                              std::min(chunk, groups - first), memory + one.first * group_bytes, one.tokens,
                              out + one.first * group, first * rows, counts + one.first * group,
                              outliers + one.first * group * most, most });
        }
        return true;
    }
};

}  // namespace

const weight_format * format_of(int type) {
    for (const weight_format * const * format = weight_formats; *format; format++)
        if ((*format)->type == type) return *format;
    return nullptr;
}

bool is_quantized_product(const ggml_tensor * op) {
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    const bool has_experts = op->op == ggml_op_mul_mat_id;
    if (!has_experts && (op->op != ggml_op_mul_mat || w->ne[2] != 1)) return false;
    const weight_format * const format = format_of(w->type);
    return format && w->ne[3] == 1 && w->ne[0] % format->length == 0 && w->ne[1] % rows == 0 &&
           x->type == ggml_type_f32 && x->nb[0] == sizeof(float);
}

ggml::cpu::tensor_traits * quantized_traits(int type) {
    static const std::vector<std::unique_ptr<traits>> all = [] {
        std::vector<std::unique_ptr<traits>> each;
        for (const weight_format * const * format = weight_formats; *format; format++)
            each.push_back(std::make_unique<traits>(**format));
        return each;
    }();
    for (const auto & one : all)
        if (one->format.type == type) return one.get();
    return nullptr;
}

void interleave(ggml_tensor * tensor, const void * data) {
    const weight_format & format = *format_of(tensor->type);
    const int64_t         blocks = tensor->ne[0] / format.length;
    const auto *          from   = (const char *) data;
    auto *                to     = (char *) tensor->data;
    for (int64_t g = 0; g < tensor->ne[1] * tensor->ne[2] / rows; g++, from += format.bytes * blocks)
        format.interleave(from, blocks, to + g * format.bytes * blocks);
}
