// Matrix instructions and nothing else: what the GPU can do at most with them (src/measure.rs).
#include "common/mma.cuh"

// Eight independent products a turn.
KERNEL __launch_bounds__(256) peak_mma_bf16(float* out, u32 turns) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    float sums[8][4] = {};
    // Numbers with all kinds of bits: zeros would take less power.
    u32 a[4], b[2];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) a[i] = (at * 2654435761u + i * 40503u) & 0xbfffbfffu;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) b[i] = (at * 2246822519u + i * 3266489917u) & 0xbfffbfffu;
    for (u32 turn = 0; turn < turns; ++turn) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) mma_bf16(sums[i], a, b);
    }
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) sum += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    out[at] = sum;
}
