// What a norm of a group of columns is made of, in one order wherever it is made. No sum is fused with a product but here: which
// of them are is up to the compiler otherwise, in every kernel anew.
#pragma once
#include "common/types.cuh"

DEVICE float square_sum(const float4& x) {
    return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.x, x.x, __fmul_rn(x.y, x.y))));
}

// One over the root of the mean of `group` squares, of which there is the sum.
DEVICE float inverse_root(float squares, u32 group, float eps) { return 1.0f / sqrtf(squares / float(group) + eps); }

DEVICE float normed(float value, float inverse, float weight) { return __fmul_rn(__fmul_rn(value, inverse), weight); }
