// Products with matrices of 16 bits and less. Weights are the 16-row side of the matrix instruction, entries its 8 columns.
//
// Every sum is taken in one order, whatever the number of entries: the units of a row are cut into SEGMENTS; those of a
// segment follow one another, and the segments are added in their order. `few` gives a segment to every warp of a block;
// `many` goes through all of them with every warp.
#pragma once
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/formats.cuh"
#include "quant/job.cuh"

static constexpr u32 THREADS = 32 * SEGMENTS;

DEVICE u32 segment_begin(u32 units, u32 segment) { return units * segment / SEGMENTS; }

// One of the two matrix instructions for a chunk. The sum of one waits for that of the other: there should be others
// between them.
template <class FORMAT> DEVICE void multiply(float (&sum)[4], u32 step, const u32 (&w)[4], const u32 (&x)[4]) {
    const u32 b[2] = {x[2 * step], x[2 * step + 1]};
    if constexpr (FORMAT::IS_BF16) mma_bf16(sum, w, b);
    if constexpr (!FORMAT::IS_BF16) mma_f16(sum, w, b);
}

// By what f16 activations are divided whose largest is `most`: a power of two that brings it between 2^14 and 2^15. Sums
// are f32, only the values themselves must not overflow.
DEVICE float factor_for(float most) {
    const u32 exponent = __float_as_uint(most) >> 23; // and 127
    return __uint_as_float((min(max(exponent, 15u), 253u) - 14) << 23);
}

// The inverse of a power of two between those that `factor_for` gives.
DEVICE float inverse_power(float power) { return __uint_as_float((254 << 23) - __float_as_uint(power)); }

// Activations of up to 8 `WIDTH` entries: what this lane holds of them.
template <u32 WIDTH> struct Inputs {
    const u8* rows[WIDTH]; // this unit

    // From `at(entry of the piece)` on. Columns beyond the last entry are computed like it, and dropped.
    template <class AT> DEVICE Inputs(u32 count, const AT& at) {
#pragma unroll
        for (u32 n = 0; n < WIDTH; ++n) rows[n] = at(min(8 * n + group_of_lane(), count - 1)) + 16 * pair_of_lane();
    }

    DEVICE void advance(i32 units) {
#pragma unroll
        for (u32 n = 0; n < WIDTH; ++n) rows[n] += units * 128;
    }

    DEVICE void load(u32 (&x)[WIDTH][4], u32 count, u32 ahead, u32 chunk) const {
#pragma unroll
        for (u32 n = 0; n < WIDTH; ++n) {
            if (n > 0 && 8 * n >= count) break;
            const uint4 words = *reinterpret_cast<const uint4*>(rows[n] + (ahead * 128 + chunk * 64));
            x[n][0] = words.x, x[n][1] = words.y, x[n][2] = words.z, x[n][3] = words.w;
        }
    }
};

// Bytes between the entries of a segment in shared memory: whole units, and half of one so that reading eight entries at
// once meets no bank twice.
DEVICE u32 held_stride(u32 units) { return ceil_div(units, SEGMENTS) * 128 + 64; }

// Brings the segment of this warp into shared memory, as HELD_COPIED.
DEVICE void copy_segment(const Job& job, const Piece& piece, u8* to, u32 begin, u32 end) {
    const u32 stride = held_stride(job.units);
    for (u32 i = 0; i < piece.count; ++i) {
        const u8* from = job.x + (u64(job.input(job.entry(piece, i))) * job.units + begin) * 128;
        for (u32 at = 16 * lane_id(); at < (end - begin) * 128; at += 512) copy_16_async(to + i * stride + at, from + at);
    }
    copies_commit();
    copies_wait<0>();
    __syncwarp();
}

// The same as HELD_ROUNDED. All threads of the block come here. `factors` gets by what sums are to be multiplied.
template <bool BF16>
DEVICE void round_segment(const Job& job, const Piece& piece, u8* to, u32 begin, u32 end, float (&factors)[8]) {
    __shared__ float most_of[8][SEGMENTS];
    const u32 stride = held_stride(job.units);
    const auto row_of = [&](u32 i) {
        return reinterpret_cast<const float*>(job.x) + u64(job.input(job.entry(piece, i))) * job.x_stride;
    };
    if constexpr (!BF16) {
        for (u32 i = 0; i < piece.count; ++i) {
            const float* x = row_of(i);
            float most = 0.0f;
#pragma unroll 8
            for (u32 at = begin * 64 + lane_id(); at < min(end * 64, job.columns); at += 32) most = fmaxf(most, fabsf(x[at]));
            most = warp_max(most);
            if (lane_id() == 0) most_of[i][warp_id()] = most;
        }
        __syncthreads();
    }
    for (u32 i = 0; i < piece.count; ++i) {
        const float* x = row_of(i);
        float factor = 1.0f;
        if constexpr (!BF16) {
            float most = 0.0f;
#pragma unroll
            for (u32 segment = 0; segment < SEGMENTS; ++segment) most = fmaxf(most, most_of[i][segment]);
            factor = factor_for(most);
        }
        if (threadIdx.x == 0) factors[i] = factor;
        const float by = inverse_power(factor);
#pragma unroll 8
        for (u32 at = begin * 64 + 2 * lane_id(); at < end * 64; at += 64) {
            const float low = at < job.columns ? x[at] : 0.0f, high = at + 1 < job.columns ? x[at + 1] : 0.0f;
            u32* word = reinterpret_cast<u32*>(to + i * stride + 2 * (at - begin * 64));
            *word = BF16 ? pack_bf16(low, high) : pack_f16(low * by, high * by);
        }
    }
    __syncwarp();
}

// Up to 8 `WIDTH` entries. A block for TILES tiles, or for a tile of the gate and the same one of what it gates; a warp
// for a segment. DEPTH units of weights are under way for every warp.
//
// Blocks go on with other tiles where there are more of them than blocks. Dynamic shared memory: activations, if held there.
template <class FORMAT, u32 TILES, u32 WIDTH, bool GATED, u32 DEPTH> DEVICE void few(const Job& job) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ float parts[SEGMENTS][TILES][8][17];
    __shared__ float totals[TILES][8 * WIDTH][17];
    __shared__ float factors[8];
    let_next_begin();
    if (!job.is_regular()) wait_for_inputs();
    Piece piece;
    if (!job.piece<8 * WIDTH>(piece)) return;
    constexpr u32 STEP = GATED ? 1 : TILES;
    const u32 begin = segment_begin(job.units, warp_id()), end = segment_begin(job.units, warp_id() + 1);
    const u32 tiles = ceil_div(job.rows, 16u);
    u32 first_tile = blockIdx.x * STEP;
    const auto tile_at = [&](u32 at, u32 which) {
        return FORMAT(GATED && which == 1 ? job.up : job.weight, job.rows, job.units, piece.matrix,
                      at + (GATED ? 0 : which), begin);
    };
    FORMAT first = tile_at(first_tile, 0), second = tile_at(first_tile, TILES - 1);
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
    u8* held = shared + warp_id() * held_stride(job.units) * piece.count;
    if (job.held == HELD_COPIED) copy_segment(job, piece, held, begin, end);
    if constexpr (WIDTH == 1) {
        if (job.held == HELD_ROUNDED) round_segment<FORMAT::IS_BF16>(job, piece, held, begin, end, factors);
    }
    Inputs<WIDTH> inputs(piece.count, [&](u32 i) {
        if (job.held != HELD_OUTSIDE) return static_cast<const u8*>(held + i * held_stride(job.units));
        return job.x + (u64(job.input(job.entry(piece, i))) * job.units + begin) * 128;
    });
    const u32 group = group_of_lane(), pair = 2 * pair_of_lane();
    const u32 column = threadIdx.x / 16 % 8, row = threadIdx.x % 16, tile = threadIdx.x / 128;
    for (; first_tile < tiles; first_tile += gridDim.x * STEP) {
        u32 x[2][WIDTH][4] = {};
        if (begin < end) inputs.load(x[0], piece.count, 0, 0), inputs.load(x[1], piece.count, 0, 1);
        float sums[TILES][WIDTH][4] = {};
        i32 gone = 0;
        for (u32 base = begin; base < end; base += DEPTH) {
#pragma unroll
            for (u32 slot = 0; slot < DEPTH; ++slot) {
                if (base + slot >= end) break;
#pragma unroll
                for (u32 chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
                    for (u32 of = 0; of < TILES; ++of) {
                        Words w;
                        FORMAT::unpack(raw[slot][of], chunk, w);
#pragma unroll
                        for (u32 step = 0; step < 2; ++step) {
#pragma unroll
                            for (u32 n = 0; n < WIDTH; ++n) {
                                if (n == 0 || 8 * n < piece.count) multiply<FORMAT>(sums[of][n], step, w[step], x[chunk][n]);
                            }
                        }
                    }
                    // Of the last unit: what lies behind it is read and not used.
                    inputs.load(x[chunk], piece.count, slot + 1, chunk);
                }
                if (base + slot + DEPTH < end) load(slot, slot + DEPTH);
            }
            first.advance(DEPTH), second.advance(DEPTH), inputs.advance(DEPTH);
            gone += DEPTH;
        }
        inputs.advance(-gone);
        // The next tile is on its way while this one ends.
        const u32 next = first_tile + gridDim.x * STEP;
        if (next < tiles) {
            first = tile_at(next, 0), second = tile_at(next, TILES - 1);
#pragma unroll
            for (u32 slot = 0; slot < DEPTH; ++slot) {
                if (begin + slot < end) load(slot, slot);
            }
        }
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
        if (tile >= STEP || out_row >= job.rows) continue;
#pragma unroll 1
        for (u32 at = column; at < piece.count; at += 8) {
            const u32 entry = job.entry(piece, at);
            const float factor = WIDTH == 1 && job.held == HELD_ROUNDED ? factors[at] : 1.0f;
            if constexpr (GATED) {
                job.finish_gated(entry, out_row, totals[0][at][row] * factor, totals[TILES - 1][at][row] * factor);
            } else {
                job.finish(entry, out_row, totals[tile][at][row] * factor);
            }
        }
    }
}

// Stages of shared memory that are filled while others are read: as many as there is room for (src/ops/product.rs).
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
template <u32 WIDTH> DEVICE constexpr u32 stages() { return WIDTH == 128 ? 6 : 4; }
#else
template <u32 WIDTH> DEVICE constexpr u32 stages() { return 3; }
#endif

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
// and a quarter of the entries. Dynamic shared memory: the stages.
//
// With SPLIT a block goes through segment `blockIdx.z` only and leaves its sums in `job.parts`: for entries that are one piece,
// where there are too few blocks otherwise.
template <class FORMAT, u32 WIDTH, bool GATED, bool SPLIT = false> DEVICE void many(const Job& job) {
    extern __shared__ __align__(128) u8 shared[];
    constexpr u32 EIGHTS = WIDTH / 32, STAGES = stages<WIDTH>();
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
    // The first of the eight entries number `n` of this warp: a piece that is not full is work for all warps.
    const auto column_of = [&](u32 n) { return 32 * n + 8 * (warp % 4); };
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
                const u8* at = x_at(stage, chunk, column_of(n) + group) + 16 * pair;
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
            // Pieces of experts are often not full.
            const u32 eights = WIDTH == 64 && piece.count <= 32 ? 1 : EIGHTS;
#pragma unroll
            for (u32 n = 0; n < EIGHTS; ++n) {
                if (n >= eights) break;
#pragma unroll
                for (u32 step = 0; step < 2; ++step) {
#pragma unroll
                    for (u32 tile = 0; tile < 4; ++tile) {
                        multiply<FORMAT>(sums[tile][n], step, w[tile][step], x[n]);
                    }
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
                const u32 column = column_of(n) + 2 * pair + i % 2;
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

// The kernels of a format. DEPTH: units of a tile that are under way in `few`.
#define PRODUCTS(name, FORMAT, DEPTH)                                                                                 \
    KERNEL __launch_bounds__(THREADS, 3) few_8_##name(Job job) { few<FORMAT, 1, 1, false, (DEPTH + 1) / 2>(job); }    \
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
