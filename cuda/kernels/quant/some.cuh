// Products of entries that are too many for quant/clustered.cuh and too few to be busy with: a cluster of
// SEGMENTS blocks goes through 8 tiles, a block through one segment of them and a warp through one tile. Weights come
// packed through a ring in shared memory, and the sums of the segments are added across the cluster. Sums are those of
// `few`.
#pragma once
#include "common/cluster.cuh"
#include "quant/sums.cuh"

#ifdef HAS_CLUSTERS
#define CLUSTER_OF_SEGMENTS __cluster_dims__(1, 1, 8)

// A float at the same place in the shared memory of another block of the cluster.
DEVICE float load_of_block(u32 at, u32 block) {
    float x;
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f32 %0, [there];}"
                 : "=f"(x)
                 : "r"(at), "r"(block)
                 : "memory");
    return x;
}
#else
#define CLUSTER_OF_SEGMENTS
#endif

// How `some` uses shared memory: stages of a unit of 8 tiles and of WIDTH entries.
template <class FORMAT, u32 WIDTH> struct Stages {
    static constexpr u32 SLOT = FORMAT::UNIT + FORMAT::SUPER, WEIGHTS = 8 * SLOT, BYTES = WEIGHTS + WIDTH * 128;
    static constexpr u32 COUNT = 98304 / BYTES > 8 ? 8 : 98304 / BYTES;
};

// Up to WIDTH entries. Dynamic shared memory: the stages.
template <class FORMAT, u32 WIDTH, bool GATED> DEVICE void some(const Job& job) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    typedef Stages<FORMAT, WIDTH> Of;
    constexpr u32 EIGHTS = WIDTH / 8, STAGES = Of::COUNT, ROWS = GATED ? 64 : 128, MINE = ROWS / SEGMENTS;
    static_assert(STAGES >= 3 && WIDTH * 132 * 4 <= STAGES * Of::BYTES);
    extern __shared__ __align__(128) u8 shared[];
    let_next_begin();
    const u32 begin = segment_begin(job.units, blockIdx.z), units = segment_begin(job.units, blockIdx.z + 1) - begin;
    const u32 warp = warp_id(), lane = 16 * lane_id();
    const bool is_up = GATED && warp >= 4;
    const u32 tile = GATED ? blockIdx.x * 4 + warp % 4 : blockIdx.x * 8 + warp;
    FORMAT weights(is_up ? job.up : job.weight, job.rows, job.units, blockIdx.y, tile, begin);
    const u32 base = shared_address(shared);
    const auto bring_weights = [&](u32 unit, u32 stage) {
        const u8* from = weights.from + unit * FORMAT::UNIT;
        const u8* super = weights.super + (begin + unit) / 4 * FORMAT::SUPER;
        const u32 to = base + stage * Of::BYTES + warp * Of::SLOT;
#pragma unroll
        for (u32 at = 0; at < Of::SLOT; at += 512) {
            const u32 piece = at + lane;
            if (piece < Of::SLOT) {
                copy_16_async(Shared{to + piece}, piece < FORMAT::UNIT ? from + piece : super + (piece - FORMAT::UNIT));
            }
        }
    };
    for (u32 unit = 0; unit < min(units, STAGES - 1); ++unit) bring_weights(unit, unit);
    copies_commit();
    wait_for_inputs();
    Piece piece;
    job.piece<WIDTH>(piece, 0);
    // A thread brings 16 bytes of every 32nd entry.
    const u8* from[WIDTH / 32];
#pragma unroll
    for (u32 i = 0; i < WIDTH / 32; ++i) {
        const u32 at = min(threadIdx.x / 8 + 32 * i, piece.count - 1);
        from[i] = job.x + (u64(job.input(job.entry(piece, at))) * job.units + begin) * 128 + 16 * (threadIdx.x % 8);
    }
    const u32 place = threadIdx.x % 8 / 4 * WIDTH * 64 + threadIdx.x / 8 * 64 + 16 * (threadIdx.x % 4);
    const auto bring_x = [&](u32 unit, u32 stage) {
#pragma unroll
        for (u32 i = 0; i < WIDTH / 32; ++i) {
            copy_16_async(Shared{base + stage * Of::BYTES + Of::WEIGHTS + place + i * 2048}, from[i] + unit * 128);
        }
    };
#pragma unroll 1
    for (u32 unit = 0; unit + 1 < STAGES; ++unit) {
        if (unit < units) bring_x(unit, unit);
        copies_commit();
    }
    float sums[EIGHTS][4] = {};
    u32 stage = 0;
#pragma unroll 1
    for (u32 unit = 0; unit < units; ++unit) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        const u32 next = unit + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < units) bring_weights(next, free), bring_x(next, free);
        copies_commit();
        const u32 at = base + stage * Of::BYTES;
        const Shared mine{at + warp * Of::SLOT};
        typename FORMAT::Raw raw;
        FORMAT::load_copied(raw, mine, mine + FORMAT::UNIT);
#pragma unroll
        for (u32 chunk = 0; chunk < 2; ++chunk) {
            Words w;
            FORMAT::unpack(raw, chunk, w);
#pragma unroll
            for (u32 half = 0; half < EIGHTS; half += 4) {
                if (8 * half >= piece.count) break;
                u32 x[4][4];
#pragma unroll
                for (u32 n = 0; n < 4; ++n) {
                    const u32 row = 8 * (half + n) + group_of_lane();
                    const uint4 words = load_16(Shared{at + Of::WEIGHTS + (chunk * WIDTH + row) * 64 + 16 * pair_of_lane()});
                    x[n][0] = words.x, x[n][1] = words.y, x[n][2] = words.z, x[n][3] = words.w;
                }
#pragma unroll
                for (u32 step = 0; step < 2; ++step) {
#pragma unroll
                    for (u32 n = 0; n < 4; ++n) multiply<FORMAT>(sums[half + n], step, w[step], x[n]);
                }
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
    __syncthreads();
    // [WIDTH][132]
    float* kept = reinterpret_cast<float*>(shared);
#pragma unroll
    for (u32 n = 0; n < EIGHTS; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            kept[(8 * n + 2 * pair_of_lane() + i % 2) * 132 + warp * 16 + group_of_lane() + i / 2 * 8] = sums[n][i];
        }
    }
    cluster_arrive();
    cluster_wait();
    // A block ends an eighth of the rows.
    const u32 row = blockIdx.z * MINE + threadIdx.x % MINE, out_row = blockIdx.x * ROWS + row;
#pragma unroll 1
    for (u32 column = threadIdx.x / MINE; column < piece.count && out_row < job.rows; column += THREADS / MINE) {
        const u32 at = base + 4 * (column * 132 + row), entry = job.entry(piece, column);
        float gate[SEGMENTS], other[SEGMENTS];
#pragma unroll
        for (u32 segment = 0; segment < SEGMENTS; ++segment) {
            gate[segment] = load_of_block(at, segment);
            if (GATED) other[segment] = load_of_block(at + 4 * 64, segment);
        }
        float sum = 0.0f, sum_of_other = 0.0f;
#pragma unroll
        for (u32 segment = 0; segment < SEGMENTS; ++segment) {
            sum += gate[segment];
            if (GATED) sum_of_other += other[segment];
        }
        if constexpr (GATED) job.finish_gated(entry, out_row, sum, sum_of_other);
        if constexpr (!GATED) job.finish(entry, out_row, sum);
    }
    // Its sums are there until all have read them.
    cluster_arrive();
    cluster_wait();
#endif
}
