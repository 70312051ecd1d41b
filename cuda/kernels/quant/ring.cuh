// Products of a few entries with matrices of 16 bits and less: steps of a few sequences, which are as fast as weights come.
//
// A block has groups of SEGMENTS warps, each with tiles of its own, and stays until all of them are done. A warp brings
// its segment of all its tiles, one unit after the other, through a ring in shared memory that belongs to it alone: the
// ring is filled before anything has to be waited for, and stays full from one tile to the next. Sums are those of `few`.
// Blocks ask for so much shared memory that a multiprocessor has room for one of them: as many as there are
// multiprocessors begin at once, and where the block of one launch ends, that of the next fills its ring.
#pragma once
#include "quant/row.cuh"
#include "quant/sums.cuh"

// How a block gets activations: one row of f32 that it rounds itself; all rows in 16 bits, at once; these unit by unit
// with the weights, where there are too many of them, or no more than a tile for each group; or a segment of them
// (quant/clustered.cuh).
enum class Rows : u32 { ONE, AT_ONCE, BY_UNIT, SEGMENT };

// Groups of a block at most, and bytes of the ring of a warp: for one entry or eight, for 16, with activations in it, of a
// block with a segment.
static constexpr u32 RING_GROUPS = 2, RING_THREADS = RING_GROUPS * THREADS;
static constexpr u32 RING_BYTES = 7168, RING_BYTES_OF_16 = 4608, RING_BYTES_BY_UNIT = 12800, RING_BYTES_OF_SEGMENT = 4608;
// Bytes between rows of activations that have been copied at once, besides their own: lanes then read from different banks.
static constexpr u32 BETWEEN_ROWS = 64;

// Waits for the other warps of a group.
DEVICE void group_barrier(u32 group) { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(THREADS) : "memory"); }

// A slot of a ring: PER units, for each of them what it shares with others, then activations of up to 8 EIGHTS entries. Two
// units, if there are three such slots then.
template <class FORMAT, Rows ROWS, u32 EIGHTS> struct Slot {
    static constexpr bool BY_UNIT = ROWS == Rows::BY_UNIT;
    static constexpr u32 OF_WARP = BY_UNIT                 ? RING_BYTES_BY_UNIT
                                   : ROWS == Rows::SEGMENT ? RING_BYTES_OF_SEGMENT
                                   : EIGHTS > 1            ? RING_BYTES_OF_16
                                                           : RING_BYTES;
    static constexpr u32 OF_INPUTS = EIGHTS * 8 * 128, EACH = FORMAT::UNIT + FORMAT::SUPER + (BY_UNIT ? OF_INPUTS : 0);
    static constexpr u32 PER = 6 * EACH <= OF_WARP ? 2 : 1, BYTES = PER * EACH, MOST = OF_WARP / BYTES, COUNT = MOST > 2 ? MOST : 2;
    static constexpr u32 UNITS = PER * FORMAT::UNIT, INPUTS = UNITS + PER * FORMAT::SUPER;
    // Slots that are filled before the activations are there. What is asked for then is ahead of these, which wait for it: a
    // third of the ring comes behind them.
    static constexpr u32 BEFORE = COUNT - (COUNT + 2) / 3;
};

// What a lane holds of the activations of a unit, whose chunks are at two places.
struct OfUnit {
    u32 words[2][4];

    DEVICE OfUnit() {}
    DEVICE OfUnit(Shared first, Shared second) {
#pragma unroll
        for (u32 chunk = 0; chunk < 2; ++chunk) {
            const uint4 four = load_16(chunk == 0 ? first : second);
            words[chunk][0] = four.x, words[chunk][1] = four.y, words[chunk][2] = four.z, words[chunk][3] = four.w;
        }
    }
};

// A warp's segment of all tiles of its group, in the order in which they are multiplied, and the ring they come through.
template <class FORMAT, bool GATED, u32 COUNT, Rows ROWS, u32 EIGHTS> struct Feed {
    typedef Slot<FORMAT, ROWS, EIGHTS> Of;
    static constexpr u32 UNIT = FORMAT::UNIT, SUPER = FORMAT::SUPER, PER = Of::PER, OF_LANE = 2 * EIGHTS;

    const Jobs<COUNT>& jobs;
    u64 tile_bytes, shared; // and bytes from the first unit of the segment to what units share
    const u8* from;         // this lane's piece of the unit that is brought next
    u32 ring, unit, begin, count, left; // `left` units of the tile
    u32 slot;                           // that is multiplied next
    u32 matrix, tile, stride, tiles;    // `tiles` that are left
    bool is_up;
    // Of activations that come by unit: this lane's pieces of rows, which are null where there is none; the next unit, and
    // how often units are gone through from the first.
    const u8* of_row[OF_LANE];
    u32 next, turns;

    DEVICE Feed(const Jobs<COUNT>& jobs, const Piece& piece, u32 segment, u8* at, u32 first, u32 stride)
        : jobs(jobs), matrix(piece.matrix), tile(first), stride(stride) {
        const u32 units = jobs.of[0].units, all = jobs.tiles();
        begin = segment_begin(units, segment), count = segment_begin(units, segment + 1) - begin;
        tiles = first < all ? ceil_div(all - first, stride) : 0;
        tile_bytes = FORMAT::tile_bytes(units);
        shared = u64(units - begin) * UNIT;
        ring = shared_address(at) + 16 * lane_id();
        left = 0, slot = 0, is_up = false;
        next = 0, turns = count > 0 ? tiles * (GATED ? 2 : 1) : 0;
        if (count > 0 && tiles > 0) begin_run();
    }

    // Says which rows of activations come by unit. Lane `l` brings piece `l % 8` of row `l / 8` and of every
    // fourth behind it.
    DEVICE void of_rows(const Job& job, const Piece& piece) {
#pragma unroll
        for (u32 i = 0; i < OF_LANE; ++i) {
            const u32 row = lane_id() / 8 + 4 * i;
            of_row[i] = nullptr;
            if (row < piece.count) of_row[i] = job.staged_row(piece, row) + u64(begin) * 128 + 16 * (lane_id() % 8);
        }
    }

    DEVICE void begin_run() {
        jobs.with(tile, [&](const Job& job, u32 at) {
            const u64 number = u64(matrix) * ceil_div(job.rows, 16u) + at;
            from = (GATED && is_up ? job.up : job.weight) + number * tile_bytes + begin * UNIT + 16 * lane_id();
        });
        unit = begin, left = count;
    }

    // Begins to copy the units of a slot, as many as there are.
    DEVICE void bring_weights(u32 slot) {
        if (left == 0) return;
        const u32 some = min(left, PER), lane = 16 * lane_id();
#pragma unroll
        for (u32 at = 0; at < Of::INPUTS; at += 512) {
            const u8* piece = from + at;
            bool is_there = at + lane < some * UNIT;
            if constexpr (SUPER > 0) {
                // What units share comes behind them.
                if (at + 512 > Of::UNITS && at + lane >= Of::UNITS) {
                    const u32 behind = at + lane - Of::UNITS, of = behind / SUPER;
                    piece = from + (shared - (unit - begin) * UNIT + (unit + of) / 4 * SUPER + behind % SUPER - lane);
                    is_there = of < some;
                }
            }
            if (is_there) copy_16_async(Shared{ring + slot * Of::BYTES + at}, piece);
        }
        from += Of::UNITS, unit += PER, left -= some;
        if (left == 0) end_run();
    }

    DEVICE void end_run() {
        if (GATED) is_up = !is_up;
        if (!is_up) tile += stride, --tiles;
        if (tiles > 0) begin_run();
    }

    // The same for their activations: piece `p` of row `r` goes to `p ^ 4 * (r % 2)`, so that lanes read from different banks.
    DEVICE void bring_inputs(u32 slot) {
        if (turns == 0) return;
        const u32 to = ring + slot * Of::BYTES + Of::INPUTS, odd = lane_id() / 8 % 2 * 64, piece = lane_id() % 8 * 16;
#pragma unroll
        for (u32 of = 0; of < PER; ++of) {
            if (next + of >= count) break;
#pragma unroll
            for (u32 i = 0; i < OF_LANE; ++i) {
                const u32 at = of * Of::OF_INPUTS + i * 512 + (piece ^ odd) - piece;
                if (of_row[i] != nullptr) copy_16_async(Shared{to + at}, of_row[i] + (next + of) * 128);
            }
        }
        next += PER;
        if (next >= count) next = 0, --turns;
    }

    DEVICE void bring(u32 slot) {
        bring_weights(slot);
        if constexpr (Of::BY_UNIT) bring_inputs(slot);
        copies_commit();
    }

    // Adds the products with units `from_unit` to `to_unit` of a tile, which come next. `chunks` says where this lane finds what it
    // reads of every eight rows of activations.
    DEVICE void multiply(float (&sum)[EIGHTS][4], const u32 (&chunks)[EIGHTS][2], u32 from_unit, u32 to_unit) {
        for (u32 i = from_unit; i < to_unit; i += PER) {
            const u32 from = ring - 16 * lane_id() + slot * Of::BYTES;
            typename FORMAT::Raw raw[PER];
            copies_wait<Of::COUNT - 1>();
            __syncwarp();
#pragma unroll
            for (u32 of = 0; of < PER; ++of) {
                FORMAT::load_copied(raw[of], Shared{from + of * UNIT}, Shared{from + Of::UNITS + of * SUPER});
            }
            const u32 of_x = Of::BY_UNIT ? from + Of::INPUTS : i * 128;
            const auto load_unit = [&](OfUnit(&to)[EIGHTS], u32 of) {
                const u32 at = of_x + of * (Of::BY_UNIT ? Of::OF_INPUTS : 128);
#pragma unroll
                for (u32 eight = 0; eight < EIGHTS; ++eight) {
                    to[eight] = OfUnit(Shared{at + chunks[eight][0]}, Shared{at + chunks[eight][1]});
                }
            };
            const auto multiply_unit = [&](u32 of, const OfUnit(&now)[EIGHTS]) {
#pragma unroll
                for (u32 chunk = 0; chunk < 2; ++chunk) {
                    Words w;
                    FORMAT::unpack(raw[of], chunk, w);
#pragma unroll
                    for (u32 step = 0; step < 2; ++step) {
#pragma unroll
                        for (u32 eight = 0; eight < EIGHTS; ++eight) {
                            ::multiply<FORMAT>(sum[eight], step, w[step], now[eight].words[chunk]);
                        }
                    }
                }
            };
            const auto refill = [&] {
                __syncwarp();
                bring(slot);
                slot = slot + 1 == Of::COUNT ? 0 : slot + 1;
            };
            if constexpr (Of::BY_UNIT) {
                OfUnit now[PER][EIGHTS];
#pragma unroll
                for (u32 of = 0; of < PER; ++of) load_unit(now[of], of);
                refill();
                multiply_unit(0, now[0]);
                if (PER > 1 && i + 1 < count) multiply_unit(PER - 1, now[PER - 1]);
            } else {
                refill();
                OfUnit now[EIGHTS];
                load_unit(now, 0);
                multiply_unit(0, now);
                if (PER > 1 && i + 1 < count) load_unit(now, PER - 1), multiply_unit(PER - 1, now);
            }
        }
    }
};

// Sums of the segments of a tile. Of one entry there are two, so that those of a tile are written while those of the one before
// are read; those of more are written when all have read, eight entries after the other.
template <bool IS_ONE, u32 MATRICES> struct Sums {
    float of[2][MATRICES][SEGMENTS][16];

    DEVICE float sum(u32 turn, u32 matrix, u32, u32 row) const {
        float all = 0.0f;
#pragma unroll
        for (u32 segment = 0; segment < SEGMENTS; ++segment) all += of[turn % 2][matrix][segment][row];
        return all;
    }
    DEVICE void put(u32 turn, u32 matrix, u32 segment, const float (&sum)[4]) {
        float(&mine)[16] = of[turn % 2][matrix][segment];
        if (pair_of_lane() == 0) mine[group_of_lane()] = sum[0], mine[group_of_lane() + 8] = sum[2];
    }
};
template <u32 MATRICES> struct Sums<false, MATRICES> {
    float of[MATRICES][SEGMENTS][8][20]; // 16 rows, and what keeps lanes that write apart

    DEVICE float sum(u32, u32 matrix, u32 entry, u32 row) const {
        float all = 0.0f;
#pragma unroll
        for (u32 segment = 0; segment < SEGMENTS; ++segment) all += of[matrix][segment][entry][row];
        return all;
    }
    DEVICE void put(u32, u32 matrix, u32 segment, const float (&sum)[4]) {
        float(&mine)[8][20] = of[matrix][segment];
        const u32 row = group_of_lane(), entry = 2 * pair_of_lane();
        mine[entry][row] = sum[0], mine[entry + 1][row] = sum[1];
        mine[entry][row + 8] = sum[2], mine[entry + 1][row + 8] = sum[3];
    }
};

// Copies rows of activations into shared memory, `bytes` each from byte `begin` on.
DEVICE void copy_rows(const Job& job, const Piece& piece, u8* to, u32 bytes, u32 begin = 0) {
    for (u32 row = 0; row < piece.count; ++row) {
        const u8* from = job.staged_row(piece, row) + begin;
        for (u32 at = 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x) {
            copy_16_async(to + row * (bytes + BETWEEN_ROWS) + at, from + at);
        }
    }
}

// Dynamic shared memory: activations unless they come by unit, and a ring for every warp.
template <class FORMAT, bool GATED, u32 COUNT, Rows ROWS, u32 EIGHTS> DEVICE void ring(const Jobs<COUNT>& jobs) {
    typedef Feed<FORMAT, GATED, COUNT, ROWS, EIGHTS> Units;
    typedef Slot<FORMAT, ROWS, EIGHTS> Of;
    const Job& job = jobs.of[0]; // what is read is that of all
    constexpr u32 MATRICES = GATED ? 2 : 1;
    constexpr bool IS_ONE = ROWS == Rows::ONE;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Sums<IS_ONE, MATRICES> sums[RING_GROUPS];
    if ((job.neighbours & LATE) == 0) let_next_begin();
    if (!job.is_regular()) wait_for_inputs();
    Piece piece;
    job.piece<IS_ONE ? 1 : 8 * EIGHTS>(piece);
    const u32 group = warp_id() / SEGMENTS, segment = warp_id() % SEGMENTS;
    const u32 first = group * gridDim.x + blockIdx.x, stride = blockDim.x / THREADS * gridDim.x;
    const u32 row_bytes = job.units * 128, of_rows = IS_ONE ? row_bytes : Of::BY_UNIT ? 0 : piece.count * (row_bytes + BETWEEN_ROWS);
    u8* ring = shared + of_rows + warp_id() * (Of::COUNT * Of::BYTES);
    Units units(jobs, piece, segment, ring, first, stride);
#pragma unroll 1
    for (u32 slot = 0; slot < Of::BEFORE; ++slot) units.bring_weights(slot), copies_commit();
    const RowNorm norm(IS_ONE ? job.norm : nullptr, job.norm_threads, job.columns, job.norm_eps);
    if ((job.neighbours & BESIDE) == 0) wait_for_inputs();
    if ((job.neighbours & LATE) != 0) let_next_begin();
    float factor = 1.0f;
    if constexpr (IS_ONE) {
        const float* x_row = reinterpret_cast<const float*>(job.x) + u64(job.input(job.entry(piece, 0))) * job.x_stride;
        u32* const staged = reinterpret_cast<u32*>(shared);
        if (job.norm != nullptr) {
            factor = norm.stage<FORMAT::IS_BF16>(x_row, row_bytes / 2, staged, blockIdx.x == 0 ? job.normed : nullptr);
        } else {
            factor = stage_row<FORMAT::IS_BF16>(x_row, job.columns, row_bytes / 2, staged);
        }
    } else if constexpr (Of::BY_UNIT) {
        units.of_rows(job, piece);
#pragma unroll 1
        for (u32 slot = 0; slot < Of::BEFORE; ++slot) units.bring_inputs(slot), copies_commit();
    } else {
        copy_rows(job, piece, shared, row_bytes);
        copies_commit();
    }
#pragma unroll 1
    for (u32 slot = Of::BEFORE; slot < Of::COUNT; ++slot) units.bring(slot);
    if constexpr (ROWS == Rows::AT_ONCE) copies_wait<Of::COUNT - Of::BEFORE>();
    if constexpr (!Of::BY_UNIT) __syncthreads();
    // What this lane reads of every eight rows: where its chunks are. Columns beyond the last entry are computed like it, and
    // dropped.
    u32 chunks[EIGHTS][2];
#pragma unroll
    for (u32 eight = 0; eight < EIGHTS; ++eight) {
        const u32 row = IS_ONE ? 0 : min(8 * eight + group_of_lane(), piece.count - 1), pair = 16 * pair_of_lane();
        const u32 at = Of::BY_UNIT ? row * 128 : shared_address(shared) + units.begin * 128 + row * (row_bytes + BETWEEN_ROWS);
        const u32 swapped = Of::BY_UNIT ? row % 2 * 64 : 0;
        chunks[eight][0] = at + pair + swapped, chunks[eight][1] = at + pair + (64 - swapped);
    }
    const u32 tiles = jobs.tiles();
    u32 turn = 0;
    for (u32 tile = first; tile < tiles; tile += stride, ++turn) {
        // Another warp ends a tile of one entry each time, every warp an entry of eight. What it adds to comes while the sums
        // are made.
        const u32 at_row = lane_id() % 16;
        const auto number = [&](u32 eight) { return IS_ONE ? 0 : 8 * eight + segment; };
        const auto ends = [&](u32 eight) {
            return lane_id() < 16 && (IS_ONE ? segment == turn % SEGMENTS : number(eight) < piece.count);
        };
        Job::Ending endings[EIGHTS] = {};
        if constexpr (!GATED && COUNT == 1) {
#pragma unroll
            for (u32 eight = 0; eight < EIGHTS; ++eight) {
                if (!ends(eight) || tile * 16 + at_row >= job.rows) continue;
                endings[eight] = job.ending(job.entry(piece, number(eight)), tile * 16 + at_row);
            }
        }
        float sum[MATRICES][EIGHTS][4] = {};
#pragma unroll
        for (u32 matrix = 0; matrix < MATRICES; ++matrix) {
            units.multiply(sum[matrix], chunks, 0, units.count);
            if constexpr (IS_ONE) sums[group].put(turn, matrix, segment, sum[matrix][0]);
        }
#pragma unroll
        for (u32 eight = 0; eight < EIGHTS; ++eight) {
            if constexpr (!IS_ONE) {
                if (turn + eight > 0) group_barrier(group);
#pragma unroll
                for (u32 matrix = 0; matrix < MATRICES; ++matrix) sums[group].put(turn, matrix, segment, sum[matrix][eight]);
            }
            group_barrier(group);
            if (!ends(eight)) continue;
            float of[MATRICES];
#pragma unroll
            for (u32 matrix = 0; matrix < MATRICES; ++matrix) {
                of[matrix] = sums[group].sum(turn, matrix, segment, at_row);
                if constexpr (IS_ONE) of[matrix] *= factor;
            }
            const u32 entry = job.entry(piece, number(eight));
            jobs.with(tile, [&](const Job& job, u32 at) {
                const u32 out_row = at * 16 + at_row;
                if (out_row >= job.rows) return;
                if constexpr (GATED) job.finish_gated(entry, out_row, of[0], of[MATRICES - 1]);
                if constexpr (!GATED && COUNT == 1) job.finish(entry, out_row, of[0], endings[eight]);
                if constexpr (!GATED && COUNT > 1) job.finish(entry, out_row, of[0]);
            });
        }
    }
    // What comes next waits for this launch only.
    if ((job.neighbours & BESIDE) != 0) wait_for_inputs();
}
