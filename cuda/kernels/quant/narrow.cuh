// Products of some entries on GPUs of compute capability 9.0: too many for instructions of a warp (quant/ring.cuh), too few for
// activations to be brought again and again (quant/wide.cuh).
//
// A block of a cluster has a segment of all activations, and stays until all tiles of its cluster are done. Four warps multiply 64
// rows of weights at once, a tile each, which comes through a ring of its own and is unpacked into registers. What they have
// summed up goes to the blocks that end it, each a few entries, while the next tiles are under way. Sums are those of `many`.
// There are kernels for up to 32 entries, and for up to 64: those keep the sums of one turn only, which end halfway through the next.
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

// Warpgroups of a block that has so many entries at most; bytes of the ring of a warp.
template <u32 ENTRIES> static constexpr u32 NARROW_GROUPS = ENTRIES == 32 ? 5 : 4;
static constexpr u32 NARROW_RING = 4608;

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

// Up to ENTRIES: 32, or 64 of what is not gated. Dynamic shared memory: the segment of the activations, unit after unit, in it as
// many eights of rows as there are; rings of the warps; sums of the turns that there is room for, which came from all blocks,
// [warpgroups][TURNS][SEGMENTS][128][EACH] floats.
template <class FORMAT, u32 ENTRIES, bool GATED, u32 COUNT> struct Narrow {
    typedef Stream<FORMAT, COUNT> Units;
    static constexpr u32 AT_ONCE = Units::AT_ONCE, GROUPS = NARROW_GROUPS<ENTRIES>;
    static constexpr u32 SUMS = ENTRIES / 2;            // of a thread
    static constexpr u32 TILES = GATED ? 2 : 4;         // of a matrix that a warpgroup has at once
    static constexpr u32 EACH = SUMS / SEGMENTS;        // sums of a thread that go to one block: of both rows it has, or of one
    static constexpr u32 TURNS = ENTRIES == 32 ? 2 : 1; // whose sums there is room for at once
    static constexpr u32 OF_SEGMENT = 128 * EACH, OF_TURN = SEGMENTS * OF_SEGMENT;
    static_assert(EACH == 2 || EACH == 4);

    struct Barriers {
        u64 inputs;
        // Sums of a turn are there for the block that ends them, or have been read by all: of every TURNSth turn.
        u64 told[GROUPS][TURNS], heard[GROUPS][TURNS];
        float factors[ENTRIES];
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
        first_entry = blockIdx.y * ENTRIES, count = min(ENTRIES, job.entries - first_entry);
        unit_bytes = ceil_div(count, 8u) * 1024, unit_step = unit_bytes / 16;
        // All blocks have the same places.
        u8* const rings = x + ceil_div(job.units, SEGMENTS) * unit_bytes;
        constexpr u32 RING = Units::SLOTS * Units::BYTES;
        ring = rings + warp * RING;
        passed = reinterpret_cast<float*>(rings + 4 * groups * RING) + group * (TURNS * OF_TURN);
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

    // A warpgroup: sums of its next 64 rows. A warp without a tile multiplies what is there. `between` is done
    // halfway, if there is room for the sums of one turn.
    template <typename Between> DEVICE void sum_up(float (&sums)[SUMS], Units& units, const Between& between) const {
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
        const u32 halfway = (units.begin + units.end) / 2;
        bool is_first_half = TURNS == 1;
#pragma unroll 1
        while (true) {
            if (is_first_half && at >= halfway) between(), is_first_half = false;
            if (at >= units.end) break;
            units.load(one);
            multiply_slot(one);
            if (at >= units.end) continue;
            units.load(other);
            multiply_slot(other);
        }
        products_wait<0>();
        hold(sums);
    }

    // Blocks that end something: each eight entries, or two blocks a row of a tile each of these.
    DEVICE u32 wanted() const { return 4 / EACH * ceil_div(count, 8u); }
    DEVICE u64* told(u32 turn) const { return &barriers.told[group][turn % TURNS]; }
    DEVICE u64* heard(u32 turn) const { return &barriers.heard[group][turn % TURNS]; }
    DEVICE float* passed_in(u32 turn) const { return passed + turn % TURNS * OF_TURN; }
    DEVICE static u32 parity(u32 turn) { return turn / TURNS & 1; }
    DEVICE u32 tile_of(u32 turn) const { return first + turn * stride; }

    // Sends the sums of eight entries with the rows of each tile, or half of them, to the block that ends them.
    DEVICE void send(const float (&sums)[SUMS], u32 turn) const {
        float* const to = passed_in(turn) + rank * OF_SEGMENT + thread * EACH;
        // At first nobody has read anything.
        barrier_wait(heard(turn), parity(turn) ^ 1);
#pragma unroll
        for (u32 block = 0; block < SEGMENTS; ++block) {
            if (block >= wanted()) continue;
            if constexpr (EACH == 2) store_two_at(to, sums + 2 * block, told(turn), block);
            if constexpr (EACH == 4) store_four_at(to, sums + 4 * block, told(turn), block);
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

    // What this thread ends: two entries of a row of its tile, or of both it has sums of.
    DEVICE u32 entry() const { return rank * EACH / 4 * 8 + 2 * pair_of_lane(); }
    DEVICE u32 row(u32 i) const { return group_of_lane() + 8 * (EACH == 2 ? rank % 2 : i / 2); }

    DEVICE void end_plain(u32 tile, u32 turn) const {
        const Job& job = jobs.of_tile(tile);
        Job::Ending endings[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 of = min(entry() + i % 2, count - 1);
            endings[i] = job.ending(first_entry + of, min(tile * 16 + row(i), job.rows - 1), barriers.factors[of]);
        }
        barrier_wait(told(turn), parity(turn));
        const float* const from = passed_in(turn) + thread * EACH;
        float sums[EACH] = {};
#pragma unroll
        for (u32 part = 0; part < SEGMENTS; ++part) {
#pragma unroll
            for (u32 i = 0; i < EACH; i += 2) {
                const float2 two = *reinterpret_cast<const float2*>(from + part * OF_SEGMENT + i);
                sums[i] += two.x, sums[i + 1] += two.y;
            }
        }
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 of = entry() + i % 2, out_row = tile * 16 + row(i);
            if (of < count && out_row < job.rows) job.finish(first_entry + of, out_row, sums[i], endings[i]);
        }
    }

    // Warps that have a gate end the first of two entries, those that have what it gates the other.
    DEVICE void end_gated(u32 tile, u32 turn) const {
        static_assert(!GATED || EACH == 2);
        barrier_wait(told(turn), parity(turn));
        const float* const from = passed_in(turn) + thread % 64 * 2 + is_up;
        float gate = 0.0f, up = 0.0f;
#pragma unroll
        for (u32 part = 0; part < SEGMENTS; ++part) gate += from[part * OF_SEGMENT], up += from[part * OF_SEGMENT + 128];
        const u32 of = entry() + is_up, out_row = tile * 16 + row(0);
        if (of < count && out_row < job.rows) job.finish_gated(first_entry + of, out_row, gate, up, barriers.factors[of]);
    }

    DEVICE void run() const {
        if (threadIdx.x < TURNS * GROUPS) {
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
            // What all blocks have sent in the turn before has come meanwhile. Where there is room for the sums of one turn only,
            // they are ended before others are there.
            sum_up(sums, units, [&] {
                if (turn > 0) end_turn(turn - 1);
            });
            send(sums, turn);
            if (TURNS == 2 && turn > 0) end_turn(turn - 1);
        }
        if (turns > 0) end_turn(turns - 1);
        // Nobody leaves before the others have what was sent.
        cluster_sync();
        // What comes next waits for this launch only.
        if ((job.neighbours & BESIDE) != 0) wait_for_inputs();
    }
};

template <class FORMAT, u32 ENTRIES, bool GATED, u32 COUNT> DEVICE void narrow(const Jobs<COUNT>& jobs) {
    typedef Narrow<FORMAT, ENTRIES, GATED, COUNT> Of;
    extern __shared__ __align__(1024) u8 shared[];
    __shared__ typename Of::Barriers barriers;
    Of(jobs, barriers, shared).run();
}

#define NARROW_KERNEL(name, FORMAT, ENTRIES, GATED, COUNT)                                                    \
    KERNEL __cluster_dims__(SEGMENTS, 1, 1) __launch_bounds__(128 * NARROW_GROUPS<ENTRIES>, 1)                \
        name(const __grid_constant__ Jobs<COUNT> jobs) { narrow<FORMAT, ENTRIES, GATED>(jobs); }
#define NARROW_PRODUCTS(name, FORMAT)                                                                         \
    NARROW_KERNEL(narrow_32_##name, FORMAT, 32, false, 1)                                                     \
    NARROW_KERNEL(gated_narrow_32_##name, FORMAT, 32, true, 1)                                                \
    NARROW_KERNEL(beside_narrow_32_##name, FORMAT, 32, false, BESIDE_AT_ONCE)                                 \
    NARROW_KERNEL(narrow_64_##name, FORMAT, 64, false, 1)                                                     \
    NARROW_KERNEL(beside_narrow_64_##name, FORMAT, 64, false, BESIDE_AT_ONCE)

#else
#define NARROW_PRODUCTS(name, FORMAT)
#endif
