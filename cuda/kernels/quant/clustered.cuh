// Products of some entries: too many for a block to keep all of their activations (quant/ring.cuh), too few to be busy with.
//
// A block of a cluster has a segment of all activations, and stays until all tiles of its cluster are done. A warp goes
// through a tile each turn, whose weights come through a ring of its own as those of quant/ring.cuh do. What it has summed
// up goes to the block of the cluster that ends the tile, in whose shared memory the segments are added in their order
// while the next turn is under way. Sums are those of `few`.
#pragma once
#include "common/cluster.cuh"
#include "quant/ring.cuh"

#ifdef HAS_CLUSTERS
#define ROW_OF_SEGMENTS __cluster_dims__(8, 1, 1)
#else
#define ROW_OF_SEGMENTS
#endif

// Up to 8 EIGHTS entries. Dynamic shared memory for each group: sums that came, [SEGMENTS][8 EIGHTS][20] floats, and as many
// that go; then the segment of the activations, and a ring for every warp.
template <class FORMAT, bool GATED, u32 COUNT, u32 EIGHTS> DEVICE void clustered(const Jobs<COUNT>& jobs) {
#ifdef HAS_CLUSTERS
    typedef Feed<FORMAT, GATED, COUNT, Rows::SEGMENT, EIGHTS> Units;
    typedef Slot<FORMAT, Rows::SEGMENT, EIGHTS> Of;
    const Job& job = jobs.of[0]; // what is read is that of all
    constexpr u32 MATRICES = GATED ? 2 : 1, SHARES = 8 * EIGHTS * 16 / THREADS;
    // By entry 16 rows, and what keeps lanes that write apart.
    typedef float Part[8 * EIGHTS][20];
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 came[RING_GROUPS];
    if (threadIdx.x < RING_GROUPS) barrier_init(&came[threadIdx.x], 1), barriers_made();
    // That a block is there, before others write to it.
    cluster_arrive();
    if ((job.neighbours & LATE) == 0) let_next_begin();
    Piece piece;
    job.piece<8 * EIGHTS>(piece, 0);
    const u32 segment = rank_in_cluster(), clusters = gridDim.x / SEGMENTS, cluster = blockIdx.x / SEGMENTS;
    const u32 groups = blockDim.x / THREADS, warp = warp_id_of_all(), group = warp / SEGMENTS;
    // The tiles of a warp: every `stride`th.
    const u32 stride = groups * SEGMENTS * clusters, first = warp * clusters + cluster, tiles = jobs.tiles();
    const u32 turns = ceil_div(tiles - cluster, stride) * MATRICES; // there is a tile at least
    Part* const parts = reinterpret_cast<Part*>(shared) + group * SEGMENTS;
    Part& mine = reinterpret_cast<Part*>(shared)[groups * SEGMENTS + warp];
    u8* const x = shared + 2 * groups * SEGMENTS * sizeof(Part);
    u8* const rings = x + piece.count * (ceil_div(job.units, SEGMENTS) * 128 + BETWEEN_ROWS);
    Units units(jobs, piece, segment, rings + warp * (Of::COUNT * Of::BYTES), first, stride);
#pragma unroll 1
    for (u32 slot = 0; slot < Of::BEFORE; ++slot) units.bring_weights(units.slot(slot)), copies_commit();
    if ((job.neighbours & BESIDE) == 0) wait_for_inputs();
    if ((job.neighbours & LATE) != 0) let_next_begin();
    copy_rows(job, piece, x, units.count * 128, units.begin * 128);
    copies_commit();
#pragma unroll 1
    for (u32 slot = Of::BEFORE; slot < Of::COUNT; ++slot) units.bring(units.slot(slot));
    // A group of this block ends the tile of one of its warps, a thread SHARES entries of a row.
    const u32 row = threadIdx.x % 16;
    const auto tile_ended = [&](u32 turn) {
        return (group * SEGMENTS + segment) * clusters + cluster + turn / MATRICES * stride;
    };
    const auto number = [&](u32 share) { return threadIdx.x % THREADS / 16 + share * (THREADS / 16); };
    float factors[SHARES], gates[SHARES] = {};
#pragma unroll
    for (u32 share = 0; share < SHARES; ++share) {
        factors[share] = job.factor_of(job.entry(piece, min(number(share), piece.count - 1)));
    }
    copies_wait<Of::COUNT - Of::BEFORE>();
    __syncthreads();
    // Columns beyond the last entry are computed like it, and dropped.
    u32 chunks[EIGHTS][2];
#pragma unroll
    for (u32 eight = 0; eight < EIGHTS; ++eight) {
        const u32 row = min(8 * eight + group_of_lane(), piece.count - 1);
        chunks[eight][0] = shared_address(x) + row * (units.count * 128 + BETWEEN_ROWS) + 16 * pair_of_lane();
        chunks[eight][1] = chunks[eight][0] + 64;
    }
    const u32 bytes = piece.count * u32(sizeof(mine[0]));
    // Ends the tile of a turn when the sums of all segments have come, those of the gate or of what it gates.
    const auto end = [&](u32 turn) {
        const u32 tile = tile_ended(turn);
        if (tile >= tiles) return;
        if (threadIdx.x % THREADS == 0) barrier_expect(&came[group], SEGMENTS * bytes);
        const bool is_last = turn % MATRICES + 1 == MATRICES;
        Job::Ending endings[SHARES] = {};
        if (!GATED) {
            jobs.with(tile, [&](const Job& job, u32 at) {
#pragma unroll
                for (u32 share = 0; share < SHARES; ++share) {
                    if (at * 16 + row >= job.rows || number(share) >= piece.count) continue;
                    endings[share] = job.ending(job.entry(piece, number(share)), at * 16 + row, factors[share]);
                }
            });
        }
        barrier_wait(&came[group], turn % 2);
        float sums[SHARES] = {};
#pragma unroll
        for (u32 from = 0; from < SEGMENTS; ++from) {
#pragma unroll
            for (u32 share = 0; share < SHARES; ++share) sums[share] += parts[from][number(share)][row];
        }
        jobs.with(tile, [&](const Job& job, u32 at) {
#pragma unroll
            for (u32 share = 0; share < SHARES; ++share) {
                const u32 entry = job.entry(piece, number(share)), out_row = at * 16 + row;
                if (out_row >= job.rows || number(share) >= piece.count) continue;
                if constexpr (GATED) {
                    if (is_last) job.finish_gated(entry, out_row, gates[share], sums[share], factors[share]);
                    gates[share] = sums[share];
                } else {
                    job.finish(entry, out_row, sums[share], endings[share]);
                }
            }
        });
    };
#pragma unroll 1
    for (u32 turn = 0; turn < turns; ++turn) {
        const bool has_tile = first + turn / MATRICES * stride < tiles;
        const u32 ahead = min(Of::PER, units.count);
        float sum[EIGHTS][4] = {};
        if (has_tile) units.multiply(sum, chunks, 0, ahead);
        if (turn > 0) end(turn - 1), cluster_arrive();
        if (has_tile) units.multiply(sum, chunks, ahead, units.count);
        // All have read what came in the turn before: there is room for more, and what went has gone.
        cluster_wait();
        if (has_tile) {
            const u32 row = group_of_lane(), entry = 2 * pair_of_lane();
#pragma unroll
            for (u32 eight = 0; eight < EIGHTS; ++eight) {
                mine[8 * eight + entry][row] = sum[eight][0], mine[8 * eight + entry + 1][row] = sum[eight][1];
                mine[8 * eight + entry][row + 8] = sum[eight][2], mine[8 * eight + entry + 1][row + 8] = sum[eight][3];
            }
            const u32 to = warp % SEGMENTS;
            if (to != segment) written_for_engines();
            __syncwarp();
            if (to != segment) {
                if (lane_id() == 0) copy_to_block(parts[segment], mine, bytes, &came[group], to);
            } else {
                // Its own without the copy engine: memcheck takes a copy from a block to itself for an error.
                float* const own = &parts[segment][0][0];
                const float* const from = &mine[0][0];
                for (u32 i = 4 * lane_id(); i < bytes / 4; i += 4 * 32) store_four_at(own + i, from + i, &came[group], to);
            }
        }
    }
    end(turns - 1);
    // All copies from here have come.
    cluster_arrive();
    cluster_wait();
    // What comes next waits for this launch only.
    if ((job.neighbours & BESIDE) != 0) wait_for_inputs();
#endif
}
