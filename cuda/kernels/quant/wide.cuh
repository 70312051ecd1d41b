// Products of many rows on GPUs of compute capability 9.0. Four warps multiply 64 rows of weights, which they unpack into
// registers, with WIDTH entries in shared memory, and while they do they unpack the next ones. All sums are taken in the order
// of `many` (quant/product.cuh), and give the same bits.
#pragma once
#include "common/hopper.cuh"
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/formats.cuh"
#include "quant/job.cuh"

#ifdef HAS_WARPGROUPS

// Two warpgroups that multiply, and one that brings.
static constexpr u32 MULTIPLIERS = 2, WIDE_THREADS = 128 * (MULTIPLIERS + 1);

// What a block multiplies: 128 rows of a matrix, or 64 of two, with neighbouring rows of activations. They are as these
// kernels want them (stage_wide.cu): unit after unit, in it row after row 64 columns of 16 bits.
struct Block {
    u32 matrix, rows; // number of the matrix, and of its rows by blocks
    u32 first, count; // rows of activations
};

// A place in shared memory. Unlike loads of `Shared`, what nobody wants of a load is not loaded.
struct Stage {
    const u8* at;
    DEVICE Stage operator+(u32 bytes) const { return Stage{at + bytes}; }
};
DEVICE uint4 load_16(Stage from) { return *reinterpret_cast<const uint4*>(from.at); }
DEVICE uint4 load_16_once(Stage from) { return load_16(from); }
DEVICE uint2 load_8(Stage from) { return *reinterpret_cast<const uint2*>(from.at); }
DEVICE u32 load_4(Stage from) { return *reinterpret_cast<const u32*>(from.at); }

// A cluster is two blocks with the same entries, of which each brings half for both; or, of matrices that are not cut into
// enough blocks otherwise, PARTS blocks with the same rows as well, each with a segment of the columns.
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS> struct Wide {
    static_assert(PARTS == 1 || (PARTS == SEGMENTS && WIDTH == 8 * PARTS));
    static constexpr u32 SHARING = PARTS == 1 ? 2 : 1, CLUSTER = SHARING * PARTS;
    // Blocks of a multiprocessor at once, and shared memory of each.
    static constexpr u32 AT_ONCE = PARTS > 1 ? 2 : 1, SHARED = AT_ONCE == 2 ? 113 << 10 : 227 << 10;
    static constexpr u32 TILES = 8, TILE = FORMAT::UNIT + FORMAT::SUPER, X = WIDTH * 128;
    static constexpr u32 STAGE = X + (TILES * TILE + 1023) / 1024 * 1024;
    static constexpr u32 ROWS_OF_BLOCK = 64 * MULTIPLIERS;
    static constexpr u32 ROWS = GATED ? ROWS_OF_BLOCK / 2 : ROWS_OF_BLOCK; // of a matrix
    static constexpr u32 SUMS = WIDTH / 2;                                 // of a thread

    // Of a block. Behind the stages: sums on their way from one warpgroup, or from one block, to the other, barriers.
    static constexpr u32 PASSED = PARTS > 1 ? ROWS_OF_BLOCK * WIDTH * 4 : GATED ? SUMS / 2 * 128 * 2 * 4 : 0;
    static constexpr u32 MOST = (SHARED - PASSED - 16) / (STAGE + 16), STAGES = MOST < 8 ? MOST : 8;
    static_assert(STAGES >= 3);

    const Job& job;
    u8* shared;
    u32 rank, begin, end, across, down, count; // units of this block; blocks of weights (in clusters) and of entries

    // Rows of activations are entries, or what is in the order of the pieces.
    DEVICE Wide(const Job& job, u8* shared) : job(job), shared(shared) {
        rank = rank_in_cluster();
        begin = PARTS == 1 ? 0 : segment_begin(job.units, rank);
        end = PARTS == 1 ? job.units : segment_begin(job.units, rank + 1);
        across = ceil_div(ceil_div(job.rows, ROWS), SHARING);
        down = job.pieces == nullptr ? ceil_div(job.entries, WIDTH) : *job.piece_count;
        count = across * down;
    }

    DEVICE u64* full(u32 stage) const { return reinterpret_cast<u64*>(shared + STAGES * STAGE + PASSED) + stage; }
    DEVICE u64* empty(u32 stage) const { return full(STAGES + stage); }
    // Sums of this block are there for the others of the cluster, or have been read by all.
    DEVICE u64* told() const { return full(2 * STAGES); }
    DEVICE u64* heard() const { return full(2 * STAGES + 1); }
    DEVICE u8* x_at(u32 stage) const { return shared + stage * STAGE; }
    DEVICE u8* weights_at(u32 stage) const { return shared + stage * STAGE + X; }

    // What comes after `at` others: those that are near each other share weights and entries.
    DEVICE Block place(u32 at) const {
        constexpr u32 BAND = 8;
        if (job.pieces != nullptr) {
            const Piece piece = job.pieces[at / across];
            return Block{piece.matrix, at % across * SHARING + rank, piece.first, piece.count};
        }
        if constexpr (PARTS > 1) return Block{0, at / down, at % down * WIDTH, min(WIDTH, job.entries - at % down * WIDTH)};
        const u32 band = at / (BAND * across), in_band = at % (BAND * across), rows = min(BAND, down - band * BAND);
        const u32 first = (band * BAND + in_band % rows) * WIDTH;
        return Block{0, in_band / rows * SHARING + rank, first, min(WIDTH, job.entries - first)};
    }

    // Stages are gone through in turn; `parity` is that of this turn.
    struct Turn {
        u32 stage = 0, parity = 0;

        DEVICE void next() {
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    };

    // Four warps fill stages: each two tiles of weights, with a lane for each copy, since copies of a warp come one after the
    // other; and the last one the entries.
    DEVICE void bring() const {
        const u32 lane = lane_id(), warp = warp_id() % 4, tile = 2 * warp + lane % 2;
        const u32 tiles = ceil_div(job.rows, 16u);
        Turn turn;
        for (u32 at = blockIdx.x / CLUSTER; at < count; at += gridDim.x / CLUSTER) {
            const Block here = place(at);
            const u32 rows = here.count, mine = PARTS > 1 ? 0 : min(rows, rank * (WIDTH / SHARING));
            const u32 my_rows = min(rows - mine, WIDTH / SHARING);
            const u32 number = min(GATED ? here.rows * 4 + tile % 4 : here.rows * TILES + tile, tiles - 1);
            const u8* weights = GATED && tile >= 4 ? job.up : job.weight;
            weights += (u64(here.matrix) * tiles + number) * FORMAT::tile_bytes(job.units);
            const u8* super = weights + u64(job.units) * FORMAT::UNIT;
            weights += begin * FORMAT::UNIT;
            const u8* x = job.x + (u64(begin) * job.x_stride + here.first + mine) * 128;
            // Not unrolled, and with addresses that are kept: the compiler of CUDA 13.0 lost half of one that it had worked out for
            // several units at once.
#pragma unroll 1
            for (u32 unit = begin; unit < end; ++unit, turn.next()) {
                const u32 stage = turn.stage;
                keep(x), keep(weights);
                barrier_wait(empty(stage), turn.parity ^ 1);
                if (lane < 2) {
                    barrier_expect(full(stage), TILE);
                    copy_bulk(weights_at(stage) + tile * FORMAT::UNIT, weights, FORMAT::UNIT, full(stage));
                    if constexpr (FORMAT::SUPER > 0) {
                        copy_bulk(weights_at(stage) + TILES * FORMAT::UNIT + tile * FORMAT::SUPER,
                                  super + unit / 4 * FORMAT::SUPER, FORMAT::SUPER, full(stage));
                    }
                } else if (warp == 3 && lane == 31) {
                    barrier_expect(full(stage), rows * 128);
                    if constexpr (SHARING == 1) copy_bulk(x_at(stage), x, rows * 128, full(stage));
                    if (SHARING == 2 && my_rows > 0) {
                        copy_bulk_to_both(x_at(stage) + mine * 128, x, my_rows * 128, full(stage));
                    }
                }
                weights += FORMAT::UNIT, x += u64(job.x_stride) * 128;
                __syncwarp();
            }
        }
    }

    // Words of a chunk of this warp's tile.
    DEVICE void weights(u32 stage, u32 chunk, Words& w) const {
        typename FORMAT::Raw raw;
        const Stage at{weights_at(stage)};
        FORMAT::load_copied(raw, at + warp_id() * FORMAT::UNIT, at + (TILES * FORMAT::UNIT + warp_id() * FORMAT::SUPER));
        FORMAT::unpack(raw, chunk, w);
    }

    DEVICE void release(u32 stage) const {
        if constexpr (SHARING == 1) {
            if (lane_id() == 0) barrier_arrive(empty(stage));
        } else {
            if (lane_id() < SHARING) barrier_arrive_at(empty(stage), lane_id());
        }
    }

    DEVICE static void multiply(float (&sums)[SUMS], const Words& w, u64 x, u32 adds) {
        products_begin();
#pragma unroll
        for (u32 step = 0; step < 2; ++step) {
            if constexpr (FORMAT::IS_BF16) product_bf16(sums, w[step], x + 2 * step, step == 0 ? adds : 1);
            if constexpr (!FORMAT::IS_BF16) product_f16(sums, w[step], x + 2 * step, step == 0 ? adds : 1);
        }
        products_commit();
    }

    // A warpgroup: the sums of the segments of this block.
    DEVICE void sum_up(float (&totals)[SUMS], Turn& turn) const {
        constexpr u32 HERE = PARTS > 1 ? 1 : SEGMENTS;
        float sums[SUMS];
        Words first, second;
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) totals[i] = 0.0f, sums[i] = 0.0f;
        if (PARTS > 1 && begin == end) return;
        barrier_wait(full(turn.stage), turn.parity);
        weights(turn.stage, 0, first);
        u32 unit = begin, last = 0;
        for (u32 segment = 0; segment < HERE; ++segment) {
            const u32 to = PARTS > 1 ? end : segment_begin(end, segment + 1);
            if (unit == to) continue;
            for (u32 adds = 0; unit < to; adds = 1, ++unit) {
                const u32 stage = turn.stage;
                const u64 x = rows_of_128(x_at(stage));
                multiply(sums, first, x, adds);
                products_wait<1>();
                if (unit > begin) release(last);
                last = stage;
                weights(stage, 1, second);
                multiply(sums, second, x + 4, 1);
                products_wait<1>();
                turn.next();
                if (unit + 1 == end) continue;
                barrier_wait(full(turn.stage), turn.parity);
                weights(turn.stage, 0, first);
            }
            products_wait<0>();
            hold(sums);
#pragma unroll
            for (u32 i = 0; i < SUMS; ++i) totals[i] += sums[i];
        }
        release(last);
    }

    DEVICE float factor_of(u32 row) const { return job.factor == nullptr ? 1.0f : job.factor[row]; }

    // The entry of a row of activations.
    DEVICE u32 entry_of(u32 row) const { return job.order == nullptr ? row : job.order[row]; }

    // Entry of sum `i` of this thread in its block, and its row.
    DEVICE static u32 column(u32 i) { return i / 4 * 8 + 2 * pair_of_lane() + i % 2; }
    DEVICE static u32 row(u32 i) { return warp_id() % 4 * 16 + group_of_lane() + i % 4 / 2 * 8; }

    // The entry of sum `i`, or of the last one.
    DEVICE u32 entry(const Block& here, u32 i) const { return entry_of(here.first + min(column(i), here.count - 1)); }

    // The factors of the entries of sums `i..i + 4`; `entry` is that of the first of all.
    DEVICE float2 two_factors(u32 entry, u32 i) const {
        if (job.factor == nullptr) return make_float2(1.0f, 1.0f);
        return *reinterpret_cast<const float2*>(job.factor + entry + i / 4 * 8);
    }

    // What `finish` mostly does, for a whole block: its entries are neighbours.
    DEVICE void finish_plain(const float (&totals)[SUMS], u32 entry, u32 row) const {
        constexpr u32 SOME = 32;
        float* const to = job.out_at(entry, row);
        const auto at = [&](u32 i) { return to + (u64(job.out_stride) * (i / 4 * 8 + i % 2) + i % 4 / 2 * 8); };
#pragma unroll
        for (u32 begin = 0; begin < SUMS; begin += SOME) {
            float2 factors[SOME / 4];
            float before[SOME];
#pragma unroll
            for (u32 i = 0; i < SOME; i += 4) factors[i / 4] = two_factors(entry, begin + i);
            if (job.accumulate) {
#pragma unroll
                for (u32 i = 0; i < SOME; ++i) before[i] = *at(begin + i);
            }
#pragma unroll
            for (u32 i = 0; i < SOME; ++i) {
                const float factor = i % 2 == 0 ? factors[i / 4].x : factors[i / 4].y;
                const float y = __fmul_rn(__fmul_rn(totals[begin + i], factor), job.scale);
                *at(begin + i) = job.accumulate ? __fadd_rn(before[i], y) : y;
            }
        }
    }

    // Some at a time: all that is read of them comes before anything is written, so that nothing waits for it.
    DEVICE void finish(const float (&totals)[SUMS], const Block& here) const {
        constexpr u32 SOME = 32;
        const u32 first_row = here.rows * ROWS + warp_id() / 4 * 64;
        const u32 rows[2] = {first_row + row(0), first_row + row(2)};
        const u32 inside[2] = {min(rows[0], job.rows - 1), min(rows[1], job.rows - 1)};
        const bool is_whole = here.count == WIDTH && first_row + 64 <= job.rows && job.order == nullptr;
        const bool is_plain = job.bias == nullptr && job.row_gate == nullptr && job.activation == IDENTITY;
        if (is_whole && is_plain) return finish_plain(totals, here.first + 2 * pair_of_lane(), rows[0]);
#pragma unroll
        for (u32 begin = 0; begin < SUMS; begin += SOME) {
            float y[SOME], before[SOME];
#pragma unroll
            for (u32 i = 0; i < SOME; ++i) before[i] = 0.0f;
            if (job.accumulate) {
#pragma unroll
                for (u32 i = 0; i < SOME; ++i) before[i] = *job.out_at(entry(here, begin + i), inside[i / 2 % 2]);
            }
#pragma unroll
            for (u32 i = 0; i < SOME; ++i) {
                y[i] = __fmul_rn(totals[begin + i], factor_of(here.first + min(column(begin + i), here.count - 1)));
            }
            if (job.bias != nullptr) {
#pragma unroll
                for (u32 i = 0; i < SOME; ++i) y[i] = __fadd_rn(y[i], job.bias[inside[i / 2 % 2]]);
            }
            activate_all(job.activation, y);
            if (job.row_gate == nullptr) {
#pragma unroll
                for (u32 i = 0; i < SOME; ++i) y[i] = __fmul_rn(y[i], job.scale);
            } else {
#pragma unroll
                for (u32 i = 0; i < SOME; ++i) y[i] = __fmul_rn(y[i], job.weight_of(entry(here, begin + i)));
            }
            if (job.accumulate) {
#pragma unroll
                for (u32 i = 0; i < SOME; ++i) y[i] = __fadd_rn(before[i], y[i]);
            }
#pragma unroll
            for (u32 i = 0; i < SOME; ++i) {
                const bool is_there = column(begin + i) < here.count && rows[i / 2 % 2] < job.rows;
                if (is_there) *job.out_at(entry(here, begin + i), rows[i / 2 % 2]) = y[i];
            }
        }
    }

    // The first warpgroup has sums of the gate, the second those of what it gates: each ends half of the entries. Both in the same
    // instructions: this is gone through once in a while, and takes as long as instructions come.
    DEVICE void finish_gated(const float (&totals)[SUMS], const Block& here) const {
        constexpr u32 SOME = 16, HALF = SUMS / 2;
        float* passed = reinterpret_cast<float*>(shared + STAGES * STAGE) + threadIdx.x % 128;
        const bool has_gate = threadIdx.x < 128;
        sync_some<1, 128 * MULTIPLIERS>();
#pragma unroll
        for (u32 i = 0; i < HALF; ++i) passed[(has_gate ? i : HALF + i) * 128] = has_gate ? totals[HALF + i] : totals[i];
        sync_some<1, 128 * MULTIPLIERS>();
        const u32 first_row = here.rows * ROWS;
#pragma unroll
        for (u32 begin = 0; begin < HALF; begin += SOME) {
            float gates[SOME], ups[SOME];
            float* to[SOME];
#pragma unroll
            for (u32 i = 0; i < SOME; ++i) {
                const u32 x = here.first + min(column(has_gate ? begin + i : HALF + begin + i), here.count - 1);
                const float other = passed[(has_gate ? HALF + begin + i : begin + i) * 128], by = factor_of(x);
                gates[i] = __fmul_rn(has_gate ? totals[begin + i] : other, by);
                ups[i] = __fmul_rn(has_gate ? other : totals[HALF + begin + i], by);
                to[i] = job.out_at(entry_of(x), first_row + row(i));
            }
            activate_all(job.activation, gates);
#pragma unroll
            for (u32 i = 0; i < SOME; ++i) {
                const u32 at = column(has_gate ? begin + i : HALF + begin + i);
                if (at < here.count && first_row + row(i) < job.rows) *to[i] = gates[i] * ups[i];
            }
        }
    }

    // Every block sends its sums of eight entries to the block that ends them, and ends those of its own number. `turn`: how often
    // that has been done.
    DEVICE void finish_parts(const float (&totals)[SUMS], const Block& here, u32 turn) const {
        // By segment and thread.
        float* sent = reinterpret_cast<float*>(shared + STAGES * STAGE);
        constexpr u32 OF_SEGMENT = 128 * MULTIPLIERS * 4;
        const u32 eights = ceil_div(here.count, 8u);
        // At first nobody has read anything.
        barrier_wait(heard(), (turn & 1) ^ 1);
#pragma unroll
        for (u32 to = 0; to < PARTS; ++to) {
            if (to < eights) store_four_at(sent + rank * OF_SEGMENT + threadIdx.x * 4, totals + 4 * to, told(), to);
        }
        if (rank < eights) {
            if (threadIdx.x == 0) barrier_expect(told(), PARTS * OF_SEGMENT * 4);
            barrier_wait(told(), turn & 1);
            if constexpr (GATED) end_gated(sent, here);
            if constexpr (!GATED) end_plain(sent, here);
        } else if (threadIdx.x == 0) {
            barrier_arrive(told());
        }
        __syncwarp();
        if (lane_id() < PARTS) barrier_arrive_at(heard(), lane_id());
    }

    // Sum `i` of four, of the entry of this block that is `column(i)`th.
    DEVICE void end_plain(const float* sent, const Block& here) const {
        float sums[4] = {};
#pragma unroll
        for (u32 part = 0; part < PARTS; ++part) {
            const float4 four = *reinterpret_cast<const float4*>(sent + (part * 128 * MULTIPLIERS + threadIdx.x) * 4);
            sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
        }
        const u32 first_row = here.rows * ROWS + warp_id() / 4 * 64;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 at = 8 * rank + column(i), out_row = first_row + row(i);
            if (at < here.count && out_row < job.rows) job.finish(here.first + at, out_row, sums[i]);
        }
    }

    // The first warpgroup ends the upper rows of both, the second the lower ones.
    DEVICE void end_gated(const float* sent, const Block& here) const {
        const u32 half = threadIdx.x / 128 * 2;
        float gates[2] = {}, ups[2] = {};
#pragma unroll
        for (u32 part = 0; part < PARTS; ++part) {
            const float* from = sent + (part * 128 * MULTIPLIERS + threadIdx.x % 128) * 4 + half;
            const float2 gate = *reinterpret_cast<const float2*>(from), up = *reinterpret_cast<const float2*>(from + 4 * 128);
            gates[0] += gate.x, gates[1] += gate.y, ups[0] += up.x, ups[1] += up.y;
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 at = 8 * rank + column(i), out_row = here.rows * ROWS + row(half + i);
            if (at < here.count && out_row < job.rows) job.finish_gated(here.first + at, out_row, gates[i], ups[i]);
        }
    }

    DEVICE void run() const {
        if (threadIdx.x == 0) {
#pragma unroll
            for (u32 stage = 0; stage < STAGES; ++stage) {
                barrier_init(full(stage), TILES + 1);
                barrier_init(empty(stage), SHARING * 4 * MULTIPLIERS);
            }
            if constexpr (PARTS > 1) {
                barrier_init(told(), 1);
                barrier_init(heard(), PARTS * 4 * MULTIPLIERS);
            }
            barriers_made();
        }
        __syncthreads();
        cluster_sync();
        if (threadIdx.x >= 128 * MULTIPLIERS) {
            give_registers<24>();
            bring();
        } else {
            take_registers<AT_ONCE == 2 ? 104 : 240>();
            Turn turn;
            u32 ended = 0;
            for (u32 at = blockIdx.x / CLUSTER; at < count; at += gridDim.x / CLUSTER, ++ended) {
                float totals[SUMS];
                sum_up(totals, turn);
                if constexpr (PARTS > 1) {
                    finish_parts(totals, place(at), ended);
                } else {
                    if constexpr (GATED) finish_gated(totals, place(at));
                    if constexpr (!GATED) finish(totals, place(at));
                }
            }
        }
        // Nobody leaves before the other block needs its memory no more.
        __syncwarp();
        cluster_sync();
    }
};

template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS> DEVICE void wide(const Job& job) {
    extern __shared__ __align__(1024) u8 shared[];
    let_next_begin();
    wait_for_inputs();
    Wide<FORMAT, WIDTH, GATED, PARTS>(job, shared).run();
}

#define WIDE_KERNEL(name, ...)                                                                              \
    KERNEL __cluster_dims__(Wide<__VA_ARGS__>::CLUSTER, 1, 1)                                               \
        __launch_bounds__(WIDE_THREADS, Wide<__VA_ARGS__>::AT_ONCE) name(Job job) { wide<__VA_ARGS__>(job); }
#define WIDE(name, FORMAT)                                            \
    WIDE_KERNEL(wide_64_##name, FORMAT, 64, false, 1)                 \
    WIDE_KERNEL(wide_128_##name, FORMAT, 128, false, 1)               \
    WIDE_KERNEL(wide_192_##name, FORMAT, 192, false, 1)               \
    WIDE_KERNEL(gated_wide_64_##name, FORMAT, 64, true, 1)            \
    WIDE_KERNEL(gated_wide_128_##name, FORMAT, 128, true, 1)          \
    WIDE_KERNEL(gated_wide_192_##name, FORMAT, 192, true, 1)          \
    WIDE_KERNEL(parts_64_##name, FORMAT, 64, false, SEGMENTS)         \
    WIDE_KERNEL(gated_parts_64_##name, FORMAT, 64, true, SEGMENTS)

#else
#define WIDE(name, FORMAT)
#endif
