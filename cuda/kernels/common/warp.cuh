// Sums and maxima over a warp and over a block, in one fixed order: results depend on nothing but their inputs.
#pragma once
#include "common/types.cuh"

static constexpr u32 ALL_LANES = 0xffffffffu;

DEVICE u32 lane_id() { return threadIdx.x & 31; }
DEVICE u32 warp_id() { return threadIdx.x >> 5; }
// The same, of which the compiler knows that it is alike in all lanes: what depends on it then is worked out once for a warp.
// All lanes of a warp come here.
DEVICE u32 warp_id_of_all() { return __shfl_sync(ALL_LANES, warp_id(), 0); }

// Every lane gets the sum. `WIDTH`: neighbouring lanes that belong together, a power of two.
template <u32 WIDTH = 32> DEVICE float warp_sum(float x) {
#pragma unroll
    for (u32 offset = WIDTH / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// Adds up the sums of every `2 * OFFSET` lanes, COUNT of them, in the order of `warp_sum`, in fewer steps: what a lane sends it does not
// go on with. Where there are as many as lanes, or twice as many, each is left with its own, or two; where there are fewer, as many of
// them as lanes have one in common, which `warp_sum` is still to add up.
template <u32 COUNT, u32 OFFSET> DEVICE void sums_of_lanes(float* sums) {
    if constexpr (COUNT > 1 && OFFSET > 0) {
        const bool is_upper = lane_id() & OFFSET;
#pragma unroll
        for (u32 i = 0; i < COUNT / 2; ++i) {
            const float mine = is_upper ? sums[i + COUNT / 2] : sums[i], other = is_upper ? sums[i] : sums[i + COUNT / 2];
            sums[i] = mine + __shfl_xor_sync(ALL_LANES, other, OFFSET);
        }
        sums_of_lanes<COUNT / 2, OFFSET / 2>(sums);
    }
}

template <u32 WIDTH = 32> DEVICE float warp_max(float x) {
#pragma unroll
    for (u32 offset = WIDTH / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// Every thread of a one-dimensional block of whole warps gets the sum. All threads must come here.
DEVICE float block_sum(float x) {
    __shared__ float sums[32];
    x = warp_sum(x);
    const u32 warps = blockDim.x >> 5;
    if (warps == 1) return x;
    __syncthreads(); // the last call may still be read
    if (lane_id() == 0) sums[warp_id()] = x;
    __syncthreads();
    return warp_sum(lane_id() < warps ? sums[lane_id()] : 0.0f);
}

// The same of the first `warps` warps, for every thread of the block. Called once in a kernel.
DEVICE float sum_of_first(float x, u32 warps) {
    __shared__ float sums[32];
    x = warp_sum(x);
    if (lane_id() == 0) sums[warp_id()] = x;
    __syncthreads();
    return warp_sum(lane_id() < warps ? sums[lane_id()] : 0.0f);
}

DEVICE float block_max(float x) {
    __shared__ float most[32];
    x = warp_max(x);
    const u32 warps = blockDim.x >> 5;
    if (warps == 1) return x;
    __syncthreads();
    if (lane_id() == 0) most[warp_id()] = x;
    __syncthreads();
    return warp_max(lane_id() < warps ? most[lane_id()] : __int_as_float(0xff800000));
}

// The largest of numbers that are not below zero, for every thread of the block. Called once in a kernel.
DEVICE float largest_of_block(float x) {
    __shared__ u32 most[32];
    // Such numbers are in the order of their bits.
    const u32 of_warp = __reduce_max_sync(ALL_LANES, __float_as_uint(x));
    if (lane_id() == 0) most[warp_id()] = of_warp;
    __syncthreads();
    return __uint_as_float(__reduce_max_sync(ALL_LANES, lane_id() < blockDim.x / 32 ? most[lane_id()] : 0));
}
