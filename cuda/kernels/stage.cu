// What products need besides themselves: activations in 16 bits, entries in the order of their experts, sums over experts.
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/job.cuh"
#include "quant/row.cuh"

// Row `blockIdx.x` of f32 values as bfloat16, with zeros up to `padded` columns.
KERNEL __launch_bounds__(512) stage_bf16(const float* x, u32 stride, u32 columns, u32* out, u32 padded) {
    let_next_begin();
    wait_for_inputs();
    stage_row<true>(x + u64(blockIdx.x) * stride, columns, padded, out + u64(blockIdx.x) * (padded / 2));
}

// The same as f16, divided by a power of two that keeps the largest value of the row well within them. `factors` gets it.
KERNEL __launch_bounds__(512) stage_f16(const float* x, u32 stride, u32 columns, u32* out, u32 padded, float* factors) {
    let_next_begin();
    wait_for_inputs();
    x += u64(blockIdx.x) * stride, out += u64(blockIdx.x) * (padded / 2);
    const float factor = stage_row<false>(x, columns, padded, out);
    if (threadIdx.x == 0) factors[blockIdx.x] = factor;
}

// The same of rows that are normed first, which go to `normed` as well: a thread has NORMED fours of them at most. IN_UNITS: as
// quant/wide.cuh wants them.
template <bool IS_BF16, bool IN_UNITS>
DEVICE void stage_normed(const float* x, u32 columns, u32* out, u32 padded, float* factors, const float* weight, float eps, float* normed) {
    let_next_begin();
    const RowNorm norm(weight, blockDim.x, columns, eps);
    wait_for_inputs();
    const u64 row = blockIdx.x;
    float factor;
    if constexpr (IN_UNITS) {
        factor = norm.stage<IS_BF16>(x + row * columns, padded, RowOfUnits{out, gridDim.x, blockIdx.x}, normed + row * columns);
    } else {
        factor = norm.stage<IS_BF16>(x + row * columns, padded, out + row * (padded / 2), normed + row * columns);
    }
    if (!IS_BF16 && threadIdx.x == 0) factors[row] = factor;
}

#define STAGE_NORMED(name, IN_UNITS)                                                                                        \
    KERNEL __launch_bounds__(512)                                                                                           \
        name##_bf16(const float* x, u32 columns, u32* out, u32 padded, const float* weight, float eps, float* normed) {     \
        stage_normed<true, IN_UNITS>(x, columns, out, padded, nullptr, weight, eps, normed);                                \
    }                                                                                                                       \
    KERNEL __launch_bounds__(512) name##_f16(const float* x, u32 columns, u32* out, u32 padded, float* factors,             \
                                             const float* weight, float eps, float* normed) {                               \
        stage_normed<false, IN_UNITS>(x, columns, out, padded, factors, weight, eps, normed);                               \
    }
STAGE_NORMED(stage_normed, false)
STAGE_NORMED(stage_normed_wide, true)

// Inclusive sums over the threads of a block, of two numbers each.
DEVICE uint2 sums_up_to_here(uint2 value) {
    __shared__ uint2 of_warps[32];
    const auto sum_lanes = [](uint2& x) {
#pragma unroll
        for (u32 offset = 1; offset < 32; offset *= 2) {
            const u32 first = __shfl_up_sync(ALL_LANES, x.x, offset), second = __shfl_up_sync(ALL_LANES, x.y, offset);
            if (lane_id() >= offset) x.x += first, x.y += second;
        }
    };
    sum_lanes(value);
    if (lane_id() == 31) of_warps[warp_id()] = value;
    __syncthreads();
    if (warp_id() == 0) {
        uint2 total = lane_id() < blockDim.x / 32 ? of_warps[lane_id()] : make_uint2(0, 0);
        sum_lanes(total);
        of_warps[lane_id()] = total;
    }
    __syncthreads();
    if (warp_id() == 0) return value;
    const uint2 before = of_warps[warp_id() - 1];
    return make_uint2(before.x + value.x, before.y + value.y);
}

// Entries in the order of their experts, cut into pieces of at most `most`. One block, of at least `count` threads. Shared
// memory: a word per expert.
KERNEL group_entries(const float* experts, u32 entries, u32 count, u32 most, u32* order, Piece* pieces, u32* piece_count) {
    extern __shared__ u32 next[];
    let_next_begin();
    wait_for_inputs();
    if (threadIdx.x < count) next[threadIdx.x] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < entries; i += blockDim.x) atomicAdd(&next[u32(experts[i])], 1);
    __syncthreads();
    const u32 mine = threadIdx.x < count ? next[threadIdx.x] : 0, made = ceil_div(mine, most);
    const uint2 ends = sums_up_to_here(make_uint2(mine, made));
    if (threadIdx.x < count) next[threadIdx.x] = ends.x - mine;
    for (u32 i = 0; i < made; ++i) {
        const u32 done = i * most;
        pieces[ends.y - made + i] = Piece{threadIdx.x, ends.x - mine + done, min(most, mine - done), 0};
    }
    if (threadIdx.x == blockDim.x - 1) *piece_count = ends.y;
    __syncthreads();
    // The place of an entry among those of its expert changes nothing in its sums.
    for (u32 i = threadIdx.x; i < entries; i += blockDim.x) order[atomicAdd(&next[u32(experts[i])], 1)] = i;
}

// out[row] (+)= sum_i weights[row][i] * y[row][i]
KERNEL sum_experts(const float* y, const float* weights, float* out, u32 active, u32 columns, u32 accumulate) {
    let_next_begin();
    wait_for_inputs();
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    y += u64(blockIdx.x) * active * columns + column;
    float sum = 0.0f;
    for (u32 i = 0; i < active; ++i) sum += weights[u64(blockIdx.x) * active + i] * y[u64(i) * columns];
    float* at = out + u64(blockIdx.x) * columns + column;
    *at = accumulate ? *at + sum : sum;
}

// The columns of every head after `inputs`, behind its `outputs`. Block (row and head).
KERNEL copy_left_over(const float* x, float* out, u32 inputs, u32 outputs, u32 left_over) {
    let_next_begin();
    wait_for_inputs();
    x += u64(blockIdx.x) * (inputs + left_over) + inputs;
    out += u64(blockIdx.x) * (outputs + left_over) + outputs;
    for (u32 i = threadIdx.x; i < left_over; i += blockDim.x) out[i] = x[i];
}

// Ends products that were left in parts: block (rows, entries). `is_gated`: the parts of the gate, then of what it gates.
KERNEL add_parts(Job job, u32 is_gated) {
    let_next_begin();
    wait_for_inputs();
    const u32 row = blockIdx.x * blockDim.x + threadIdx.x, entry = blockIdx.y;
    if (row >= job.rows) return;
    const u64 stride = u64(gridDim.y) * job.rows;
    const float* parts = job.parts + u64(entry) * job.rows + row;
    float sum = 0.0f, other = 0.0f;
#pragma unroll
    for (u32 segment = 0; segment < SEGMENTS; ++segment) sum += parts[segment * stride];
    if (!is_gated) return job.finish(entry, row, sum);
#pragma unroll
    for (u32 segment = 0; segment < SEGMENTS; ++segment) other += parts[(SEGMENTS + segment) * stride];
    job.finish_gated(entry, row, sum, other);
}
