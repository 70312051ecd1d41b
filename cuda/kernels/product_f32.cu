// Products with f32 weights, in f32: routers and small projections. A warp per ROWS weight rows and up to WIDTH entries;
// every lane has its own columns, and their sums are added in one order.
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/job.cuh"

// What a lane reads at once.
template <u32 LANES> struct Values {
    float of[LANES];
    DEVICE void load(const float* at) {
        if constexpr (LANES == 4) {
            const float4 four = *reinterpret_cast<const float4*>(at);
            of[0] = four.x, of[1] = four.y, of[2] = four.z, of[3] = four.w;
        }
        if constexpr (LANES == 1) of[0] = *at;
    }
};

template <u32 ROWS, u32 WIDTH, u32 LANES, bool GATED> DEVICE void products(const Job& job) {
    let_next_begin();
    wait_for_inputs();
    Piece piece;
    if (!job.piece<WIDTH>(piece)) return;
    constexpr u32 MATRICES = GATED ? 2 : 1;
    const u32 columns = job.units;
    const u32 first = (blockIdx.x * (blockDim.x / 32) + warp_id()) * ROWS;
    if (first >= job.rows) return;
    const float* weights[MATRICES][ROWS];
    const float* x[WIDTH];
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
        const u64 at = (u64(piece.matrix) * job.rows + min(first + r, job.rows - 1)) * columns;
        weights[0][r] = reinterpret_cast<const float*>(job.weight) + at;
        if constexpr (GATED) weights[1][r] = reinterpret_cast<const float*>(job.up) + at;
    }
#pragma unroll
    for (u32 n = 0; n < WIDTH; ++n) {
        const u32 entry = job.entry(piece, min(n, piece.count - 1));
        x[n] = reinterpret_cast<const float*>(job.x) + u64(job.input(entry)) * job.x_stride;
    }
    float sums[MATRICES][ROWS][WIDTH] = {};
    for (u32 k = lane_id() * LANES; k < columns; k += 32 * LANES) {
        Values<LANES> w[MATRICES][ROWS];
#pragma unroll
        for (u32 m = 0; m < MATRICES; ++m) {
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) w[m][r].load(weights[m][r] + k);
        }
        // Entries beyond the last are computed like it, and dropped.
#pragma unroll
        for (u32 n = 0; n < WIDTH; ++n) {
            Values<LANES> of_x;
            of_x.load(x[n] + k);
#pragma unroll
            for (u32 m = 0; m < MATRICES; ++m) {
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
                    for (u32 i = 0; i < LANES; ++i) sums[m][r][n] = fmaf(w[m][r].of[i], of_x.of[i], sums[m][r][n]);
                }
            }
        }
    }
    // A lane ends a sum.
    float sum = 0.0f, other = 0.0f;
#pragma unroll
    for (u32 n = 0; n < WIDTH; ++n) {
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const float whole = warp_sum(sums[0][r][n]);
            const float whole_other = GATED ? warp_sum(sums[MATRICES - 1][r][n]) : 0.0f;
            if (lane_id() == n * ROWS + r) sum = whole, other = whole_other;
        }
    }
    const u32 n = lane_id() / ROWS, row = first + lane_id() % ROWS;
    if (n >= piece.count || row >= job.rows) return;
    const u32 entry = job.entry(piece, n);
    if constexpr (GATED) job.finish_gated(entry, row, sum, other);
    if constexpr (!GATED) job.finish(entry, row, sum);
}

#define PRODUCTS_F32(rows, width, lanes)                                                                              \
    KERNEL products_f32_##rows##x##width##_by_##lanes(Job job) { products<rows, width, lanes, false>(job); }          \
    KERNEL gated_products_f32_##rows##x##width##_by_##lanes(Job job) { products<rows, width, lanes, true>(job); }

PRODUCTS_F32(1, 1, 1)
PRODUCTS_F32(1, 1, 4)
PRODUCTS_F32(1, 8, 1)
PRODUCTS_F32(1, 8, 4)
PRODUCTS_F32(4, 8, 1)
PRODUCTS_F32(4, 8, 4)
