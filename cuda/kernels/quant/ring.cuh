// Products of a few entries with matrices of 16 bits and less: steps of a few sequences, which are as fast as weights come.
//
// A block has groups of SEGMENTS warps, each with tiles of its own, and stays until all of them are done. A warp brings
// its segment of all its tiles, one unit after the other, through a ring in shared memory that belongs to it alone: the
// ring is filled before anything has to be waited for, and stays full from one tile to the next. Sums are those of `few`.
// Blocks ask for so much shared memory that a multiprocessor has room for one of them: as many as there are
// multiprocessors begin at once, and where the block of one launch ends, that of the next fills its ring.
#pragma once
#include "quant/feed.cuh"
#include "quant/row.cuh"

// Groups of a block at most.
static constexpr u32 RING_GROUPS = 2, RING_THREADS = RING_GROUPS * THREADS;
// Bytes between rows of activations that have been copied at once, besides their own: lanes then read from different banks.
static constexpr u32 BETWEEN_ROWS = 64;

// Waits for the other warps of a group.
DEVICE void group_barrier(u32 group) { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(THREADS) : "memory"); }

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

// Block `block` of `blocks` that share the tiles. Dynamic shared memory: activations unless they come by unit, and a ring for
// every warp.
template <class FORMAT, bool GATED, u32 COUNT, Rows ROWS, u32 EIGHTS>
DEVICE void ring(const Jobs<COUNT>& jobs, u32 block = blockIdx.x, u32 blocks = gridDim.x) {
    typedef Slot<FORMAT, ROWS, EIGHTS> Of;
    constexpr bool IS_PAIRED = GATED && Of::PER == 2 && !Of::BY_UNIT;
    typedef Feed<FORMAT, GATED, COUNT, ROWS, EIGHTS, IS_PAIRED> Units;
    const Job& job = jobs.of[0]; // what is read is that of all
    constexpr u32 MATRICES = GATED ? 2 : 1;
    constexpr bool IS_ONE = ROWS == Rows::ONE;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Sums<IS_ONE, MATRICES> sums[RING_GROUPS];
    if ((job.neighbours & LATE) == 0) let_next_begin();
    if (!job.is_regular()) wait_for_inputs();
    Piece piece;
    job.piece<IS_ONE ? 1 : 8 * EIGHTS>(piece);
    const u32 warp = warp_id_of_all(), group = warp / SEGMENTS, segment = warp % SEGMENTS;
    const u32 first = group * blocks + block, stride = blockDim.x / THREADS * blocks;
    const u32 row_bytes = job.units * 128, of_rows = IS_ONE ? row_bytes : Of::BY_UNIT ? 0 : piece.count * (row_bytes + BETWEEN_ROWS);
    u8* ring = shared + of_rows + warp_id() * (Of::COUNT * Of::BYTES);
    Units units(jobs, piece, segment, ring, first, stride);
    const RowNorm norm(IS_ONE ? job.norm : nullptr, job.norm_threads, job.columns, job.norm_eps);
#pragma unroll 1
    for (u32 slot = 0; slot < Of::BEFORE; ++slot) units.bring_weights(units.slot(slot)), copies_commit();
    if ((job.neighbours & BESIDE) == 0) wait_for_inputs();
    if ((job.neighbours & LATE) != 0) let_next_begin();
    // The rest of the ring comes behind a row that has been asked for, while that is on its way.
    const auto bring_rest = [&] {
#pragma unroll 1
        for (u32 slot = Of::BEFORE; slot < Of::COUNT; ++slot) units.bring(units.slot(slot));
    };
    float factor = 1.0f;
    if constexpr (IS_ONE) {
        const float* x_row = reinterpret_cast<const float*>(job.x) + u64(job.input(job.entry(piece, 0))) * job.x_stride;
        u32* const staged = reinterpret_cast<u32*>(shared);
        if (job.norm != nullptr) {
            factor = norm.stage<FORMAT::IS_BF16>(x_row, row_bytes / 2, staged, block == 0 ? job.normed : nullptr, bring_rest);
        } else {
            factor = stage_row<FORMAT::IS_BF16>(x_row, job.columns, row_bytes / 2, staged, bring_rest);
        }
    } else if constexpr (Of::BY_UNIT) {
        units.of_rows(job, piece);
#pragma unroll 1
        for (u32 slot = 0; slot < Of::BEFORE; ++slot) units.bring_inputs(units.slot(slot)), copies_commit();
    } else {
        copy_rows(job, piece, shared, row_bytes);
        copies_commit();
    }
    if constexpr (!IS_ONE) bring_rest();
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
        if constexpr (IS_PAIRED) units.multiply(sum, chunks);
#pragma unroll
        for (u32 matrix = 0; matrix < MATRICES; ++matrix) {
            if constexpr (!IS_PAIRED) units.multiply(sum[matrix], chunks, 0, units.count);
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
