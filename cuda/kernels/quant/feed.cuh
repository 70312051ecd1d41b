// The weights of a warp: which come next, and the ring in shared memory they come through (quant/ring.cuh,
// quant/clustered.cuh).
#pragma once
#include "common/copy.cuh"
#include "common/warp.cuh"
#include "quant/sums.cuh"

// How a block gets activations: one row of f32 that it rounds itself; all rows in 16 bits, at once; these unit by unit
// with the weights, where there are too many of them, or no more than a tile for each group; or a segment of them
// (quant/clustered.cuh).
enum class Rows : u32 { ONE, AT_ONCE, BY_UNIT, SEGMENT };

// Bytes of the ring of a warp: for one entry or eight, for one with units of less than 1 KiB, whose bytes are waited for less than the
// row that is asked for behind them, for 16, with activations in it, of a block with a segment.
static constexpr u32 RING_BYTES = 7168, RING_BYTES_OF_SMALL = 5440, RING_BYTES_OF_16 = 4608, RING_BYTES_BY_UNIT = 12800, RING_BYTES_OF_SEGMENT = 4608;

// A slot of a ring: PER units, for each of them what it shares with others, then activations of up to 8 EIGHTS entries. Two
// units, if there are three such slots then.
template <class FORMAT, Rows ROWS, u32 EIGHTS> struct Slot {
    static constexpr bool BY_UNIT = ROWS == Rows::BY_UNIT;
    static constexpr u32 OF_INPUTS = EIGHTS * 8 * 128, EACH = FORMAT::UNIT + FORMAT::SUPER + (BY_UNIT ? OF_INPUTS : 0);
    static constexpr u32 OF_WARP = BY_UNIT                            ? RING_BYTES_BY_UNIT
                                   : ROWS == Rows::SEGMENT            ? RING_BYTES_OF_SEGMENT
                                   : EIGHTS > 1                       ? RING_BYTES_OF_16
                                   : ROWS == Rows::ONE && EACH < 1024 ? RING_BYTES_OF_SMALL
                                                                      : RING_BYTES;
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

// Adds the products of a unit with eight entries each.
template <class FORMAT, u32 EIGHTS>
DEVICE void multiply_chunk(float (&sum)[EIGHTS][4], const typename FORMAT::Raw& raw, u32 chunk, const OfUnit (&x)[EIGHTS]) {
    Words w;
    FORMAT::unpack(raw, chunk, w);
#pragma unroll
    for (u32 step = 0; step < 2; ++step) {
#pragma unroll
        for (u32 eight = 0; eight < EIGHTS; ++eight) multiply<FORMAT>(sum[eight], step, w[step], x[eight].words[chunk]);
    }
}

// The ring of a warp: what it brings of a segment, slot after slot.
template <class FORMAT, Rows ROWS, u32 EIGHTS> struct Ring {
    typedef Slot<FORMAT, ROWS, EIGHTS> Of;
    static constexpr u32 UNIT = FORMAT::UNIT, SUPER = FORMAT::SUPER, PER = Of::PER;
    typedef typename FORMAT::Raw Raws[PER];

    u32 ring;         // where this lane's pieces of the first slot are
    u32 next_slot;    // and those of the slot that is multiplied next
    u32 begin, count; // units of the segment

    DEVICE Ring(u32 units, u32 segment, u8* at) : ring(shared_address(at) + 16 * lane_id()), next_slot(ring) {
        begin = segment_begin(units, segment), count = segment_begin(units, segment + 1) - begin;
    }

    // Where this lane's pieces of a slot are.
    DEVICE u32 slot(u32 number) const { return ring + number * Of::BYTES; }

    // Waits for the slot that is multiplied next, and loads its weights. Returns where it is.
    DEVICE u32 load(Raws& raw) const {
        const u32 from = next_slot - 16 * lane_id();
        copies_wait<Of::COUNT - 1>();
        __syncwarp();
#pragma unroll
        for (u32 of = 0; of < PER; ++of) {
            FORMAT::load_copied(raw[of], Shared{from + of * UNIT}, Shared{from + Of::UNITS + of * SUPER});
        }
        return from;
    }

    // Loads activations from `at` on: `chunks` says where this lane finds what it reads of every eight rows.
    DEVICE static void load_inputs(OfUnit (&x)[EIGHTS], const u32 (&chunks)[EIGHTS][2], u32 at) {
#pragma unroll
        for (u32 eight = 0; eight < EIGHTS; ++eight) x[eight] = OfUnit(Shared{at + chunks[eight][0]}, Shared{at + chunks[eight][1]});
    }

    // `bring`s what comes next into the slot that has been loaded, and goes on to the next.
    template <typename Bring> DEVICE void refill(Bring bring) {
        __syncwarp();
        bring(next_slot);
        next_slot = next_slot == slot(Of::COUNT - 1) ? ring : next_slot + Of::BYTES;
    }
};

// A warp's segment of all tiles of its group, in the order in which they are multiplied, and the ring they come through.
// Those of a gate and of what it gates come one after the other, unless they are PAIRED.
template <class FORMAT, bool GATED, u32 COUNT, Rows ROWS, u32 EIGHTS, bool PAIRED = false>
struct Feed : Ring<FORMAT, ROWS, EIGHTS> {
    typedef Ring<FORMAT, ROWS, EIGHTS> Base;
    typedef typename Base::Of Of;
    using Base::begin, Base::count;
    static constexpr u32 UNIT = Base::UNIT, SUPER = Base::SUPER, PER = Base::PER, OF_LANE = 2 * EIGHTS;
    // Bytes of a slot before the last that its lanes copy at once; what units share is among these.
    static constexpr u32 LAST = (Of::INPUTS - 1) / 512 * 512;
    static_assert(LAST <= Of::UNITS);

    const Jobs<COUNT>& jobs;
    u64 tile_bytes, shared; // and bytes from the first unit of a tile to what units share
    const u8* from;         // this lane's piece of the unit that is brought next
    const u8* last;         // and its last piece, as the first unit of the tile would have it
    u32 of_last;            // which unit of a slot that is of, or more
    u32 unit, left;         // `left` units of the tile
    u32 matrix, tile, stride, tiles; // `tiles` that are left
    bool is_up;
    // Of activations that come by unit: this lane's pieces of rows, which are null where there is none; the next unit, and
    // how often units are gone through from the first.
    const u8* of_row[OF_LANE];
    u32 next, turns;

    DEVICE Feed(const Jobs<COUNT>& jobs, const Piece& piece, u32 segment, u8* at, u32 first, u32 stride)
        : Base(jobs.of[0].units, segment, at), jobs(jobs), matrix(piece.matrix), tile(first), stride(stride) {
        const u32 units = jobs.of[0].units, all = jobs.tiles();
        tiles = first < all ? ceil_div(all - first, stride) : 0;
        tile_bytes = FORMAT::tile_bytes(units);
        shared = u64(units) * UNIT;
        of_last = is_shared() ? (last_place() - Of::UNITS) / max(SUPER, 1u) : last_place() / UNIT;
        if (last_place() >= Of::INPUTS) of_last = ~0u;
        left = 0, is_up = false;
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
            const u8* of_tile = (GATED && is_up ? job.up : job.weight) + number * tile_bytes;
            from = of_tile + begin * UNIT + 16 * lane_id();
            // What units share comes behind them.
            last = is_shared() ? of_tile + shared + (last_place() - Of::UNITS) % max(SUPER, 1u) : from + LAST;
        });
        unit = begin, left = count;
    }

    // Where this lane's last piece is in a slot, and whether it is of what units share.
    DEVICE static u32 last_place() { return LAST + 16 * lane_id(); }
    DEVICE static bool is_shared() { return SUPER > 0 && last_place() >= Of::UNITS; }

    // Begins to copy the units of a slot, as many as there are.
    DEVICE void bring_weights(u32 to) {
#pragma unroll
        for (u32 at = 0; at < LAST; at += 512) {
            const bool is_of_first = at + 512 <= UNIT || at + 16 * lane_id() < UNIT;
            copy_16_async_once_if(left > (is_of_first ? 0 : 1), Shared{to + at}, from + at);
        }
        const u32 behind = is_shared() ? (unit + of_last) / 4 * SUPER : (unit - begin) * UNIT;
        copy_16_async_once_if(of_last < left, Shared{to + LAST}, last + behind);
        if (left == 0) return;
        from += Of::UNITS, unit += PER, left -= min(left, PER);
        if (left == 0) end_run();
    }

    DEVICE void end_run() {
        if (GATED) is_up = !is_up;
        if (!is_up) tile += stride, --tiles;
        if (tiles > 0) begin_run();
    }

    // The same for activations: piece `p` of row `r` goes to `p ^ 4 * (r % 2)`, so that lanes read from different banks.
    DEVICE void bring_inputs(u32 slot) {
        if (turns == 0) return;
        const u32 to = slot + Of::INPUTS, odd = lane_id() / 8 % 2 * 64, piece = lane_id() % 8 * 16;
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

    // Adds the products with units `from_unit` to `to_unit` of a tile, which come next.
    DEVICE void multiply(float (&sum)[EIGHTS][4], const u32 (&chunks)[EIGHTS][2], u32 from_unit, u32 to_unit) {
        // What there are registers for is loaded before the slot is filled again.
        constexpr bool AT_ONCE = Of::BY_UNIT || EIGHTS <= 2;
        u32 inputs = from_unit * 128;
#pragma unroll 1
        for (u32 i = from_unit; i < to_unit; i += PER, inputs += PER * 128) {
            typename Base::Raws raw;
            OfUnit x[PER][EIGHTS];
            const u32 from = Base::load(raw);
            // Of a unit behind the last: what lies there is read and not used.
            const auto load_inputs = [&](u32 of) {
                Base::load_inputs(x[of], chunks, Of::BY_UNIT ? from + Of::INPUTS + of * Of::OF_INPUTS : inputs + of * 128);
            };
#pragma unroll
            for (u32 of = 0; AT_ONCE && of < PER; ++of) load_inputs(of);
            Base::refill([&](u32 slot) { bring(slot); });
#pragma unroll
            for (u32 of = 0; of < PER; ++of) {
                if (of > 0 && i + of >= count) break;
                if constexpr (!AT_ONCE) load_inputs(of);
#pragma unroll
                for (u32 chunk = 0; chunk < 2; ++chunk) multiply_chunk<FORMAT>(sum, raw[of], chunk, x[of]);
            }
        }
    }
};

// The gate and what it gates by pairs: a slot is the same unit of both, which meet activations that are loaded once.
template <class FORMAT, u32 COUNT, Rows ROWS, u32 EIGHTS>
struct Feed<FORMAT, true, COUNT, ROWS, EIGHTS, true> : Ring<FORMAT, ROWS, EIGHTS> {
    typedef Ring<FORMAT, ROWS, EIGHTS> Base;
    typedef typename Base::Of Of;
    using Base::begin, Base::count;
    static constexpr u32 UNIT = Base::UNIT, SUPER = Base::SUPER, PIECES = (Of::INPUTS + 511) / 512;
    static_assert(Base::PER == 2 && !Of::BY_UNIT);

    const u8* from[PIECES]; // this lane's pieces of the units that are brought next
    // Bytes from one unit of a tile to the next, of pieces of units; of pieces of what units share, from those of four to the
    // next; and from the last unit of a tile to the first one of the next tile.
    u32 tiles, done, of_unit[PIECES], of_four[PIECES], of_tile[PIECES]; // `done` units of that tile have been asked for

    DEVICE Feed(const Jobs<COUNT>& jobs, const Piece& piece, u32 segment, u8* at, u32 first, u32 stride)
        : Base(jobs.of[0].units, segment, at) {
        const Job& job = jobs.of[0];
        const u32 units = job.units, all = jobs.tiles();
        tiles = first < all && count > 0 ? ceil_div(all - first, stride) : 0;
        const u64 tile_bytes = FORMAT::tile_bytes(units);
        const u64 tile = (u64(piece.matrix) * ceil_div(job.rows, 16u) + first) * tile_bytes;
        done = 0;
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const u32 place = 512 * i + 16 * lane_id();
            const bool is_shared = place >= Of::UNITS;
            const bool is_up = is_shared ? place >= Of::UNITS + SUPER : place >= UNIT;
            const u32 within = is_shared ? place - Of::UNITS - (is_up ? SUPER : 0) : place - (is_up ? UNIT : 0);
            const u32 begin_at = is_shared ? begin / 4 * SUPER : begin * UNIT;
            const u32 end_at = is_shared ? (begin + count - 1) / 4 * SUPER : (begin + count - 1) * UNIT;
            from[i] = (is_up ? job.up : job.weight) + tile + (is_shared ? u64(units) * UNIT : 0) + begin_at + within;
            of_unit[i] = is_shared ? 0 : UNIT, of_four[i] = is_shared ? SUPER : 0;
            of_tile[i] = stride * u32(tile_bytes) - (end_at - begin_at);
        }
    }

    // Begins to copy the units of a slot.
    DEVICE void bring_weights(u32 to) {
        // Without this branch the compiler asks for what comes next when all of what is there has been multiplied.
        if (tiles == 0) return;
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const bool is_there = 512 * i + 512 <= Of::INPUTS || 512 * i + 16 * lane_id() < Of::INPUTS;
            copy_16_async_once_if(is_there, Shared{to + 512 * i}, from[i]);
        }
        ++done;
        const bool ends = done == count, is_fourth = (begin + done) % 4 == 0;
#pragma unroll
        for (u32 i = 0; i < PIECES; ++i) {
            const bool has_shared = 512 * i + 512 > Of::UNITS;
            const u32 next = has_shared ? of_unit[i] + (is_fourth ? of_four[i] : 0) : UNIT;
            from[i] += ends ? of_tile[has_shared ? i : 0] : next;
        }
        if (ends) done = 0, --tiles;
    }

    DEVICE void bring(u32 slot) { bring_weights(slot), copies_commit(); }

    // Adds the products of a tile of both.
    DEVICE void multiply(float (&sum)[2][EIGHTS][4], const u32 (&chunks)[EIGHTS][2]) {
#pragma unroll 1
        for (u32 i = 0; i < count; ++i) {
            typename Base::Raws raw;
            OfUnit x[EIGHTS];
            Base::load(raw);
            Base::load_inputs(x, chunks, i * 128);
            Base::refill([&](u32 slot) { bring(slot); });
            // By turns: what is unpacked of the one is ready when the products with the other are.
#pragma unroll
            for (u32 chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
                for (u32 of = 0; of < 2; ++of) multiply_chunk<FORMAT>(sum[of], raw[of], chunk, x);
            }
        }
    }
};
