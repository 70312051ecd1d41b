// Products of many rows on GPUs of compute capability 9.0. Four warps multiply 64 rows of weights, which they unpack into
// registers, with WIDTH entries in shared memory, and while they do they unpack the next ones. All sums are taken in the order
// of `many` (quant/product.cuh), and give the same bits.
#pragma once
#include "common/hopper.cuh"
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/formats.cuh"
#include "quant/job.cuh"
#include "quant/sums.cuh"

#ifdef HAS_WARPGROUPS

// Two warpgroups that multiply, and one that brings.
static constexpr u32 MULTIPLIERS = 2, WIDE_THREADS = 128 * (MULTIPLIERS + 1);

// What a block multiplies: 128 rows of a matrix, or 64 of two, with neighbouring rows of activations. They are as these
// kernels want them (stage_wide.cu): unit after unit, in it row after row 64 columns of 16 bits.
struct Block {
    u32 matrix, rows; // number of the matrix, and of its rows by blocks
    u32 first, count; // rows of activations
};

// What the end of a block knows of an entry: its number, and what its activations are to be multiplied by.
struct Entry {
    u32 number;
    float factor;
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
//
// What a block does for a unit besides its products, most of it for the weights, takes as long as 100 entries and more. Where it has
// few entries of an expert, two are at work at once: one goes on while the other waits.
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32 BLOCKS = PARTS == 1 ? 1 : 2> struct Wide {
    static_assert(PARTS == 1 || (PARTS == SEGMENTS && WIDTH == 8 * PARTS));
    static constexpr u32 SHARING = PARTS == 1 ? 2 : 1, CLUSTER = SHARING * PARTS;
    // Blocks of a multiprocessor at once, and shared memory of each.
    static constexpr u32 AT_ONCE = BLOCKS, SHARED = AT_ONCE == 2 ? 113 << 10 : 227 << 10;
    static constexpr u32 TILES = 8, TILE = FORMAT::UNIT + FORMAT::SUPER, X = WIDTH * 128;
    static constexpr u32 STAGE = X + (TILES * TILE + 1023) / 1024 * 1024;
    static constexpr u32 ROWS_OF_BLOCK = 64 * MULTIPLIERS;
    static constexpr u32 ROWS = GATED ? ROWS_OF_BLOCK / 2 : ROWS_OF_BLOCK; // of a matrix
    static constexpr u32 SUMS = WIDTH / 2, ENTRIES = (WIDTH + 127) / 128;  // of a thread

    // Whether weights of a unit are asked for while the one ahead is multiplied, once those of that are unpacked: what shared memory
    // takes to answer is as long as a product with few entries. Values of 16 bits are multiplied where they were loaded to, which
    // has to end before the next ones are.
    static constexpr bool IS_AHEAD = !FORMAT::IS_PLAIN;

    // Of a block. Behind the stages: sums on their way to their end, barriers.
    static constexpr u32 LOT = 32, ROW_OF_LOT = 20; // entries; floats from one to the next
    static constexpr u32 PASSED = PARTS > 1 ? ROWS_OF_BLOCK * WIDTH * 4 : MULTIPLIERS * (4 * LOT * ROW_OF_LOT * 4 + WIDTH * 8);
    static constexpr u32 MOST = (SHARED - PASSED - 16) / (STAGE + 16), STAGES = MOST < 8 ? MOST : 8;
    static_assert(STAGES >= 3);

    const Job& job;
    u8* shared;
    u32 at; // the same, as an address of shared memory
    u32 rank, across, down, count; // of this block; blocks of weights (in clusters), of entries, and of both
    u32 cluster, clusters;
    u32 turns, share_begin, share_end; // whole blocks; segments of those that are left
    u32 shared_by;                     // clusters that share the segments of a block, or 1

    // What a block multiplies at once: segments of the columns.
    struct Work {
        u32 at, from, to;
    };

    // Rows of activations are entries, or what is in the order of the pieces.
    //
    // Clusters take turns. The blocks of what would be the last two are cut by segments into equal shares, so that all clusters end
    // at once. A share may begin and end within a block. The beginning of its last block is multiplied first of all, and the sums are
    // left to the next cluster, which goes on with them at the end of all: nobody waits.
    //
    // Of fewer blocks than that each is shared by several clusters, all of which are at work at once. What each has summed up is
    // left in memory, segments behind the first ones each alone, and all end some of the entries.
    DEVICE Wide(const Job& job, u8* shared) : job(job), shared(shared), at(shared_address(shared)) {
        keep(at);
        rank = rank_in_cluster(), cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
        across = ceil_div(ceil_div(job.rows, ROWS), SHARING);
        down = job.pieces == nullptr ? ceil_div(job.entries, WIDTH) : *job.piece_count;
        count = across * down;
        share_begin = 0, share_end = 0;
        shared_by = PARTS > 1 || job.pieces != nullptr || count == 0 ? 1 : max(clusters / count, 1u);
        if (PARTS > 1 || job.pieces != nullptr || count % clusters == 0) {
            turns = cluster < count ? ceil_div(count - cluster, clusters) : 0;
        } else {
            turns = count / clusters - 1;
            const u32 left = (count - turns * clusters) * SEGMENTS;
            share_begin = left * cluster / clusters, share_end = left * (cluster + 1) / clusters;
        }
    }

    // Which share of its block a cluster has.
    DEVICE u32 share() const { return cluster / count; }

    DEVICE u32 first_whole() const { return ceil_div(share_begin, SEGMENTS); }
    DEVICE u32 works() const {
        if (shared_by > 1) return 1;
        const bool has_first = share_end % SEGMENTS > 0, has_last = share_begin % SEGMENTS > 0;
        return has_first + turns + (share_end / SEGMENTS - first_whole()) + has_last;
    }
    DEVICE Work work(u32 i) const {
        if constexpr (PARTS > 1) return Work{cluster + i * clusters, rank, rank + 1};
        if (shared_by > 1) {
            return Work{cluster % count, SEGMENTS * share() / shared_by, SEGMENTS * (share() + 1) / shared_by};
        }
        const u32 left = turns * clusters; // the first of those that are cut
        const u32 first = share_end % SEGMENTS > 0;
        if (i < first) return Work{left + share_end / SEGMENTS, 0, share_end % SEGMENTS};
        if (i < first + turns) return Work{cluster + (i - first) * clusters, 0, SEGMENTS};
        const u32 whole = first_whole() + i - first - turns;
        if (whole < share_end / SEGMENTS) return Work{left + whole, 0, SEGMENTS};
        return Work{left + share_begin / SEGMENTS, share_begin % SEGMENTS, SEGMENTS};
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

    // Stages are gone through in turn; `parity` is that of this turn, `at` the bytes to the stage.
    struct Turn {
        u32 stage = 0, parity = 0, at = 0;

        DEVICE void next() {
            ++stage, at += STAGE;
            if (stage == STAGES) stage = 0, at = 0, parity ^= 1;
        }
    };

    // Four warps fill stages: each two tiles of weights, with a lane for each copy, since copies of a warp come one after the
    // other; and the last one the entries.
    DEVICE void bring() const {
        const u32 lane = lane_id(), warp = warp_id() % 4, tile = 2 * warp + lane % 2;
        const u32 tiles = ceil_div(job.rows, 16u);
        Turn turn;
        for (u32 i = 0; i < works(); ++i) {
            const Work work = this->work(i);
            const u32 begin = segment_begin(job.units, work.from), end = segment_begin(job.units, work.to);
            const Block here = place(work.at);
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

    // What a warp that multiplies goes by: descriptions of the entries and what is copied of its tile in the first stage, the first
    // barriers. Nothing of them is worked out again for every unit.
    struct Places {
        u32 x;
        Shared weights, super, full;
        u32 empty; // from a barrier of the first ones to the second one of that stage, of the block that this lane tells
    };
    DEVICE Places places() const {
        const Shared shared{at}, full = shared + (STAGES * STAGE + PASSED);
        const Shared weights = shared + (X + warp_id() * FORMAT::UNIT);
        const Shared super = shared + (X + TILES * FORMAT::UNIT + warp_id() * FORMAT::SUPER);
        Places places{u32(rows_of_128(this->shared)), weights, super, full, full.at + STAGES * 8};
        if (SHARING > 1 && lane_id() < SHARING) places.empty = address_at(full + STAGES * 8, lane_id());
        places.empty -= full.at;
        keep(places.x), keep(places.weights.at), keep(places.super.at), keep(places.full.at), keep(places.empty);
        return places;
    }

    // The turn of a warp that multiplies: the barrier of a stage, the bytes to it and what describes its entries. None of them is
    // worked out from a number: what that takes would be waited for in every unit.
    struct Reading {
        Shared full;
        u32 at, parity, x;

        DEVICE Reading(const Places& places, u32 parity = 0) : full(places.full), at(0), parity(parity), x(places.x) {}
        DEVICE void next(const Places& places) {
            full = full + 8, at += STAGE, x += STAGE / 16;
            if (at == STAGES * STAGE) *this = Reading(places, parity ^ 1);
        }
    };

    DEVICE static void load(const Places& places, const Reading& turn, typename FORMAT::Raw& raw) {
        FORMAT::load_copied(raw, places.weights + turn.at, places.super + turn.at);
    }

    // Words of a chunk of what is copied: of `raw`, if it was loaded ahead.
    DEVICE void weights(const Reading& turn, const typename FORMAT::Raw& raw, u32 chunk, Words& w) const {
        if constexpr (IS_AHEAD) {
            FORMAT::unpack(raw, chunk, w);
        } else {
            typename FORMAT::Raw here;
            const Stage at{shared + turn.at + X};
            const u32 super = TILES * FORMAT::UNIT + warp_id() * FORMAT::SUPER;
            FORMAT::load_copied(here, at + warp_id() * FORMAT::UNIT, at + super);
            FORMAT::unpack(here, chunk, w);
        }
    }

    // What is full, if anything is.
    static constexpr u32 NOTHING = 0;
    DEVICE static void release(const Places& places, u32 full) {
        if (lane_id() < SHARING && full != NOTHING) barrier_arrive_there(places.empty + full);
    }

    // A warpgroup: the sums of some segments, added to those ahead of them.
    DEVICE void sum_up(float (&totals)[SUMS], Reading& turn, const Work& work, const Places& places) const {
        float sums[SUMS] = {};
        Words first, second = {};
        typename FORMAT::Raw raw;
        const u32 begin = segment_begin(job.units, work.from), end = segment_begin(job.units, work.to);
        if (begin == end) return;
        barrier_wait(turn.full, turn.parity);
        if constexpr (IS_AHEAD) load(places, turn, raw);
        weights(turn, raw, 0, first);
        const bool leaves = shared_by > 1 && work.from > 0;
        u32 last = NOTHING, untold = SEGMENTS, rest = end - begin;
        for (u32 segment = work.from; segment < work.to; ++segment) {
            u32 units = segment_begin(job.units, segment + 1) - segment_begin(job.units, segment);
            if (units == 0) continue;
            u32 adds = 0;
            do {
                // Counters of their own: comparing what others are worked out from takes longer.
                keep(units), keep(rest);
                const Reading here = turn;
                multiply<FORMAT>(sums, first, here.x, adds);
                turn.next(places);
                const bool is_last = rest == 1, is_there = barrier_test(turn.full, turn.parity);
                adds = 1, --units, --rest;
                products_wait<1>();
                hold(second);
                release(places, last);
                last = here.full.at;
                weights(here, raw, 1, second);
                if (IS_AHEAD && !is_last) {
                    if (!is_there) barrier_wait(turn.full, turn.parity);
                    load(places, turn, raw);
                }
                multiply<FORMAT>(sums, second, here.x + 4, 1);
                products_wait<1>();
                hold(first);
                if (is_last) break;
                if (!IS_AHEAD && !is_there) barrier_wait(turn.full, turn.parity);
                weights(turn, raw, 0, first);
            } while (units > 0);
            products_wait<0>();
            hold(sums);
            if (leaves) {
                if (untold < SEGMENTS) tell(work.at, untold);
                leave(sums, work.at, segment);
                untold = segment;
            } else {
#pragma unroll
                for (u32 i = 0; i < SUMS; ++i) totals[i] += sums[i];
            }
        }
        release(places, last);
        if (untold < SEGMENTS) tell(work.at, untold);
    }

    // What is left of a block that is shared: the sums of all segments of the first share, then those of each other one.
    DEVICE u32 first_alone() const { return SEGMENTS / shared_by; }
    DEVICE u32 number_left(u32 at, u32 segment) const {
        const u32 first = first_alone();
        return (at * CLUSTER + rank) * (SEGMENTS - first + 1) + (segment < first ? 0 : segment - first + 1);
    }
    DEVICE float* segment_left(u32 at, u32 segment) const {
        return job.parts + u64(number_left(at, segment)) * SUMS * 128 * MULTIPLIERS + 4 * threadIdx.x;
    }
    DEVICE void leave(const float (&sums)[SUMS], u32 at, u32 segment) const {
        float* to = segment_left(at, segment);
#pragma unroll
        for (u32 i = 0; i < SUMS; i += 4) {
            *reinterpret_cast<float4*>(to + i * 128 * MULTIPLIERS) = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
        }
        __syncwarp();
    }

    // A warp needs what warps of its number have left, and has a flag of its own for each of them.
    DEVICE u32* flag(u32 at, u32 segment, u32 share) const {
        return job.left + (number_left(at, segment) * 4 * MULTIPLIERS + warp_id()) * shared_by + share;
    }
    // Says that sums are there: only after those of the next segment have been made, as nobody waits for what has been written
    // long ago.
    DEVICE void tell(u32 at, u32 segment) const {
        if (lane_id() < shared_by) tell_blocks(flag(at, segment, lane_id()), 1);
        __syncwarp();
    }
    // Waits for all. Returns which there are, by bit: segments without columns are not left.
    DEVICE u32 wait_for_left(u32 at) const {
        const u32 first = first_alone(), number = lane_id(), segment = number + first - 1;
        const bool is_empty = segment_begin(job.units, segment) == segment_begin(job.units, segment + 1);
        const bool is_left = number == 0 || (segment < SEGMENTS && !is_empty);
        if (is_left) {
            u32* const told = flag(at, segment, share());
            wait_until_told(told, 1);
            set_for_blocks(told, 0);
        }
        __syncwarp();
        return __ballot_sync(ALL_LANES, is_left);
    }

    // Where sums of a block are left, and whether they are there. Who takes them takes that back.
    DEVICE float* left_at(u32 cluster) const {
        return job.parts + u64(cluster * CLUSTER + rank) * SUMS * 128 * MULTIPLIERS + threadIdx.x;
    }
    DEVICE u32* is_left(u32 cluster) const { return job.left + cluster * CLUSTER + rank; }

    DEVICE void leave(const float (&totals)[SUMS]) const {
        float* to = left_at(cluster);
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) to[i * 128 * MULTIPLIERS] = totals[i];
        sync_some<1, 128 * MULTIPLIERS>();
        if (threadIdx.x == 0) tell_blocks(is_left(cluster), 1);
    }

    DEVICE void go_on(float (&totals)[SUMS]) const {
        const float* from = left_at(cluster - 1);
        if (threadIdx.x == 0) {
            wait_until_told(is_left(cluster - 1), 1);
            set_for_blocks(is_left(cluster - 1), 0);
        }
        sync_some<1, 128 * MULTIPLIERS>();
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) totals[i] = load_float(from + i * 128 * MULTIPLIERS);
    }

    DEVICE float factor_of(u32 row) const { return job.factor == nullptr ? 1.0f : job.factor[row]; }

    // The entry of a row of activations.
    DEVICE u32 entry_of(u32 row) const { return job.order == nullptr ? row : job.order[row]; }

    // Entry of sum `i` of this thread in its block, and its row.
    DEVICE static u32 column(u32 i) { return i / 4 * 8 + 2 * pair_of_lane() + i % 2; }
    DEVICE static u32 row_of_warp(u32 i) { return group_of_lane() + i % 4 / 2 * 8; }
    DEVICE static u32 row(u32 i) { return warp_id() % 4 * 16 + row_of_warp(i); }

    // Where a warp has a lot of its sums for its end, `[entry][ROW_OF_LOT]`, and a warpgroup what it knows of the entries.
    DEVICE float* lots() const { return reinterpret_cast<float*>(shared + STAGES * STAGE); }
    DEVICE Entry* entries() const {
        return reinterpret_cast<Entry*>(lots() + 4 * MULTIPLIERS * LOT * ROW_OF_LOT) + threadIdx.x / 128 * WIDTH;
    }

    // The entries of a block, some for each thread: asked for ahead of the sums.
    struct Entries {
        Entry of[ENTRIES];
    };
    DEVICE Entries entries_of(const Block& here) const {
        Entries entries;
#pragma unroll
        for (u32 i = 0; i < ENTRIES; ++i) {
            const u32 row = here.first + min(threadIdx.x % 128 + 128 * i, here.count - 1);
            entries.of[i] = Entry{entry_of(row), factor_of(row)};
        }
        return entries;
    }
    DEVICE void put(const Entries& entries) const {
        const u32 thread = threadIdx.x % 128, barrier = 6 + threadIdx.x / 128;
        // What is there may still be read.
        sync_threads(barrier, 128);
#pragma unroll
        for (u32 i = 0; i < ENTRIES; ++i) {
            if (thread + 128 * i < WIDTH) this->entries()[thread + 128 * i] = entries.of[i];
        }
        sync_threads(barrier, 128);
    }

    // Where sum `i` of a lot goes, from where this lane begins.
    DEVICE static float* place_of(float* to, u32 i) { return to + (i / 4 * 8 + i % 2) * ROW_OF_LOT + i % 4 / 2 * 8; }

    // Only numbers that are known when this is compiled name registers.
    DEVICE static void put(const float (&totals)[SUMS], u32 lot, float* to) {
#pragma unroll
        for (u32 which = 0; which < ceil_div(WIDTH, LOT); ++which) {
            if (which != lot) continue;
#pragma unroll
            for (u32 i = 0; i < LOT / 2 && which * LOT / 2 + i < SUMS; ++i) {
                *place_of(to, i) = totals[which * LOT / 2 + i];
            }
        }
    }

    // Four rows are a vector, wherever it is that entries begin.
    DEVICE bool is_even() const { return (u64(job.out + job.column) / 4 | job.out_stride | job.rows) % 4 == 0; }

    // Most ends are all alike: a product with a factor, perhaps the square of what is positive of it, which may be added to what is
    // there; or a gate of the usual kind.
    DEVICE bool is_usual() const {
        if constexpr (GATED) return is_even() && job.activation == SILU;
        const bool is_simple = job.activation == IDENTITY || job.activation == RELU_SQUARED;
        return is_even() && job.bias == nullptr && job.row_gate == nullptr && is_simple;
    }

    // Any other end of a row of an entry.
    DEVICE void end(const Entry& entry, u32 row, float sum, float up) const {
        if constexpr (GATED) job.finish_gated(entry.number, row, sum, up, entry.factor);
        if constexpr (!GATED) job.finish(entry.number, row, sum, job.ending(entry.number, row, entry.factor));
    }

    // quant/wide_end.cuh: adds up what is left of a lot; ends four rows of every eighth entry; ends a block, of which `left` tells
    // what is there if it is shared; and one of a cluster that has a block for each segment.
    DEVICE void put_left(u32 at, u32 left, u32 lot, float* to) const;
    template <u32 COUNT>
    DEVICE void end_usual(float (&x)[4 * COUNT], const float (&with)[4 * COUNT], const Entry* entry) const;
    DEVICE void finish(const float (&totals)[SUMS], u32 at, u32 left, const Entries& mine) const;
    DEVICE void finish_parts(const float (&totals)[SUMS], const Block& here, u32 turn) const;
    DEVICE void end_plain(const float* sent, const Block& here) const;
    DEVICE void end_gated(const float* sent, const Block& here) const;

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
            const Places places = this->places();
            Reading turn(places);
            for (u32 i = 0; i < works(); ++i) {
                const Work work = this->work(i);
                const Block here = place(work.at);
                float totals[SUMS] = {};
                if constexpr (PARTS > 1) {
                    sum_up(totals, turn, work, places);
                    finish_parts(totals, here, i);
                } else {
                    const Entries entries = entries_of(here);
                    if (work.from > 0 && shared_by == 1) go_on(totals);
                    sum_up(totals, turn, work, places);
                    u32 left = 0;
                    if (shared_by > 1) {
                        if (work.from == 0) leave(totals, work.at, 0), tell(work.at, 0);
                        left = wait_for_left(work.at);
                    } else if (work.to < SEGMENTS) {
                        leave(totals);
                        continue;
                    }
                    finish(totals, work.at, left, entries);
                }
            }
        }
        // Nobody leaves before the other block needs its memory no more.
        __syncwarp();
        cluster_sync();
    }
};

#include "quant/wide_end.cuh"

template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32... BLOCKS> DEVICE void wide(const Job& job) {
    extern __shared__ __align__(1024) u8 shared[];
    let_next_begin();
    wait_for_inputs();
    Wide<FORMAT, WIDTH, GATED, PARTS, BLOCKS...>(job, shared).run();
}

#define WIDE_KERNEL(name, ...)                                                                              \
    KERNEL __cluster_dims__(Wide<__VA_ARGS__>::CLUSTER, 1, 1)                                               \
        __launch_bounds__(WIDE_THREADS, Wide<__VA_ARGS__>::AT_ONCE) name(Job job) { wide<__VA_ARGS__>(job); }
#define WIDE(name, FORMAT)                                            \
    WIDE_KERNEL(wide_64_##name, FORMAT, 64, false, 1)                 \
    WIDE_KERNEL(wide_96_##name, FORMAT, 96, false, 1)                 \
    WIDE_KERNEL(wide_128_##name, FORMAT, 128, false, 1)               \
    WIDE_KERNEL(wide_176_##name, FORMAT, 176, false, 1)               \
    WIDE_KERNEL(wide_192_##name, FORMAT, 192, false, 1)               \
    WIDE_KERNEL(gated_wide_64_##name, FORMAT, 64, true, 1)            \
    WIDE_KERNEL(gated_wide_128_##name, FORMAT, 128, true, 1)          \
    WIDE_KERNEL(gated_wide_176_##name, FORMAT, 176, true, 1)          \
    WIDE_KERNEL(gated_wide_192_##name, FORMAT, 192, true, 1)          \
    WIDE_KERNEL(experts_32_##name, FORMAT, 32, false, 1, 2)           \
    WIDE_KERNEL(experts_64_##name, FORMAT, 64, false, 1, 2)           \
    WIDE_KERNEL(gated_experts_32_##name, FORMAT, 32, true, 1, 2)      \
    WIDE_KERNEL(gated_experts_64_##name, FORMAT, 64, true, 1, 2)      \
    WIDE_KERNEL(parts_64_##name, FORMAT, 64, false, SEGMENTS)         \
    WIDE_KERNEL(gated_parts_64_##name, FORMAT, 64, true, SEGMENTS)

#else
#define WIDE(name, FORMAT)
#endif
