// Values of checkpoints from f16 and to it, for slots that are saved and loaded.
#include "common/types.cuh"

KERNEL state_to_f32(const f16* from, float* to, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = to_float(from[i]);
}

KERNEL state_to_f16(const float* from, f16* to, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = to_f16(fminf(fmaxf(from[i], -65504.0f), 65504.0f));
}
