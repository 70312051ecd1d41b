// Root-mean-square norms, wherever they are computed: the same operations in the same order. Thread `t` of `threads` has
// fours `t`, `t + threads` and so on of a group of columns.
#pragma once
#include "common/warp.cuh"

DEVICE float add_squares(float sum, const float4& x) {
    return __fadd_rn(sum, fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, __fmul_rn(x.x, x.x)))));
}

// By what the columns of a group are multiplied, from the sums of all threads of a block.
DEVICE float inverse_of(float sum, u32 group, float eps) { return 1.0f / sqrtf(block_sum(sum) / float(group) + eps); }

DEVICE float normed(float x, float inverse, float weight) { return __fmul_rn(__fmul_rn(x, inverse), weight); }
