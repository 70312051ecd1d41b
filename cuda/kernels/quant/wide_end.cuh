// How blocks of quant/wide.cuh end, which includes this.
#pragma once

// Adds up what is left of a lot, of which some is asked for before any of it is added.
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32 BLOCKS>
DEVICE void Wide<FORMAT, WIDTH, GATED, PARTS, BLOCKS>::put_left(u32 at, u32 left, u32 lot, float* to) const {
    constexpr u32 FOUR = 4 * 128 * MULTIPLIERS; // floats from four sums to the next
    const float* from = segment_left(at, 0) + lot * (LOT / 8) * FOUR;
    const u32 fours = min(LOT / 8, SUMS / 4 - lot * (LOT / 8));
#pragma unroll 2
    for (u32 i = 0; i < fours; ++i, from += FOUR, to += 8 * ROW_OF_LOT) {
        float4 of[SEGMENTS];
#pragma unroll
        for (u32 number = 0; number < SEGMENTS; ++number) {
            of[number] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (left >> number & 1) of[number] = load_four_floats(from + number * (SUMS / 4) * FOUR);
        }
        float sums[4] = {};
#pragma unroll
        for (u32 number = 0; number < SEGMENTS; ++number) {
            sums[0] += of[number].x, sums[1] += of[number].y, sums[2] += of[number].z, sums[3] += of[number].w;
        }
#pragma unroll
        for (u32 j = 0; j < 4; ++j) *place_of(to, j) = sums[j];
    }
}

// Those of four rows of every eighth entry: `x` is the sums of products, or of what gates `with`, and becomes what they end with.
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32 BLOCKS>
template <u32 COUNT>
DEVICE void Wide<FORMAT, WIDTH, GATED, PARTS, BLOCKS>::end_usual(float (&x)[4 * COUNT], const float (&with)[4 * COUNT],
                                                         const Entry* entry) const {
    float factor[COUNT];
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) factor[i] = entry[8 * i].factor;
#pragma unroll
    for (u32 i = 0; i < 4 * COUNT; ++i) x[i] = __fmul_rn(x[i], __fmul_rn(factor[i / 4], job.weight_factor));
    if constexpr (GATED) {
        silu_all(x);
#pragma unroll
        for (u32 i = 0; i < 4 * COUNT; ++i) x[i] *= __fmul_rn(with[i], __fmul_rn(factor[i / 4], job.up_factor));
    } else {
        if (job.activation == RELU_SQUARED) {
#pragma unroll
            for (u32 i = 0; i < 4 * COUNT; ++i) x[i] = fmaxf(x[i], 0.0f) * fmaxf(x[i], 0.0f);
        }
#pragma unroll
        for (u32 i = 0; i < 4 * COUNT; ++i) x[i] = __fmul_rn(x[i], job.scale);
        if (!job.accumulate) return;
#pragma unroll
        for (u32 i = 0; i < 4 * COUNT; ++i) x[i] = __fadd_rn(with[i], x[i]);
    }
}

// The end of a block goes lot by lot, in few instructions: they are seldom gone through, and have to be brought. A lane ends four
// rows of some entries; warps that have a gate those of half of a lot, warps that have what it gates those of the other half.
// What is there before of one lot is asked for while the one ahead ends.
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32 BLOCKS>
DEVICE void Wide<FORMAT, WIDTH, GATED, PARTS, BLOCKS>::finish(const float (&totals)[SUMS], u32 at, u32 left, const Entries& mine) const {
    const Block here = place(at);
    constexpr u32 AT_ONCE = LOT / 8 / (GATED ? 2 : 1), OF_WARP = LOT * ROW_OF_LOT;
    u32 thread = threadIdx.x;
    keep(thread);
    const u32 lots = ceil_div(here.count, LOT), warp = thread / 32 % (GATED ? 4 : 8), lane = thread % 32;
    const u32 begin = (GATED ? thread / 128 * LOT / 2 : 0) + lane / 4, of_tile = lane % 4 * 4;
    const u32 row = here.rows * ROWS + warp * 16 + of_tile;
    const bool is_usual = this->is_usual(), has_before = !GATED && is_usual && job.accumulate;
    u32 to = thread / 32 * OF_WARP + lane % 4 * 2 * ROW_OF_LOT + lane / 4, from = warp * OF_WARP + begin * ROW_OF_LOT + of_tile;
    keep(to), keep(from);
    const float* const sums = this->lots() + from;
    float* const out = job.out + job.column + row;
    const u32 count = row < job.rows ? here.count : 0;
    // Other warps read what a warp has: both of a gate and what it gates have to come.
    const auto sync = [&] {
        if constexpr (GATED) sync_threads(2 + warp, 64);
        if constexpr (!GATED) __syncwarp();
    };
    put(mine);
    // Of a block that is shared every cluster ends some lots.
    const u32 first = shared_by > 1 ? share() : 0, step = shared_by * LOT;
    const Entry* entry = entries() + begin + first * LOT;
    const auto out_at = [&](u32 i) { return reinterpret_cast<float4*>(out + u64(entry[8 * i].number) * job.out_stride); };
    float before[4 * AT_ONCE];
    const auto ask = [&](u32 place) {
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
            if (place + 8 * i < count) set_four(before + 4 * i, *out_at(i));
        }
    };
    if (has_before) ask(begin + first * LOT);
#pragma unroll 1
    for (u32 lot = first, place = begin + first * LOT; lot < lots; lot += shared_by, place += step) {
        if (shared_by == 1) put(totals, lot, this->lots() + to);
        if (shared_by > 1) put_left(at, left, lot, this->lots() + to);
        sync();
        if (is_usual) {
            float x[4 * AT_ONCE], with[4 * AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                const float* const at = sums + 8 * i * ROW_OF_LOT;
                set_four(x + 4 * i, *reinterpret_cast<const float4*>(at));
                if constexpr (GATED) set_four(with + 4 * i, *reinterpret_cast<const float4*>(at + 4 * OF_WARP));
            }
            end_usual<AT_ONCE>(x, GATED ? with : before, entry);
            float4* ends[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) ends[i] = out_at(i);
            entry += step;
            if (has_before) ask(place + step);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) {
                if (place + 8 * i < count) *ends[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
            }
        } else {
#pragma unroll 1
            for (u32 i = 0; i < 4 * AT_ONCE; ++i) {
                const u32 of = i / 4 * 8, in_row = i % 4;
                if (place + of >= count || row + in_row >= job.rows) continue;
                const float* const at = sums + of * ROW_OF_LOT + in_row;
                end(entry[of], row + in_row, at[0], GATED ? at[4 * OF_WARP] : 0.0f);
            }
            entry += step;
        }
        sync();
    }
}

// Every block sends its sums of eight entries to the block that ends them, and ends those of its own number. `turn`: how often
// that has been done.
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32 BLOCKS>
DEVICE void Wide<FORMAT, WIDTH, GATED, PARTS, BLOCKS>::finish_parts(const float (&totals)[SUMS], const Block& here, u32 turn) const {
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
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32 BLOCKS>
DEVICE void Wide<FORMAT, WIDTH, GATED, PARTS, BLOCKS>::end_plain(const float* sent, const Block& here) const {
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
template <class FORMAT, u32 WIDTH, bool GATED, u32 PARTS, u32 BLOCKS>
DEVICE void Wide<FORMAT, WIDTH, GATED, PARTS, BLOCKS>::end_gated(const float* sent, const Block& here) const {
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
