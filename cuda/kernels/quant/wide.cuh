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

// Two blocks of a cluster have the same entries: each brings half of them for both.
static constexpr u32 CLUSTER = 2;
// Two warpgroups that multiply, and one that brings.
static constexpr u32 MULTIPLIERS = 2, WIDE_THREADS = 128 * (MULTIPLIERS + 1);
// Shared memory of a block.
static constexpr u32 WIDE_SHARED = 227 << 10;

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

template <class FORMAT, u32 WIDTH, bool GATED> struct Wide {
    static constexpr u32 TILES = 8, TILE = FORMAT::UNIT + FORMAT::SUPER, X = WIDTH * 128;
    static constexpr u32 STAGE = X + (TILES * TILE + 1023) / 1024 * 1024;
    static constexpr u32 ROWS = GATED ? 64 : 128; // of a block
    static constexpr u32 SUMS = WIDTH / 2;        // of a thread

    // Of a block. Behind the stages: sums on their way from one warpgroup to the other, barriers.
    static constexpr u32 PASSED = GATED ? SUMS / 2 * 128 * 2 * 4 : 0;
    static constexpr u32 MOST = (WIDE_SHARED - PASSED) / (STAGE + 16), STAGES = MOST < 8 ? MOST : 8;

    const Job& job;
    u8* shared;
    u32 rank, units, across, down, count; // blocks of weights (in clusters) and of entries

    // Rows of activations are entries, or what is in the order of the pieces.
    DEVICE Wide(const Job& job, u8* shared) : job(job), shared(shared) {
        rank = rank_in_cluster();
        units = job.units;
        across = ceil_div(ceil_div(job.rows, ROWS), CLUSTER);
        down = job.pieces == nullptr ? ceil_div(job.entries, WIDTH) : *job.piece_count;
        count = across * down;
    }

    DEVICE u64* full(u32 stage) const { return reinterpret_cast<u64*>(shared + STAGES * STAGE + PASSED) + stage; }
    DEVICE u64* empty(u32 stage) const { return full(STAGES + stage); }
    DEVICE u8* x_at(u32 stage) const { return shared + stage * STAGE; }
    DEVICE u8* weights_at(u32 stage) const { return shared + stage * STAGE + X; }

    // What comes after `at` others: those that are near each other share weights and entries.
    DEVICE Block place(u32 at) const {
        constexpr u32 BAND = 8;
        if (job.pieces != nullptr) {
            const Piece piece = job.pieces[at / across];
            return Block{piece.matrix, at % across * CLUSTER + rank, piece.first, piece.count};
        }
        const u32 band = at / (BAND * across), in_band = at % (BAND * across), rows = min(BAND, down - band * BAND);
        const u32 first = (band * BAND + in_band % rows) * WIDTH;
        return Block{0, in_band / rows * CLUSTER + rank, first, min(WIDTH, job.entries - first)};
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
            const u32 rows = here.count, mine = min(rows, rank * (WIDTH / CLUSTER));
            const u32 my_rows = min(rows - mine, WIDTH / CLUSTER);
            const u32 number = min(GATED ? here.rows * 4 + tile % 4 : here.rows * TILES + tile, tiles - 1);
            const u8* weights = GATED && tile >= 4 ? job.up : job.weight;
            weights += (u64(here.matrix) * tiles + number) * FORMAT::tile_bytes(units);
            const u8* super = weights + u64(units) * FORMAT::UNIT;
            const u8* x = job.x + (u64(here.first) + mine) * 128;
            // Not unrolled, and with addresses that are kept: the compiler of CUDA 13.0 lost half of one that it had worked out for
            // several units at once.
#pragma unroll 1
            for (u32 unit = 0; unit < units; ++unit, turn.next()) {
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
                    if (my_rows > 0) copy_bulk_to_both(x_at(stage) + mine * 128, x, my_rows * 128, full(stage));
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
        if (lane_id() < CLUSTER) barrier_arrive_at(empty(stage), lane_id());
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

    // A warpgroup.
    DEVICE void sum_up(float (&totals)[SUMS], Turn& turn) const {
        float sums[SUMS];
        Words first, second;
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) totals[i] = 0.0f, sums[i] = 0.0f;
        barrier_wait(full(turn.stage), turn.parity);
        weights(turn.stage, 0, first);
        u32 unit = 0, last = 0;
        for (u32 segment = 0; segment < SEGMENTS; ++segment) {
            const u32 end = units * (segment + 1) / SEGMENTS;
            if (unit == end) continue;
            for (u32 adds = 0; unit < end; adds = 1, ++unit) {
                const u32 stage = turn.stage;
                const u64 x = rows_of_128(x_at(stage));
                multiply(sums, first, x, adds);
                products_wait<1>();
                if (unit > 0) release(last);
                last = stage;
                weights(stage, 1, second);
                multiply(sums, second, x + 4, 1);
                products_wait<1>();
                turn.next();
                if (unit + 1 == units) continue;
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

    DEVICE void run() const {
        if (threadIdx.x == 0) {
#pragma unroll
            for (u32 stage = 0; stage < STAGES; ++stage) {
                barrier_init(full(stage), TILES + 1);
                barrier_init(empty(stage), CLUSTER * 4 * MULTIPLIERS);
            }
            barriers_made();
        }
        __syncthreads();
        cluster_sync();
        if (threadIdx.x >= 128 * MULTIPLIERS) {
            give_registers<24>();
            bring();
        } else {
            take_registers<240>();
            Turn turn;
            for (u32 at = blockIdx.x / CLUSTER; at < count; at += gridDim.x / CLUSTER) {
                float totals[SUMS];
                sum_up(totals, turn);
                if constexpr (GATED) finish_gated(totals, place(at));
                if constexpr (!GATED) finish(totals, place(at));
            }
        }
        // Nobody leaves before the other block needs its memory no more.
        __syncwarp();
        cluster_sync();
    }
};

template <class FORMAT, u32 WIDTH, bool GATED> DEVICE void wide(const Job& job) {
    extern __shared__ __align__(1024) u8 shared[];
    let_next_begin();
    wait_for_inputs();
    Wide<FORMAT, WIDTH, GATED>(job, shared).run();
}

#define WIDE(name, FORMAT, WIDTH)                                                                                     \
    KERNEL __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WIDE_THREADS, 1) wide_##WIDTH##_##name(Job job) {        \
        wide<FORMAT, WIDTH, false>(job);                                                                              \
    }                                                                                                                 \
    KERNEL __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WIDE_THREADS, 1) gated_wide_##WIDTH##_##name(Job job) {  \
        wide<FORMAT, WIDTH, true>(job);                                                                               \
    }

#else
#define WIDE(name, FORMAT, WIDTH)
#endif
