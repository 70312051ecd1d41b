// Contexts that are looked at by a cluster of blocks, a KV tile for each warp: each block makes subparts of what its warps have
// found, or a part, and tells the one that puts some columns together. Nothing is launched for that. All bits are those of
// blocks that have a part each, and of `attention_merge` (attention.cu).
#pragma once
#include "common/attention.cuh"
#include "common/cluster.cuh"

// What the blocks of a cluster have in common.
struct Context {
    u32 tokens; // that its last row sees
    Cut cut;
    u32 queries; // of a block
    bool has_sums;
};

// What scores were found relative to, and the sum of weights relative to that.
struct Top {
    float top, sum;
};

// What becomes of two such: what was there, and what comes, are multiplied with these.
struct Fold {
    float before, added;

    // Adds `other` to `all`.
    DEVICE Fold(Top& all, Top other) {
        const float most = fmaxf(all.top, other.top), by = most == MINUS_INFINITY ? 0.0f : most;
        before = exp2f(all.top - by), added = exp2f(other.top - by);
        all = {most, fmaf(all.sum, before, other.sum * added)};
    }
    DEVICE float of(float x, float y) const { return fmaf(x, before, y * added); }
};

// What subparts make together, and the weight of each. `subpart(w)`: one of them.
template <typename Subpart> DEVICE Top part_of_subparts(const Subpart& subpart, float (&weights)[SUBPARTS]) {
    Top subparts[SUBPARTS], part = {MINUS_INFINITY, 0.0f};
#pragma unroll
    for (u32 w = 0; w < SUBPARTS; ++w) subparts[w] = subpart(w), part.top = fmaxf(part.top, subparts[w].top);
#pragma unroll
    for (u32 w = 0; w < SUBPARTS; ++w) {
        weights[w] = subparts[w].top == MINUS_INFINITY ? 0.0f : exp2f(subparts[w].top - part.top);
        part.sum = fmaf(weights[w], subparts[w].sum, part.sum);
    }
    return part;
}

DEVICE void add_four(float4& sum, float by, const float4& x) {
    sum.x = fmaf(by, x.x, sum.x), sum.y = fmaf(by, x.y, sum.y), sum.z = fmaf(by, x.z, sum.z), sum.w = fmaf(by, x.w, sum.w);
}

// Shared memory beyond that of the block itself, if blocks are clusters (`IS`): for every subpart, or for every part if subparts are
// no more than KV tiles, some of the columns of queries, in fours, and the `Top` of every query. Of `parts.count` of them, the last
// for sums of what was evicted.
template <u32 QUERIES, u32 DIM, bool IS> struct Together {
    static constexpr u32 GROUPS = MERGE_THREADS / (DIM / 4);
    // Columns that a warp puts together at once, in fours: fewer are left to no block.
    static constexpr u32 LEAST_LOTS = 8;

    // What follows of these is worked out again where it is needed: registers are few in between.
    const Parts& parts;
    const Context context;
#ifdef HAS_CLUSTERS
    u64* barrier;
    u8* shared;

    static DEVICE constexpr bool is_together() { return IS; }

    DEVICE u32 lots() const { return context.queries * (DIM / 4); }
    // A block puts `1 << shift()` lots together, or fewer.
    DEVICE u32 shift() const { return 32 - __clz(max(ceil_div(lots(), gridDim.x), LEAST_LOTS) - 1); }
    DEVICE u32 owners() const { return ceil_div(lots(), 1u << shift()); }
    DEVICE u32 own_lots() const { return min(lots() - (blockIdx.x << shift()), 1u << shift()); }
    // Subparts, or parts.
    DEVICE bool has_parts() const { return context.cut.in_subpart() == 1; }
    DEVICE u32 kv_tiles() const { return ceil_div(context.tokens, context.cut.kv_tile); }
    DEVICE u32 count() const { return ceil_div(kv_tiles(), has_parts() ? SUBPARTS : context.cut.in_subpart()); }
    // [count][1 << shift]
    DEVICE float4* mixed() const { return reinterpret_cast<float4*>(shared); }
    // [count][QUERIES]
    DEVICE Top* tops() const { return reinterpret_cast<Top*>(mixed() + (parts.count << shift())); }

    // Lets others begin to tell. All threads of the block.
    DEVICE Together(const Parts& parts, const Context& context, u64* barrier, u8* shared)
        : parts(parts), context(context), barrier(barrier), shared(shared) {
        if (!is_together()) return;
        if (threadIdx.x == 0) {
            barrier_init(barrier, 1);
            barriers_made();
        }
        __syncwarp();
        if (threadIdx.x == 0 && blockIdx.x < owners()) {
            barrier_expect(barrier, (count() + context.has_sums) * (own_lots() * 16 + context.queries * u32(sizeof(Top))));
        }
        cluster_arrive();
    }

    // Waits until all others are there. Once, before anything is told.
    DEVICE void begin() const {
        if (is_together()) cluster_wait();
    }

    // Of subpart or part `number` four columns of a query.
    DEVICE void put(u32 number, u32 lot, const float4& y) const {
        const u32 by = shift(), owner = lot >> by;
        const float four[4] = {y.x, y.y, y.z, y.w};
        store_four_at(&mixed()[(number << by) + lot - (owner << by)].x, four, barrier, owner);
    }
    // One column of a query.
    DEVICE void put_one(u32 number, u32 query, u32 column, float y) const {
        const u32 lot = query * (DIM / 4) + column / 4, by = shift(), owner = lot >> by;
        store_float_at(&mixed()[(number << by) + lot - (owner << by)].x + column % 4, y, barrier, owner);
    }
    // To an owner the `Top` of a query.
    DEVICE void put_top(u32 number, u32 query, u32 owner, Top top) const {
        const float two[2] = {top.top, top.sum};
        if (owner < owners()) store_two_at(&tops()[number * QUERIES + query].top, two, barrier, owner);
    }

    // Tells what the KV tiles of the block, one of a warp, make of all queries. All threads, once everything is in shared memory.
    template <u32 ROW>
    DEVICE void tell(const Top (&of_kv_tiles)[SUBPARTS][QUERIES], const float (&values)[SUBPARTS][QUERIES][ROW]) const {
        const u32 first = blockIdx.x * SUBPARTS, in_subpart = context.cut.in_subpart(), here = min(kv_tiles() - first, SUBPARTS);
        static_assert(DIM / 4 >= 16, "a thread for each owner");
#pragma unroll 1
        for (u32 lot = threadIdx.x; lot < lots(); lot += blockDim.x) {
            const u32 query = lot / (DIM / 4), four = lot % (DIM / 4);
            const auto value = [&](u32 w) { return reinterpret_cast<const float4*>(values[w][query])[four]; };
            if (has_parts()) {
                float by[SUBPARTS];
                const Top part = part_of_subparts([&](u32 w) { return of_kv_tiles[w][query]; }, by);
                float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (u32 w = 0; w < SUBPARTS; ++w) add_four(y, by[w], value(w));
                put(blockIdx.x, lot, y);
                put_top(blockIdx.x, query, four, part);
                continue;
            }
#pragma unroll 1
            for (u32 begin = 0; begin < here; begin += in_subpart) {
                Top subpart = of_kv_tiles[begin][query];
                float4 y = value(begin);
#pragma unroll 1
                for (u32 w = begin + 1; w < min(begin + in_subpart, here); ++w) {
                    const Fold fold(subpart, of_kv_tiles[w][query]);
                    const float4 x = value(w);
                    y = make_float4(fold.of(y.x, x.x), fold.of(y.y, x.y), fold.of(y.z, x.z), fold.of(y.w, x.w));
                }
                const u32 number = (first + begin) / in_subpart;
                put(number, lot, y);
                put_top(number, query, four, subpart);
            }
        }
    }

    // Puts the columns of this block together. `visible(query)`: tokens that it sees; `place(query)`: where its columns are, in
    // outputs and gates. All threads of the block, once.
    template <typename Visible, typename Place>
    DEVICE void end(const Attention& op, const Visible& visible, const Place& place) const {
        if (!is_together() || blockIdx.x >= owners()) return;
        const u32 by = shift(), columns = 4 * own_lots(), first = 4 * (blockIdx.x << by), stride = 4u << by;
        const auto at = [&](u32 column) { return place((first + column) / DIM) + (first + column) % DIM + lane_id(); };
        u32 column = 32 * warp_id();
        if (column >= columns) return;
        float gate = op.gate == nullptr ? 0.0f : load_float(op.gate + at(column));
        const bool are_parts = has_parts();
        const u32 there = count();
        barrier_wait(barrier, 0);
#pragma unroll 1
        for (; column < columns; column += blockDim.x) {
            const u32 query = (first + column) / DIM, of_query = ceil_div(visible(query), context.cut.length);
            // A lane for each subpart, then for each part.
            Top mine = {MINUS_INFINITY, 0.0f};
            float of_subpart = 0.0f;
            if (lane_id() < there) mine = tops()[lane_id() * QUERIES + query];
            if (!are_parts) {
                float weights[SUBPARTS];
                const u32 begin = lane_id() / SUBPARTS * SUBPARTS;
                const Top part = part_of_subparts(
                    [&](u32 w) {
                        return Top{__shfl_sync(ALL_LANES, mine.top, begin + w), __shfl_sync(ALL_LANES, mine.sum, begin + w)};
                    },
                    weights);
#pragma unroll
                for (u32 w = 0; w < SUBPARTS; ++w) of_subpart = lane_id() % SUBPARTS == w ? weights[w] : of_subpart;
                const u32 from = lane_id() * SUBPARTS;
                mine = {__shfl_sync(ALL_LANES, part.top, from), __shfl_sync(ALL_LANES, part.sum, from)};
            }
            const u32 all_parts = of_query + context.has_sums;
            const bool is_part = lane_id() < all_parts;
            if (context.has_sums && lane_id() == of_query) mine = tops()[(parts.count - 1) * QUERIES + query];
            const float most = warp_max(is_part ? mine.top : MINUS_INFINITY), weight = exp2f(mine.top - most);
            const float inverse = 1.0f / warp_sum(is_part ? fmaf(weight, mine.sum, 0.0f) : 0.0f);
            // In the order of `attention_merge`.
            const float* from = &mixed()->x + column + lane_id();
            float all = 0.0f;
#pragma unroll 1
            for (u32 group = 0; group < min(GROUPS, all_parts); ++group) {
                float y = 0.0f;
#pragma unroll 1
                for (u32 part = group; part < all_parts; part += GROUPS) {
                    float x = 0.0f;
                    if (are_parts || part == of_query) {
                        x = from[(part == of_query ? parts.count - 1 : part) * stride];
                    } else {
                        float values[SUBPARTS];
#pragma unroll
                        for (u32 w = 0; w < SUBPARTS; ++w) {
                            const u32 subpart = part * SUBPARTS + w;
                            values[w] = subpart < there ? from[subpart * stride] : 0.0f;
                        }
#pragma unroll
                        for (u32 w = 0; w < SUBPARTS; ++w)
                            x = fmaf(__shfl_sync(ALL_LANES, of_subpart, part * SUBPARTS + w), values[w], x);
                    }
                    y = fmaf(__shfl_sync(ALL_LANES, weight, part), x, y);
                }
                all += y;
            }
            all *= inverse;
            op.out[at(column)] = op.gate == nullptr ? all : all * sigmoid(gate);
            if (op.gate != nullptr && column + blockDim.x < columns) gate = load_float(op.gate + at(column + blockDim.x));
        }
    }
#else
    DEVICE Together(const Parts& parts, const Context& context, u64*, u8*) : parts(parts), context(context) {}
    static DEVICE constexpr bool is_together() { return false; }
    DEVICE void begin() const {}
    DEVICE void put_one(u32, u32, u32, float) const {}
    DEVICE void put_top(u32, u32, u32, Top) const {}
    template <u32 ROW> DEVICE void tell(const Top (&)[SUBPARTS][QUERIES], const float (&)[SUBPARTS][QUERIES][ROW]) const {}
    template <typename Visible, typename Place> DEVICE void end(const Attention&, const Visible&, const Place&) const {}
#endif
};
