// Products of one entry with matrices of 16 bits and less: the step of a single sequence, which is as fast as weights come.
//
// A block has groups of SEGMENTS warps, each with tiles of its own, and stays until all of them are done. A warp brings
// its segment of all its tiles, one unit after the other, through a ring in shared memory that belongs to it alone: the
// ring is filled before anything has to be waited for, and stays full from one tile to the next. Sums are those of `few`.
// Blocks ask for so much shared memory that a multiprocessor has room for one of them: as many as there are
// multiprocessors begin at once, and where the block of one launch ends, that of the next fills its ring.
#pragma once
#include "quant/row.cuh"
#include "quant/sums.cuh"

// Groups of a block at most, and bytes of the ring of a warp.
static constexpr u32 ONE_GROUPS = 2, ONE_THREADS = ONE_GROUPS * THREADS, RING_BYTES = 7168;

// Waits for the other warps of a group.
DEVICE void group_barrier(u32 group) { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(THREADS) : "memory"); }

// A warp's segment of all tiles of its group, in the order in which they are multiplied, and the ring they come through:
// PER units to a slot, then for each of them what it shares with others.
template <class FORMAT, bool GATED, u32 COUNT> struct Feed {
    static constexpr u32 UNIT = FORMAT::UNIT, SUPER = FORMAT::SUPER, PER = FORMAT::IS_PLAIN ? 1 : 2;
    static constexpr u32 UNITS = PER * UNIT, SLOT = PER * (UNIT + SUPER);
    static constexpr u32 SLOTS = RING_BYTES / SLOT > 2 ? RING_BYTES / SLOT : 2;
    static constexpr u32 BYTES = SLOTS * SLOT;
    // Slots that are filled before the activations are there. What is asked for then is ahead of these, which wait for it: a
    // third of the ring comes behind them.
    static constexpr u32 BEFORE = SLOTS - (SLOTS + 2) / 3;

    const Jobs<COUNT>& jobs;
    u64 tile_bytes, shared; // and bytes from the first unit of the segment to what units share
    const u8* from;         // this lane's piece of the unit that is brought next
    u32 ring, unit, begin, count, left; // `left` units of the tile
    u32 matrix, tile, stride, tiles;    // `tiles` that are left
    bool is_up;

    DEVICE Feed(const Jobs<COUNT>& jobs, const Piece& piece, u32 segment, u8* at, u32 first, u32 stride)
        : jobs(jobs), matrix(piece.matrix), tile(first), stride(stride) {
        const u32 units = jobs.of[0].units, all = jobs.tiles();
        begin = segment_begin(units, segment), count = segment_begin(units, segment + 1) - begin;
        tiles = first < all ? ceil_div(all - first, stride) : 0;
        tile_bytes = FORMAT::tile_bytes(units);
        shared = u64(units - begin) * UNIT;
        ring = shared_address(at) + 16 * lane_id();
        left = 0, is_up = false;
        if (count > 0 && tiles > 0) begin_run();
    }

    DEVICE void begin_run() {
        jobs.with(tile, [&](const Job& job, u32 at) {
            const u64 number = u64(matrix) * ceil_div(job.rows, 16u) + at;
            from = (GATED && is_up ? job.up : job.weight) + number * tile_bytes + begin * UNIT + 16 * lane_id();
        });
        unit = begin, left = count;
    }

    // Begins to copy the units of a slot, as many as there are.
    DEVICE void bring(u32 slot) {
        if (left > 0) {
            const u32 some = min(left, PER), lane = 16 * lane_id();
#pragma unroll
            for (u32 at = 0; at < SLOT; at += 512) {
                const u8* piece = from + at;
                bool is_there = at + lane < some * UNIT;
                if constexpr (SUPER > 0) {
                    // What units share comes behind them.
                    if (at + 512 > UNITS && at + lane >= UNITS) {
                        const u32 behind = at + lane - UNITS, of = behind / SUPER;
                        piece = from + (shared - (unit - begin) * UNIT + (unit + of) / 4 * SUPER + behind % SUPER - lane);
                        is_there = of < some;
                    }
                }
                if (is_there) copy_16_async(Shared{ring + slot * SLOT + at}, piece);
            }
            from += UNITS, unit += PER, left -= some;
            if (left == 0) end_run();
        }
        copies_commit();
    }

    DEVICE void end_run() {
        if (GATED) is_up = !is_up;
        if (!is_up) tile += stride, --tiles;
        if (tiles > 0) begin_run();
    }
};

// What a lane holds of the activations of a unit.
struct OfUnit {
    u32 words[2][4];

    DEVICE OfUnit(Shared at) {
#pragma unroll
        for (u32 chunk = 0; chunk < 2; ++chunk) {
            const uint4 four = load_16(at + chunk * 64);
            words[chunk][0] = four.x, words[chunk][1] = four.y, words[chunk][2] = four.z, words[chunk][3] = four.w;
        }
    }
};

// Dynamic shared memory: the activations, `units * 128` bytes, and a ring for every warp.
template <class FORMAT, bool GATED, u32 COUNT> DEVICE void one(const Jobs<COUNT>& jobs) {
    typedef Feed<FORMAT, GATED, COUNT> Units;
    const Job& job = jobs.of[0]; // what is read is that of all
    constexpr u32 MATRICES = GATED ? 2 : 1, PER = Units::PER;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ float parts[ONE_GROUPS][2][MATRICES][SEGMENTS][16];
    if ((job.neighbours & LATE) == 0) let_next_begin();
    if (!job.is_regular()) wait_for_inputs();
    Piece piece;
    job.piece<1>(piece);
    const u32 group = warp_id() / SEGMENTS, segment = warp_id() % SEGMENTS;
    const u32 first = group * gridDim.x + blockIdx.x, stride = blockDim.x / THREADS * gridDim.x;
    u8* ring = shared + job.units * 128 + warp_id() * Units::BYTES;
    Units units(jobs, piece, segment, ring, first, stride);
#pragma unroll 1
    for (u32 slot = 0; slot < Units::BEFORE; ++slot) units.bring(slot);
    const RowNorm norm(job.norm, job.norm_threads, job.columns, job.norm_eps);
    if ((job.neighbours & BESIDE) == 0) wait_for_inputs();
    if ((job.neighbours & LATE) != 0) let_next_begin();
    const u32 entry = job.entry(piece, 0);
    const float* x_row = reinterpret_cast<const float*>(job.x) + u64(job.input(entry)) * job.x_stride;
    u32* const staged = reinterpret_cast<u32*>(shared);
    float factor;
    if (job.norm != nullptr) {
        factor = norm.stage<FORMAT::IS_BF16>(x_row, job.units * 64, staged, blockIdx.x == 0 ? job.normed : nullptr);
    } else {
        factor = stage_row<FORMAT::IS_BF16>(x_row, job.columns, job.units * 64, staged);
    }
#pragma unroll 1
    for (u32 slot = Units::BEFORE; slot < Units::SLOTS; ++slot) units.bring(slot);
    __syncthreads();
    const Shared x{shared_address(shared) + units.begin * 128 + 16 * pair_of_lane()}, slots{shared_address(ring)};
    const u32 tiles = jobs.tiles();
    u32 slot = 0, turn = 0;
    for (u32 tile = first; tile < tiles; tile += stride, ++turn) {
        float(&part)[MATRICES][SEGMENTS][16] = parts[group][turn % 2];
        // Another warp ends a tile each time. What it adds to comes while the sums are made.
        const bool ends = segment == turn % SEGMENTS && lane_id() < 16;
        const u32 row = lane_id() % 16;
        Job::Ending ending = {};
        if constexpr (!GATED && COUNT == 1) {
            if (ends && tile * 16 + row < job.rows) ending = job.ending(entry, tile * 16 + row);
        }
#pragma unroll
        for (u32 matrix = 0; matrix < MATRICES; ++matrix) {
            float sum[4] = {};
            for (u32 i = 0; i < units.count; i += PER) {
                const Shared at = slots + slot * Units::SLOT, of_x = x + i * 128;
                typename FORMAT::Raw raw[PER];
                copies_wait<Units::SLOTS - 1>();
                __syncwarp();
#pragma unroll
                for (u32 of = 0; of < PER; ++of) {
                    FORMAT::load_copied(raw[of], at + of * FORMAT::UNIT, at + (Units::UNITS + of * FORMAT::SUPER));
                }
                __syncwarp();
                units.bring(slot);
                slot = slot + 1 == Units::SLOTS ? 0 : slot + 1;
#pragma unroll
                for (u32 of = 0; of < PER; ++of) {
                    if (of > 0 && i + of >= units.count) break;
                    const OfUnit now(of_x + of * 128);
#pragma unroll
                    for (u32 chunk = 0; chunk < 2; ++chunk) {
                        Words w;
                        FORMAT::unpack(raw[of], chunk, w);
#pragma unroll
                        for (u32 step = 0; step < 2; ++step) multiply<FORMAT>(sum, step, w[step], now.words[chunk]);
                    }
                }
            }
            float(&mine)[16] = part[matrix][segment];
            if (pair_of_lane() == 0) mine[group_of_lane()] = sum[0], mine[group_of_lane() + 8] = sum[2];
        }
        group_barrier(group);
        if (!ends) continue;
        float sums[MATRICES] = {};
#pragma unroll
        for (u32 matrix = 0; matrix < MATRICES; ++matrix) {
#pragma unroll
            for (u32 of = 0; of < SEGMENTS; ++of) sums[matrix] += part[matrix][of][row];
        }
        jobs.with(tile, [&](const Job& of, u32 at) {
            const u32 out_row = at * 16 + row;
            if (out_row >= of.rows) return;
            if constexpr (GATED) of.finish_gated(entry, out_row, sums[0] * factor, sums[MATRICES - 1] * factor);
            if constexpr (!GATED && COUNT == 1) of.finish(entry, out_row, sums[0] * factor, ending);
            if constexpr (!GATED && COUNT > 1) of.finish(entry, out_row, sums[0] * factor);
        });
    }
    // What comes next waits for this launch only.
    if ((job.neighbours & BESIDE) != 0) wait_for_inputs();
}
