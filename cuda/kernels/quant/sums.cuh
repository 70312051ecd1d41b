// What all products with matrices of 16 bits and less do alike, so that they give the same bits.
#pragma once
#include "common/hopper.cuh"
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/formats.cuh"
#include "quant/job.cuh"

static constexpr u32 THREADS = 32 * SEGMENTS;

DEVICE u32 segment_begin(u32 units, u32 segment) { return units * segment / SEGMENTS; }

// One of the two matrix instructions for a chunk. The sum of one waits for that of the other: there should be others
// between them.
template <class FORMAT> DEVICE void multiply(float (&sum)[4], u32 step, const u32 (&w)[4], const u32 (&x)[4]) {
    const u32 b[2] = {x[2 * step], x[2 * step + 1]};
    if constexpr (FORMAT::IS_BF16) mma_bf16(sum, w, b);
    if constexpr (!FORMAT::IS_BF16) mma_f16(sum, w, b);
}

#ifdef HAS_WARPGROUPS

// Both for a chunk, of four warps at once: `x` is the lower half of the description of the entries, the only one that depends on
// the place.
template <class FORMAT, u32 SUMS> DEVICE void multiply(float (&sums)[SUMS], const Words& w, u32 x, u32 adds) {
    const u64 upper = rows_of_128(nullptr) >> 32 << 32;
    products_begin();
#pragma unroll
    for (u32 step = 0; step < 2; ++step) {
        const u64 b = upper | (x + 2 * step);
        if constexpr (FORMAT::IS_BF16) product_bf16(sums, w[step], b, step == 0 ? adds : 1);
        if constexpr (!FORMAT::IS_BF16) product_f16(sums, w[step], b, step == 0 ? adds : 1);
    }
    products_commit();
}

#endif
