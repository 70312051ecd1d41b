// Root-mean-square norms of groups of columns.
#include "common/copy.cuh"
#include "common/warp.cuh"

// out = x / sqrt(mean(x^2) + eps) * weight. A block per row and group; `x` and `out` may be the same.
KERNEL norm_rows(const float* x, const float* weight, float* out, u32 group, float eps) {
    const u64 at = u64(blockIdx.x) * group;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) {
        const float value = x[at + i];
        sum += value * value;
    }
    const float inverse = 1.0f / sqrtf(block_sum(sum) / float(group) + eps);
    for (u32 i = threadIdx.x; i < group; i += blockDim.x) out[at + i] = x[at + i] * inverse * weight[i];
}
