// Root-mean-square norms of groups of columns. A block per row and group; outputs may be the inputs.
#include "common/order.cuh"
#include "common/warp.cuh"

// out = x / sqrt(mean(x^2) + eps) * weight
KERNEL norm_rows(const float* x, const float* weight, float* out, u32 group, float eps) {
    let_next_begin();
    let_next_begin();
    wait_for_inputs();
    const u64 at = u64(blockIdx.x) * group;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) {
        const float value = x[at + i];
        sum += value * value;
    }
    const float inverse = 1.0f / sqrtf(block_sum(sum) / float(group) + eps);
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) out[at + i] = x[at + i] * inverse * weight[i];
}

// The same for groups of whole fours.
KERNEL norm_rows_by_4(const float4* x, const float4* weight, float4* out, u32 group, float eps) {
    let_next_begin();
    let_next_begin();
    wait_for_inputs();
    const u32 fours = group / 4;
    const u64 at = u64(blockIdx.x) * fours;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < fours; i += blockDim.x) {
        const float4 value = x[at + i];
        sum += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
    }
    const float inverse = 1.0f / sqrtf(block_sum(sum) / float(group) + eps);
    for (u32 i = threadIdx.x; i < fours; i += blockDim.x) {
        const float4 value = x[at + i], by = weight[i];
        out[at + i] = make_float4(value.x * inverse * by.x, value.y * inverse * by.y, value.z * inverse * by.z,
                                  value.w * inverse * by.w);
    }
}

// x = norm(x) * weight * activation(gate), or, with `before`, norm(x * activation(gate)) * weight. The weights of
// group `g` are row `g % weight_rows`; without a weight there is no norm either.
KERNEL gated_norm_rows(float* x, const float* gate, const float* weight, u32 group, u32 weight_rows, float eps,
                       u32 activation, u32 before) {
    let_next_begin();
    let_next_begin();
    wait_for_inputs();
    const u64 at = u64(blockIdx.x) * group;
    if (weight == nullptr) {
        for (u32 i = threadIdx.x; i < group; i += blockDim.x) x[at + i] *= activate(activation, gate[at + i]);
        return;
    }
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) {
        const float value = before ? x[at + i] * activate(activation, gate[at + i]) : x[at + i];
        sum += value * value;
    }
    const float inverse = 1.0f / sqrtf(block_sum(sum) / float(group) + eps);
    weight += u64(blockIdx.x % weight_rows) * group;
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) {
        const float by = activate(activation, gate[at + i]);
        const float value = x[at + i];
        x[at + i] = before ? value * by * inverse * weight[i] : value * inverse * weight[i] * by;
    }
}
