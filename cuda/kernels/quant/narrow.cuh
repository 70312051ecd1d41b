// Products of some entries on GPUs of compute capability 9.0: too many for instructions of a warp (quant/ring.cuh), too few for
// activations to be brought again and again (quant/wide.cuh).
//
// A block of a cluster has a segment of all activations, and stays until all tiles of its cluster are done. Four warps multiply 64
// rows of weights at once, a tile each, which comes through a ring of its own and is unpacked into registers. What they have
// summed up goes to the blocks that end it, each a few entries, while the next tiles are under way. Sums are those of `many`.
//
// Of matrices of very few rows many entries are multiplied so, some by each of many clusters (the grid's second dimension).
#pragma once
#include "common/hopper.cuh"
#include "common/order.cuh"
#include "common/warp.cuh"
#include "quant/formats.cuh"
#include "quant/job.cuh"
#include "quant/sums.cuh"

#ifdef HAS_WARPGROUPS

// Warpgroups of a block at most, entries at most, bytes of the ring of a warp.
static constexpr u32 NARROW_GROUPS = 5, NARROW = 32, NARROW_RING = 4608;

// What a warp brings of its tiles, one after the other, through a ring in shared memory: units from `begin` to `end`, of formats of
// few bits two for each slot. Those two share what four do.
template <class FORMAT, u32 COUNT> struct Stream {
    static constexpr u32 AT_ONCE = FORMAT::UNIT <= 640 ? 2 : 1, UNITS = AT_ONCE * FORMAT::UNIT;
    static constexpr u32 BYTES = UNITS + FORMAT::SUPER, SLOTS = NARROW_RING / BYTES;
    static constexpr u32 PIECES = (BYTES + 511) / 512; // of 16 bytes for each lane
    static_assert(FORMAT::SUPER == 0 || 4 % AT_ONCE == 0);

    const Jobs<COUNT>& jobs;
    const bool is_up;      // of what is gated
    u32 begin, end, first; // a slot has units `first + i * AT_ONCE` and the one after it
    u32 ring;              // where this lane's first piece of the first slot is
    u32 slot;              // bytes to the slot that comes next
    // What is brought next: a unit of a tile; tiles that are left; this lane's first and last pieces.
    u32 unit, tile, stride, tiles;
    const u8* from;
    const u8* last;

    // Every `stride`th tile from `tile` on.
    DEVICE Stream(const Jobs<COUNT>& jobs, bool is_up, u32 begin, u32 end, u32 tile, u32 stride, u8* at)
        : jobs(jobs), is_up(is_up), begin(begin), end(end), ring(shared_address(at) + 16 * lane_id()), slot(0), tile(tile), stride(stride) {
        first = begin - (FORMAT::SUPER > 0 ? begin % AT_ONCE : 0);
        const u32 all = jobs.tiles();
        tiles = tile < all && begin < end ? ceil_div(all - tile, stride) : 0;
        if (tiles > 0) begin_tile();
        keep(ring);
    }

    // Where this lane's piece `i` of a slot is, and whether it is of a unit.
    DEVICE static u32 place(u32 i) { return 512 * i + 16 * lane_id(); }
    DEVICE static bool is_of_unit(u32 i) { return place(i) < UNITS; }

    DEVICE void begin_tile() {
        u32 at = tile;
        const Job& job = jobs.of_tile(at);
        const u8* const start = (is_up ? job.up : job.weight) + u64(at) * FORMAT::tile_bytes(job.units);
        from = start + first * FORMAT::UNIT + place(0);
        last = from + 512 * (PIECES - 1);
        if (!is_of_unit(PIECES - 1)) {
            last = start + u64(job.units) * FORMAT::UNIT + first / 4 * FORMAT::SUPER + (place(PIECES - 1) - UNITS);
        }
        unit = first;
    }

    // Whether this lane's piece `i` is wanted: of a unit that is there, or of what units share.
    DEVICE bool is_wanted(u32 i) const {
        if (place(i) >= UNITS) return place(i) < BYTES;
        const u32 of = unit + place(i) / FORMAT::UNIT;
        return AT_ONCE == 1 || (of < end && (FORMAT::SUPER == 0 || of >= begin));
    }

    // Begins to fill the next slot, if there is something left. Lanes of a warp have done with it.
    DEVICE void bring() {
        const bool is_left = tiles > 0;
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u8* const at = i + 1 == PIECES ? last : from + 512 * i;
            copy_16_async_if(is_left && is_wanted(i), Shared{ring + slot + 512 * i}, at);
        }
        copies_commit();
        slot = slot + BYTES == SLOTS * BYTES ? 0 : slot + BYTES;
        unit += AT_ONCE, from += UNITS;
        last += FORMAT::SUPER == 0 || is_of_unit(PIECES - 1) ? UNITS : unit % 4 == 0 ? FORMAT::SUPER : 0;
        if (unit < end || !is_left) return;
        tile += stride;
        if (--tiles > 0) begin_tile();
    }

    // Waits for the next slot, loads it and has it filled again.
    DEVICE void load(typename FORMAT::Raw (&raw)[AT_ONCE]) {
        copies_wait<SLOTS - 1>();
        __syncwarp();
        const Shared at{ring - 16 * lane_id() + slot};
#pragma unroll
        for (u32 of = 0; of < AT_ONCE; ++of) FORMAT::load_copied(raw[of], at + of * FORMAT::UNIT, at + UNITS);
        __syncwarp();
        bring();
    }
};

// Dynamic shared memory: the segment of the activations, unit after unit, in it as many eights of rows as there are; rings of the
// warps; sums of two turns that came from all blocks, [warpgroups][2][SEGMENTS][128][2] floats.
template <class FORMAT, bool GATED, u32 COUNT> struct Narrow {
    typedef Stream<FORMAT, COUNT> Units;
    static constexpr u32 AT_ONCE = Units::AT_ONCE;
    static constexpr u32 SUMS = NARROW / 2;     // of a thread
    static constexpr u32 TILES = GATED ? 2 : 4; // of a matrix that a warpgroup has at once
    static constexpr u32 OF_SEGMENT = 128 * 2, OF_TURN = SEGMENTS * OF_SEGMENT;
    static_assert(SUMS == 2 * SEGMENTS);

    struct Barriers {
        u64 inputs;
        // Sums of a turn are there for the block that ends them, or have been read by all: of every other turn.
        u64 told[NARROW_GROUPS][2], heard[NARROW_GROUPS][2];
        float factors[NARROW];
    };

    const Jobs<COUNT>& jobs;
    const Job& job; // what is read is that of all
    Barriers& barriers;
    u32 group, thread, tile_of_group; // of this thread; its warp's among the TILES
    bool is_up;
    u32 rank, begin, end;  // of the cluster; units
    u32 first, stride;     // tiles
    u32 first_entry, count, unit_bytes; // entries, and what a unit of their activations takes
    u32 unit_step;         // the same for descriptions of it
    u8* x;
    u8* ring;
    float* passed;

    DEVICE Narrow(const Jobs<COUNT>& jobs, Barriers& barriers, u8* shared)
        : jobs(jobs), job(jobs.of[0]), barriers(barriers), x(shared) {
        const u32 groups = blockDim.x / 128, clusters = gridDim.x / SEGMENTS, cluster = blockIdx.x / SEGMENTS;
        const u32 warp = warp_id_of_all();
        group = warp / 4, thread = threadIdx.x % 128;
        tile_of_group = warp % TILES, is_up = GATED && warp % 4 >= TILES;
        rank = rank_in_cluster(), begin = segment_begin(job.units, rank), end = segment_begin(job.units, rank + 1);
        first = (group * clusters + cluster) * TILES + tile_of_group, stride = groups * clusters * TILES;
        first_entry = blockIdx.y * NARROW, count = min(NARROW, job.entries - first_entry), unit_bytes = ceil_div(count, 8u) * 1024, unit_step = unit_bytes / 16;
        // All blocks have the same places.
        u8* const rings = x + ceil_div(job.units, SEGMENTS) * unit_bytes;
        constexpr u32 RING = Units::SLOTS * Units::BYTES;
        ring = rings + warp * RING;
        passed = reinterpret_cast<float*>(rings + 4 * groups * RING) + group * (2 * OF_TURN);
    }

    // Of a warp: activations.
    DEVICE void bring_inputs() const {
        const u8* const from = job.x + (u64(begin) * job.x_stride + first_entry) * 128;
        if (lane_id() == 0) barrier_expect(&barriers.inputs, (end - begin) * count * 128);
        __syncwarp();
        for (u32 unit = lane_id(); unit < end - begin; unit += 32) {
            copy_bulk(x + unit * unit_bytes, from + u64(unit) * job.x_stride * 128, count * 128, &barriers.inputs);
        }
        __syncwarp();
    }

    // A warpgroup: sums of its next 64 rows. A warp without a tile multiplies what is there.
    DEVICE void sum_up(float (&sums)[SUMS], Units& units) const {
#pragma unroll
        for (u32 i = 0; i < SUMS; ++i) sums[i] = 0.0f;
        u32 adds = 0, inputs = u32(rows_of_128(x)), at = units.first;
        Words w[2];
        const auto multiply_slot = [&](const typename FORMAT::Raw(&raw)[AT_ONCE]) {
#pragma unroll
            for (u32 of = 0; of < AT_ONCE; ++of) {
                const u32 unit = at + of;
                if (AT_ONCE > 1 && (unit >= units.end || (FORMAT::SUPER > 0 && unit < units.begin))) continue;
#pragma unroll
                for (u32 chunk = 0; chunk < 2; ++chunk) {
                    // What the last but one was multiplied with is free.
                    products_wait<1>();
                    FORMAT::unpack(raw[of], chunk, w[chunk]);
                    multiply<FORMAT>(sums, w[chunk], inputs + 4 * chunk, adds);
                    adds = 1;
                }
                inputs += unit_step;
            }
            at += AT_ONCE;
        };
        // By turns: values of 16 bits are multiplied where they were loaded to, and may still be when the next ones are loaded.
        typename FORMAT::Raw one[AT_ONCE], other[AT_ONCE];
#pragma unroll 1
        while (at < units.end) {
            units.load(one);
            multiply_slot(one);
            if (at >= units.end) break;
            units.load(other);
            multiply_slot(other);
        }
        products_wait<0>();
        hold(sums);
    }

    // Blocks that end something: each two a row of every eight entries.
    DEVICE u32 wanted() const { return 2 * ceil_div(count, 8u); }
    DEVICE u64* told(u32 turn) const { return &barriers.told[group][turn % 2]; }
    DEVICE u64* heard(u32 turn) const { return &barriers.heard[group][turn % 2]; }
    DEVICE u32 tile_of(u32 turn) const { return first + turn * stride; }

    // Sends the sums of eight entries with half of the rows of each tile to the block that ends them.
    DEVICE void send(const float (&sums)[SUMS], u32 turn) const {
        float* const to = passed + turn % 2 * OF_TURN + rank * OF_SEGMENT + thread * 2;
        // At first nobody has read anything.
        barrier_wait(heard(turn), (turn / 2 & 1) ^ 1);
#pragma unroll
        for (u32 block = 0; block < SEGMENTS; ++block) {
            if (block < wanted()) store_two_at(to, sums + 2 * block, told(turn), block);
        }
    }

    // Ends the sums of a turn that are for this block.
    DEVICE void end_turn(u32 turn) const {
        if (rank < wanted()) {
            if (thread == 0) barrier_expect(told(turn), OF_TURN * 4);
            if constexpr (GATED) end_gated(tile_of(turn), turn);
            if constexpr (!GATED) end_plain(tile_of(turn), turn);
        } else if (thread == 0) {
            barrier_arrive(told(turn));
        }
        __syncwarp();
        if (lane_id() < SEGMENTS) barrier_arrive_at(heard(turn), lane_id());
    }

    // What this thread ends: two entries of a row of its tile.
    DEVICE u32 entry() const { return rank / 2 * 8 + 2 * pair_of_lane(); }
    DEVICE u32 row() const { return group_of_lane() + rank % 2 * 8; }

    DEVICE void end_plain(u32 tile, u32 turn) const {
        const Job& job = jobs.of_tile(tile);
        const u32 out_row = tile * 16 + row();
        Job::Ending endings[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 of = min(entry() + i, count - 1);
            endings[i] = job.ending(first_entry + of, min(out_row, job.rows - 1), barriers.factors[of]);
        }
        barrier_wait(told(turn), turn / 2 & 1);
        const float* const from = passed + turn % 2 * OF_TURN + thread * 2;
        float sums[2] = {};
#pragma unroll
        for (u32 part = 0; part < SEGMENTS; ++part) {
            const float2 two = *reinterpret_cast<const float2*>(from + part * OF_SEGMENT);
            sums[0] += two.x, sums[1] += two.y;
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            if (entry() + i < count && out_row < job.rows) job.finish(first_entry + entry() + i, out_row, sums[i], endings[i]);
        }
    }

    // Warps that have a gate end the first of two entries, those that have what it gates the other.
    DEVICE void end_gated(u32 tile, u32 turn) const {
        barrier_wait(told(turn), turn / 2 & 1);
        const float* const from = passed + turn % 2 * OF_TURN + thread % 64 * 2 + is_up;
        float gate = 0.0f, up = 0.0f;
#pragma unroll
        for (u32 part = 0; part < SEGMENTS; ++part) gate += from[part * OF_SEGMENT], up += from[part * OF_SEGMENT + 128];
        const u32 of = entry() + is_up, out_row = tile * 16 + row();
        if (of < count && out_row < job.rows) job.finish_gated(first_entry + of, out_row, gate, up, barriers.factors[of]);
    }

    DEVICE void run() const {
        if (threadIdx.x < 2 * NARROW_GROUPS) {
            if (threadIdx.x == 0) barrier_init(&barriers.inputs, 1);
            barrier_init(&barriers.told[0][threadIdx.x], 1);
            barrier_init(&barriers.heard[0][threadIdx.x], SEGMENTS * 4);
            barriers_made();
        }
        __syncwarp();
        // That a block is there, before others write to it.
        cluster_arrive();
        if ((job.neighbours & LATE) == 0) let_next_begin();
        Units units(jobs, is_up, begin, end, first, stride, ring);
        // What is asked for first is ahead of the activations, which wait for it.
        constexpr u32 BEFORE = Units::SLOTS - (Units::SLOTS + 2) / 3;
#pragma unroll 1
        for (u32 i = 0; i < BEFORE; ++i) units.bring();
        if ((job.neighbours & BESIDE) == 0) wait_for_inputs();
        if ((job.neighbours & LATE) != 0) let_next_begin();
        if (warp_id() == 0) bring_inputs();
        if (threadIdx.x >= 32 && threadIdx.x < 32 + count) {
            barriers.factors[threadIdx.x - 32] = job.factor_of(first_entry + threadIdx.x - 32);
        }
#pragma unroll 1
        for (u32 i = BEFORE; i < Units::SLOTS; ++i) units.bring();
        __syncthreads();
        barrier_wait(&barriers.inputs, 0);
        cluster_wait();
        // All warps of a warpgroup take as many turns.
        const u32 rest = ceil_div(jobs.tiles(), TILES) * TILES - (first - tile_of_group);
        const u32 turns = i32(rest) > 0 ? ceil_div(rest, stride) : 0;
#pragma unroll 1
        for (u32 turn = 0; turn < turns; ++turn) {
            float sums[SUMS];
            sum_up(sums, units);
            send(sums, turn);
            // What all blocks have sent in the turn before has come meanwhile.
            if (turn > 0) end_turn(turn - 1);
        }
        if (turns > 0) end_turn(turns - 1);
        // Nobody leaves before the others have what was sent.
        cluster_sync();
        // What comes next waits for this launch only.
        if ((job.neighbours & BESIDE) != 0) wait_for_inputs();
    }
};

template <class FORMAT, bool GATED, u32 COUNT> DEVICE void narrow(const Jobs<COUNT>& jobs) {
    typedef Narrow<FORMAT, GATED, COUNT> Of;
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ typename Of::Barriers barriers;
    Of(jobs, barriers, shared).run();
}

#define NARROW_KERNEL(name, ...)                                                                              \
    KERNEL __cluster_dims__(SEGMENTS, 1, 1) __launch_bounds__(128 * NARROW_GROUPS, 1) name(__VA_ARGS__ jobs)
#define NARROW_PRODUCTS(name, FORMAT)                                                                                         \
    NARROW_KERNEL(narrow_32_##name, const __grid_constant__ Jobs<1>) { narrow<FORMAT, false>(jobs); }                          \
    NARROW_KERNEL(gated_narrow_32_##name, const __grid_constant__ Jobs<1>) { narrow<FORMAT, true>(jobs); }                     \
    NARROW_KERNEL(beside_narrow_32_##name, const __grid_constant__ Jobs<BESIDE_AT_ONCE>) { narrow<FORMAT, false>(jobs); }

#else
#define NARROW_PRODUCTS(name, FORMAT)
#endif
