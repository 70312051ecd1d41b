// Matrix instructions and nothing else: what the GPU can do at most with them (src/measure.rs).
#include "common/hopper.cuh"
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

#ifdef HAS_WARPGROUPS

// The same for instructions of four warps, of which a multiprocessor has two sets: both matrices in shared memory, 256 columns
// at once.
KERNEL __launch_bounds__(256, 1) peak_warpgroups_bf16(float* out, u32 turns) {
    extern __shared__ __align__(1024) u8 shared[];
    constexpr u32 BYTES = (64 + 256) * 128;
    u32* const words = reinterpret_cast<u32*>(shared);
    for (u32 i = threadIdx.x; i < BYTES / 4; i += blockDim.x) words[i] = (i * 2654435761u + 40503u) & 0xbfffbfffu;
    written_for_engines();
    __syncthreads();
    float sums[128] = {};
    const u64 a = rows_of_128(shared), b = rows_of_128(shared + 64 * 128);
    for (u32 turn = 0; turn < turns; ++turn) {
        products_begin();
#pragma unroll
        for (u32 step = 0; step < 4; ++step) product_bf16(sums, a + 2 * step, b + 2 * step, 1);
        products_commit();
        products_wait<1>();
    }
    products_wait<0>();
    hold(sums);
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 128; ++i) sum += sums[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

#endif
