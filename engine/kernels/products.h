// What products with quantized weights share: the loop over tokens and rows (products.cpp), and what a format brings.
#pragma once
#include "kernels.h"

constexpr int64_t block = 32;  // activations with one scale
constexpr int64_t rows  = 16;  // rows that are interleaved

/** A block of the file: its scale, and the weights in units of it. */
struct q8_0 {
    uint16_t d;
    int8_t   q[block];
};

/** Four neighbours among a token's activations, of which one is large: they have 16 bits, and are 0 in their block. */
struct outlier {
    int32_t block, four;  // where they are: which block, and which four of it
    int32_t high, low;    // four times eight bits; a unit of `low` is a 256th of one of `high`
    int32_t sum;          // of both, in units of `low`
    float   d;            // the scale of `low`
    float * out;          // where its token's results are
};

/** Products of some rows of a matrix with its tokens, by one thread. */
struct product_rows {
    const void *  weights;  // of the first rows
    int64_t       blocks;   // of 32 weights, of a row
    int64_t       count;    // times 16 rows
    const void *  x;        // of the first group of tokens; those of the next ones follow, block after block
    int64_t       tokens;
    float * const * out;  // where each token's results are
    int64_t         at;   // the place of the first row there
    const int32_t * outliers_of;  // how many outliers each token has
    const outlier * outliers;     // those of the first token; those of the next one are `most` further
    int64_t         most;
};

/** Weights of one type in a layout of 16 interleaved rows, which is as large as in the file. */
struct weight_format {
    int     type;
    int64_t length;       // weights of a block of the file
    size_t  bytes;        // of 16 rows of such a block
    int     group;        // tokens whose activations are stored together
    size_t  activations;  // bytes of a block of such a group. What is beyond its last token is not initialized

    /** The most outliers that a token may have. */
    int64_t (*most_outliers)(int64_t blocks);
    /** Rounds the activations of token `t` of a group. Returns how many outliers they have. */
    int32_t (*round)(const float * x, void * out, int t, int64_t blocks, outlier * outliers);
    void (*multiply)(const product_rows & work);
    /** Brings 16 rows of `blocks` blocks of the file into the layout. */
    void (*interleave)(const void * from, int64_t blocks, void * to);
};

/** How the weights of this type of ggml are multiplied; null if they are not. */
const weight_format * format_of(int type);

/** Those that this build has, until null. */
extern const weight_format * const weight_formats[];
