// Products with matrices of 16 bits and less. Weights are the 16-row side of the matrix instruction, entries its 8 columns.
//
// Every sum is taken in one order, whatever the number of entries: the units of a row are cut into SEGMENTS; those of a
// segment follow one another, and the segments are added in their order. `few` gives a segment to every warp of a block, as
// does `ring` (quant/ring.cuh); `clustered` and `some` give one to every block of a cluster (quant/clustered.cuh,
// quant/some.cuh); `many` goes through all of them with every warp.
#pragma once
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/clustered.cuh"
#include "quant/ring.cuh"
#include "quant/some.cuh"
#include "quant/sums.cuh"

// Activations of up to 8 `WIDTH` entries: what this lane holds of them.
template <u32 WIDTH> struct Inputs {
    const u8* rows[WIDTH]; // this unit

    // Columns beyond the last entry are computed like it, and dropped.
    DEVICE Inputs(const Job& job, const Piece& piece, u32 unit) {
#pragma unroll
        for (u32 n = 0; n < WIDTH; ++n) {
            const u32 input = job.input(job.entry(piece, min(8 * n + group_of_lane(), piece.count - 1)));
            rows[n] = job.x + (u64(input) * job.units + unit) * 128 + 16 * pair_of_lane();
        }
    }

    DEVICE void advance(u32 units) {
#pragma unroll
        for (u32 n = 0; n < WIDTH; ++n) rows[n] += units * 128;
    }

    DEVICE void load(u32 (&x)[WIDTH][4], u32 count, u32 ahead, u32 chunk) const {
#pragma unroll
        for (u32 n = 0; n < WIDTH; ++n) {
            if (n > 0 && 8 * n >= count) break;
            const uint4 words = load_16_written(rows[n] + (ahead * 128 + chunk * 64));
            x[n][0] = words.x, x[n][1] = words.y, x[n][2] = words.z, x[n][3] = words.w;
        }
    }
};

// Up to 8 `WIDTH` entries. A block for TILES tiles, or for a tile of the gate and the same one of what it gates; a warp
// for a segment. DEPTH units of weights are under way for every warp.
template <class FORMAT, u32 TILES, u32 WIDTH, bool GATED, u32 DEPTH> DEVICE void few(const Job& job) {
    __shared__ float parts[SEGMENTS][TILES][8][17];
    __shared__ float totals[TILES][8 * WIDTH][17];
    let_next_begin();
    if (!job.is_regular()) wait_for_inputs();
    Piece piece;
    if (!job.piece<8 * WIDTH>(piece)) return;
    const u32 first_tile = blockIdx.x * (GATED ? 1 : TILES);
    const u32 begin = segment_begin(job.units, warp_id()), end = segment_begin(job.units, warp_id() + 1);
    FORMAT first(job.weight, job.rows, job.units, piece.matrix, first_tile, begin);
    FORMAT second(GATED ? job.up : job.weight, job.rows, job.units, piece.matrix, first_tile + (GATED ? 0 : 1), begin);
    typename FORMAT::Raw raw[DEPTH][TILES];
    const auto load = [&](u32 slot, u32 ahead) {
        first.load(raw[slot][0], ahead);
        if constexpr (TILES == 2) second.load(raw[slot][1], ahead);
    };
#pragma unroll
    for (u32 slot = 0; slot < DEPTH; ++slot) {
        if (begin + slot < end) load(slot, slot);
    }
    wait_for_inputs();
    Inputs<WIDTH> inputs(job, piece, begin);
    u32 x[2][WIDTH][4] = {};
    if (begin < end) inputs.load(x[0], piece.count, 0, 0), inputs.load(x[1], piece.count, 0, 1);
    float sums[TILES][WIDTH][4] = {};
    for (u32 base = begin; base < end; base += DEPTH) {
#pragma unroll
        for (u32 slot = 0; slot < DEPTH; ++slot) {
            if (base + slot >= end) break;
#pragma unroll
            for (u32 chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
                for (u32 tile = 0; tile < TILES; ++tile) {
                    Words w;
                    FORMAT::unpack(raw[slot][tile], chunk, w);
#pragma unroll
                    for (u32 step = 0; step < 2; ++step) {
#pragma unroll
                        for (u32 n = 0; n < WIDTH; ++n) {
                            if (n == 0 || 8 * n < piece.count) multiply<FORMAT>(sums[tile][n], step, w[step], x[chunk][n]);
                        }
                    }
                }
                // Of the last unit: what lies behind it is read and not used.
                inputs.load(x[chunk], piece.count, slot + 1, chunk);
            }
            if (base + slot + DEPTH < end) load(slot, slot + DEPTH);
        }
        first.advance(DEPTH), second.advance(DEPTH), inputs.advance(DEPTH);
    }
    const u32 group = group_of_lane(), pair = 2 * pair_of_lane();
    const u32 column = threadIdx.x / 16 % 8, row = threadIdx.x % 16, tile = threadIdx.x / 128;
#pragma unroll
    for (u32 n = 0; n < WIDTH; ++n) {
        if (8 * n >= piece.count) break;
        __syncthreads();
#pragma unroll
        for (u32 of = 0; of < TILES; ++of) {
            float(&part)[8][17] = parts[warp_id()][of];
            part[pair][group] = sums[of][n][0], part[pair + 1][group] = sums[of][n][1];
            part[pair][group + 8] = sums[of][n][2], part[pair + 1][group + 8] = sums[of][n][3];
        }
        __syncthreads();
        if (tile < TILES) {
            float sum = 0.0f;
#pragma unroll
            for (u32 segment = 0; segment < SEGMENTS; ++segment) sum += parts[segment][tile][column][row];
            totals[tile][8 * n + column][row] = sum;
        }
    }
    __syncthreads();
    const u32 out_row = (first_tile + (GATED ? 0 : tile)) * 16 + row;
    if (tile >= (GATED ? 1 : TILES) || out_row >= job.rows) return;
#pragma unroll 1
    for (u32 at = column; at < piece.count; at += 8) {
        const u32 entry = job.entry(piece, at);
        if constexpr (GATED) job.finish_gated(entry, out_row, totals[0][at][row], totals[TILES - 1][at][row]);
        if constexpr (!GATED) job.finish(entry, out_row, totals[tile][at][row]);
    }
}

// Stages of shared memory that are filled while others are read.
static constexpr u32 STAGES = 3;

// Bytes of a stage for tiles of 128 rows and so many entries: of the weights by chunk, tile and step
// the words of each lane, then of x by chunk and entry 64 bytes.
template <u32 WIDTH> DEVICE constexpr u32 stage_bytes() { return 128 * (128 + WIDTH); }

// Blocks that run at the same time should share weights and entries: of the grid's columns `x` (weights) and rows `z`
// (entries), BAND rows are gone through column by column.
DEVICE uint2 place_in_grid() {
    constexpr u32 BAND = 8;
    const u32 at = blockIdx.x + gridDim.x * blockIdx.z;
    const u32 band = at / (BAND * gridDim.x), in_band = at % (BAND * gridDim.x);
    const u32 rows = min(BAND, gridDim.z - band * BAND);
    return make_uint2(in_band / rows, band * BAND + in_band % rows);
}

// WIDTH entries, 64 or 128. A block for 8 tiles, or for 4 of the gate and the same 4 of what it gates; a warp for 4 tiles
// and a quarter of the entries. Dynamic shared memory: STAGES stages.
//
// With SPLIT a block goes through segment `blockIdx.z` only and leaves its sums in `job.parts`: for entries that are one piece,
// where there are too few blocks otherwise.
template <class FORMAT, u32 WIDTH, bool GATED, bool SPLIT = false> DEVICE void many(const Job& job) {
    extern __shared__ __align__(128) u8 shared[];
    constexpr u32 EIGHTS = WIDTH / 32;
    let_next_begin();
    wait_for_inputs();
    Piece piece{blockIdx.y, 0, job.entries, 0};
    const uint2 place = SPLIT ? make_uint2(blockIdx.x, 0) : place_in_grid();
    if (!SPLIT && !job.piece<WIDTH>(piece, place.y)) return;
    const u32 begin = SPLIT ? segment_begin(job.units, blockIdx.z) : 0;
    const u32 units = SPLIT ? segment_begin(job.units, blockIdx.z + 1) - begin : job.units;
    const u32 warp = warp_id(), group = group_of_lane(), pair = pair_of_lane();
    const auto weights_at = [&](u32 stage, u32 chunk, u32 tile, u32 step) {
        return shared + stage * stage_bytes<WIDTH>() + ((chunk * 8 + tile) * 2 + step) * 512 + 16 * lane_id();
    };
    const auto x_at = [&](u32 stage, u32 chunk, u32 row) {
        return shared + stage * stage_bytes<WIDTH>() + 128 * 128 + (chunk * WIDTH + row) * 64;
    };
    // Tile `warp` of the block, which this warp brings.
    const bool is_up = GATED && warp % 4 >= 2;
    const u32 brought = GATED ? place.x * 4 + warp / 4 * 2 + warp % 2 : place.x * 8 + warp;
    FORMAT weights(is_up ? job.up : job.weight, job.rows, job.units, piece.matrix, brought, begin);
    // A thread brings 16 bytes of a unit of every 32nd entry.
    const u8* from[EIGHTS];
#pragma unroll
    for (u32 i = 0; i < EIGHTS; ++i) {
        const u32 at = threadIdx.x / 8 + 32 * i;
        from[i] = nullptr;
        if (at < piece.count) {
            const u64 input = job.input(job.entry(piece, at));
            from[i] = job.x + (input * job.units + begin) * 128 + 16 * (threadIdx.x % 8);
        }
    }
    const auto bring = [&](u32 unit) {
        const u32 stage = unit % STAGES;
        if (unit < units) {
#pragma unroll
            for (u32 i = 0; i < EIGHTS; ++i) {
                u8* to = x_at(stage, threadIdx.x % 8 / 4, threadIdx.x / 8 + 32 * i) + 16 * (threadIdx.x % 4);
                copy_16_async(to, from[i] == nullptr ? job.x : from[i] + unit * 128, from[i] != nullptr);
            }
            if constexpr (FORMAT::IS_PLAIN) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    copy_16_async(weights_at(stage, i / 2, warp, i % 2), weights.from + unit * 2048 + i * 512 + 16 * lane_id());
                }
            }
        }
        copies_commit();
    };
    typename FORMAT::Raw raw;
    if constexpr (!FORMAT::IS_PLAIN) {
        if (units > 0) weights.load(raw, 0);
    }
    for (u32 unit = 0; unit + 1 < STAGES; ++unit) bring(unit);
    float sums[4][EIGHTS][4] = {}, totals[4][EIGHTS][4] = {};
    u32 segment = 0;
    for (u32 unit = 0; unit < units; ++unit) {
        const u32 stage = unit % STAGES;
        if constexpr (!FORMAT::IS_PLAIN) {
#pragma unroll
            for (u32 chunk = 0; chunk < 2; ++chunk) {
                Words w;
                FORMAT::unpack(raw, chunk, w);
#pragma unroll
                for (u32 step = 0; step < 2; ++step) {
                    *reinterpret_cast<uint4*>(weights_at(stage, chunk, warp, step)) =
                        make_uint4(w[step][0], w[step][1], w[step][2], w[step][3]);
                }
            }
            if (unit + 1 < units) weights.load(raw, 1), weights.advance(1);
        }
        copies_wait<STAGES - 2>();
        __syncthreads();
        bring(unit + STAGES - 1);
#pragma unroll
        for (u32 chunk = 0; chunk < 2; ++chunk) {
            u32 x[EIGHTS][4];
            Words w[4];
#pragma unroll
            for (u32 n = 0; n < EIGHTS; ++n) {
                const u8* at = x_at(stage, chunk, warp % 4 * (WIDTH / 4) + 8 * n + group) + 16 * pair;
                const uint4 words = *reinterpret_cast<const uint4*>(at);
                x[n][0] = words.x, x[n][1] = words.y, x[n][2] = words.z, x[n][3] = words.w;
            }
#pragma unroll
            for (u32 tile = 0; tile < 4; ++tile) {
#pragma unroll
                for (u32 step = 0; step < 2; ++step) {
                    const u8* at = weights_at(stage, chunk, warp / 4 * 4 + tile, step);
                    const uint4 words = *reinterpret_cast<const uint4*>(at);
                    u32(&to)[4] = w[tile][step];
                    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
                }
            }
#pragma unroll
            for (u32 step = 0; step < 2; ++step) {
#pragma unroll
                for (u32 tile = 0; tile < 4; ++tile) {
#pragma unroll
                    for (u32 n = 0; n < EIGHTS; ++n) multiply<FORMAT>(sums[tile][n], step, w[tile][step], x[n]);
                }
            }
        }
        if constexpr (!SPLIT) {
            if (unit + 1 < segment_begin(job.units, segment + 1)) continue;
            // The segment is complete, and so are those after it that have no units.
            while (segment < SEGMENTS && segment_begin(job.units, segment + 1) <= unit + 1) ++segment;
#pragma unroll
            for (u32 tile = 0; tile < 4; ++tile) {
#pragma unroll
                for (u32 n = 0; n < EIGHTS; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        totals[tile][n][i] += sums[tile][n][i];
                        sums[tile][n][i] = 0.0f;
                    }
                }
            }
        }
    }
    // Through shared memory, so that neighbouring threads write neighbouring rows: `[WIDTH][132]`.
    copies_wait<0>();
    __syncthreads();
    float* kept = reinterpret_cast<float*>(shared);
#pragma unroll
    for (u32 n = 0; n < EIGHTS; ++n) {
#pragma unroll
        for (u32 tile = 0; tile < 4; ++tile) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 column = warp % 4 * (WIDTH / 4) + 8 * n + 2 * pair + i % 2;
                kept[column * 132 + warp / 4 * 64 + tile * 16 + group + i / 2 * 8] =
                    SPLIT ? sums[tile][n][i] : totals[tile][n][i];
            }
        }
    }
    __syncthreads();
    constexpr u32 ROWS = GATED ? 64 : 128;
    const u32 row = threadIdx.x % ROWS, out_row = place.x * ROWS + row;
    if (out_row >= job.rows) return;
#pragma unroll 1
    for (u32 column = threadIdx.x / ROWS; column < piece.count; column += THREADS / ROWS) {
        const float* sum = kept + column * 132 + (GATED ? row / 32 * 64 + row % 32 : row);
        const u32 entry = job.entry(piece, column);
        if constexpr (SPLIT) {
            const u32 entries = job.entries * job.matrices;
            float* to = job.parts + u64(blockIdx.z * entries + entry) * job.rows + out_row;
            *to = sum[0];
            if constexpr (GATED) to[u64(SEGMENTS) * entries * job.rows] = sum[32];
        } else {
            if constexpr (GATED) job.finish_gated(entry, out_row, sum[0], sum[32]);
            if constexpr (!GATED) job.finish(entry, out_row, sum[0]);
        }
    }
}

// Kernels of rings: for a product, for some that are beside each other, and for gated ones.
#define RINGS(kind, name, FORMAT, ROWS, EIGHTS)                                                                               \
    KERNEL __launch_bounds__(RING_THREADS, 1) kind##_##name(Jobs<1> jobs) { ring<FORMAT, false, 1, Rows::ROWS, EIGHTS>(jobs); } \
    KERNEL __launch_bounds__(RING_THREADS, 1) beside_##kind##_##name(const __grid_constant__ Jobs<BESIDE_AT_ONCE> jobs) { \
        ring<FORMAT, false, BESIDE_AT_ONCE, Rows::ROWS, EIGHTS>(jobs);                                                        \
    }                                                                                                                 \
    KERNEL __launch_bounds__(RING_THREADS, 1) gated_##kind##_##name(Jobs<1> jobs) { ring<FORMAT, true, 1, Rows::ROWS, EIGHTS>(jobs); }

// Products of one row in two formats that are beside each other: the first `blocks` blocks have those of the first.
#define MIXED(first, FIRST, second, SECOND)                                                                           \
    KERNEL __launch_bounds__(RING_THREADS, 1)                                                                         \
        mixed_ring_1_##first##_##second(const __grid_constant__ Jobs<BESIDE_AT_ONCE> of_first,                        \
                                        const __grid_constant__ Jobs<BESIDE_AT_ONCE> of_second, u32 blocks) {         \
        if (blockIdx.x < blocks) {                                                                                    \
            ring<FIRST, false, BESIDE_AT_ONCE, Rows::ONE, 1>(of_first, blockIdx.x, blocks);                           \
        } else {                                                                                                      \
            ring<SECOND, false, BESIDE_AT_ONCE, Rows::ONE, 1>(of_second, blockIdx.x - blocks, gridDim.x - blocks);    \
        }                                                                                                             \
    }

// The same of clusters, on GPUs that have them.
#define STAYING KERNEL ROW_OF_SEGMENTS __launch_bounds__(RING_THREADS, 1)
#define CLUSTERED(kind, name, FORMAT, EIGHTS)                                                                         \
    STAYING kind##_##name(Jobs<1> jobs) { clustered<FORMAT, false, 1, EIGHTS>(jobs); }                                \
    STAYING beside_##kind##_##name(const __grid_constant__ Jobs<BESIDE_AT_ONCE> jobs) {                               \
        clustered<FORMAT, false, BESIDE_AT_ONCE, EIGHTS>(jobs);                                                       \
    }                                                                                                                 \
    STAYING gated_##kind##_##name(Jobs<1> jobs) { clustered<FORMAT, true, 1, EIGHTS>(jobs); }

// The kernels of a format. DEPTH: units of a tile that are under way in `few`. For matrices of more tiles than two blocks a
// multiprocessor there is one that keeps less under way for each of three.
#define PRODUCTS(name, FORMAT, DEPTH)                                                                                 \
    RINGS(ring_1, name, FORMAT, ONE, 1)                                                                               \
    RINGS(ring_8, name, FORMAT, AT_ONCE, 1) RINGS(units_8, name, FORMAT, BY_UNIT, 1)                                  \
    RINGS(ring_16, name, FORMAT, AT_ONCE, 2) RINGS(units_16, name, FORMAT, BY_UNIT, 2)                                \
    CLUSTERED(clustered_32, name, FORMAT, 4)                                                                          \
    KERNEL CLUSTER_OF_SEGMENTS __launch_bounds__(THREADS, 2) some_64_##name(Job job) { some<FORMAT, 64, false>(job); } \
    KERNEL CLUSTER_OF_SEGMENTS __launch_bounds__(THREADS, 2) gated_some_64_##name(Job job) {                          \
        some<FORMAT, 64, true>(job);                                                                                  \
    }                                                                                                                 \
    KERNEL __launch_bounds__(THREADS, 2) few_8_##name(Job job) { few<FORMAT, 1, 1, false, DEPTH>(job); }              \
    KERNEL __launch_bounds__(THREADS, 3) few_8_tall_##name(Job job) {                                                 \
        few<FORMAT, 1, 1, false, (DEPTH + 1) / 2>(job);                                                               \
    }                                                                                                                 \
    KERNEL __launch_bounds__(THREADS, 2) few_16_##name(Job job) { few<FORMAT, 1, 2, false, DEPTH>(job); }             \
    KERNEL __launch_bounds__(THREADS, 1) few_32_##name(Job job) { few<FORMAT, 2, 4, false, 2>(job); }                 \
    KERNEL __launch_bounds__(THREADS, 1) few_64_##name(Job job) { few<FORMAT, 2, 8, false, 2>(job); }                 \
    KERNEL __launch_bounds__(THREADS, 1) many_64_##name(Job job) { many<FORMAT, 64, false>(job); }                    \
    KERNEL __launch_bounds__(THREADS, 2) split_64_##name(Job job) { many<FORMAT, 64, false, true>(job); }             \
    KERNEL __launch_bounds__(THREADS, 1) many_128_##name(Job job) { many<FORMAT, 128, false>(job); }                  \
    KERNEL __launch_bounds__(THREADS, 2) gated_few_8_##name(Job job) { few<FORMAT, 2, 1, true, (DEPTH + 1) / 2>(job); } \
    KERNEL __launch_bounds__(THREADS, 2) gated_few_16_##name(Job job) { few<FORMAT, 2, 2, true, 2>(job); }            \
    KERNEL __launch_bounds__(THREADS, 1) gated_few_32_##name(Job job) { few<FORMAT, 2, 4, true, 2>(job); }            \
    KERNEL __launch_bounds__(THREADS, 1) gated_few_64_##name(Job job) { few<FORMAT, 2, 8, true, 2>(job); }            \
    KERNEL __launch_bounds__(THREADS, 1) gated_many_64_##name(Job job) { many<FORMAT, 64, true>(job); }               \
    KERNEL __launch_bounds__(THREADS, 2) gated_split_64_##name(Job job) { many<FORMAT, 64, true, true>(job); }        \
    KERNEL __launch_bounds__(THREADS, 1) gated_many_128_##name(Job job) { many<FORMAT, 128, true>(job); }
