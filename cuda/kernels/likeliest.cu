// The likeliest token of a row of logits. A block of 1024 threads per row.
#include "common/copy.cuh"
#include "common/warp.cuh"

static constexpr u32 NONE = 0xffffffffu;

struct Best {
    float value;
    u32 at;

    // Takes what is larger, or as large and further ahead; never what is not a number.
    DEVICE void meet(float other, u32 other_at) {
        if (other > value || (other == value && other_at < at)) {
            value = other;
            at = other_at;
        }
    }

    DEVICE void meet_lanes() {
#pragma unroll
        for (u32 offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, value, offset);
            const u32 other_at = __shfl_xor_sync(ALL_LANES, at, offset);
            meet(other, other_at);
        }
    }
};

// out[row] = the first column of the largest value; NONE if no value is above minus infinity.
KERNEL __launch_bounds__(1024) likeliest_rows(const float* logits, u32* out, u32 columns) {
    const float least = __int_as_float(0xff800000);
    const float* row = logits + u64(blockIdx.x) * columns;
    Best best{least, NONE};
    if (columns % 4 == 0) {
        for (u32 at = 4 * threadIdx.x; at < columns; at += 4 * blockDim.x) {
            const float4 four = *reinterpret_cast<const float4*>(row + at);
            if (four.x > best.value) best = {four.x, at};
            if (four.y > best.value) best = {four.y, at + 1};
            if (four.z > best.value) best = {four.z, at + 2};
            if (four.w > best.value) best = {four.w, at + 3};
        }
    } else {
        for (u32 at = threadIdx.x; at < columns; at += blockDim.x) {
            if (row[at] > best.value) best = {row[at], at};
        }
    }
    __shared__ Best of_warps[32];
    best.meet_lanes();
    if (lane_id() == 0) of_warps[warp_id()] = best;
    __syncthreads();
    if (warp_id() == 0) {
        best = of_warps[lane_id()];
        best.meet_lanes();
        if (lane_id() == 0) out[blockIdx.x] = best.at;
    }
}
