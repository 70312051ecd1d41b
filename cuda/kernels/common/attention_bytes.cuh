// Attention of few rows a sequence over pages of 8-bit numbers with a scale a row. The warps of a block take 32 or 64 tokens at
// a time, 16 at heads of 256 columns. Half the bytes come in half the time, so what counts is how few instructions a token
// takes: keys and values come through shared memory, asked for one turn ahead, and maxima, fading and scales are worked on
// once a turn. Over q8_0 both products are of integers: queries, and weights over the largest of a turn, are integers of
// three bytes each, nothing is unpacked, and no sum is rounded. fp8 becomes f16, which loses nothing.
#pragma once
#include "common/attention_bytes_products.cuh"
#include "common/attention_part.cuh"

// What a weight is at least taken to be where the largest of some is looked for.
static constexpr float LEAST_WEIGHT = 1e-35f;

DEVICE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The larger number, and none if one of them is none.
DEVICE float larger(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

// As many blocks of a multiprocessor as registers are enough for, with a few of them spilled.
#define DECODE_BOUNDS(DIM, TILES) __launch_bounds__(WARPS * 32, TILES == 2 ? 2 : DIM == 256 ? 3 : 4)
#define DECODE_ROOM(Room) __shared__ __align__(128) Room room

// `BOUNDED`: tokens may have been evicted and summed up. Kernels for all others are spared the code, and give the same bits.
template <u32 KV, u32 DIM, u32 TILES, bool BOUNDED> struct Decode {
    using Work = Products<KV, DIM, TILES>;
    static constexpr u32 QUERIES = 8 * TILES, GROUPS = Work::GROUPS, TOKENS = 16 * GROUPS;

    // Of 16 tokens.
    struct __align__(16) Scales {
        bf16 keys[16], values[16];
    };

    struct Turn {
        u8 keys[WARPS][TOKENS * DIM], values[WARPS][TOKENS * DIM];
        typename Work::Queries queries;
        Scales scales[WARPS][GROUPS];
    };
    union Room {
        Turn turn;
        float mixed[WARPS][QUERIES][DIM + 4];
        RoomOfSums<BOUNDED, DIM> sums;
    };

    // Rows of keys, with the scales of keys and values, or rows of values, on the way to a warp. None goes through registers, of
    // which too few are left: one that waits for memory also holds up what was spilled where both share a scoreboard.
    template <bool SMALL, bool VALUES> struct Arriving {
        const Rows<KV, SMALL>& rows;
        u32 to;          // in shared memory
        const u8* first; // of the first page, for this lane
        const u8* first_scales;
        u32 to_scales;

        DEVICE Arriving(const Rows<KV, SMALL>& rows, u8* to, Scales* to_scales) : rows(rows) {
            const HeadPage page = head_page<KV>(rows.pages, 0, rows.kv_head);
            this->to = shared_address(to) + (lane_id() * 16 ^ Work::swizzle(lane_id() * 16 / DIM));
            first = (VALUES ? page.values : page.keys) + lane_id() * 16;
            const bf16* scales = lane_id() % 4 < 2 ? page.key_scales : page.value_scales;
            first_scales = reinterpret_cast<const u8*>(scales) + lane_id() % 2 * 16;
            this->to_scales = shared_address(to_scales) + 16 * lane_id();
        }

        // Asks for those of some tokens. `ids`: pages of every 16 of them.
        DEVICE void fetch(u32 token, const u32 (&ids)[GROUPS]) const {
            constexpr u32 COPIES = DIM / 32, ROWS = 512 / DIM; // of 512 bytes each
            const u32 tokens = rows.last + 1, behind = lane_id() * 16 / DIM;
            const u64 stride = u32(rows.pages.stride);
            const auto place = [&](u32 g, u32 n) { return Shared{(to ^ Work::swizzle(n * ROWS)) + (g * 16 * DIM + n * 512)}; };
            const auto row = [&](u32 g) { return (token + 16 * g) & (rows.pages.page_size() - 1); };
            if constexpr (SMALL) {
#pragma unroll 1
                for (u32 i = 0; i < GROUPS * COPIES; ++i) {
                    const u32 g = i / COPIES, n = i % COPIES, mine = token + 16 * g + n * ROWS + behind;
                    const HeadPage page = rows.page(mine);
                    const u8* from = (VALUES ? page.values : page.keys) + rows.row(mine) * DIM + lane_id() * 16 % DIM;
                    copy_8_async(place(g, n), from, mine < tokens);
                    copy_8_async(place(g, n) + 8, from + 8, mine < tokens);
                }
                if (!VALUES && lane_id() < TOKENS / 2) {
                    const u32 mine = token + 2 * lane_id();
                    const HeadPage page = rows.page(mine);
                    const Shared at = {to_scales - 16 * lane_id() + lane_id() / 8 * u32(sizeof(Scales)) + lane_id() % 8 * 4};
                    copy_4_async(at, page.key_scales + (rows.row(mine) & ~1u));
                    copy_4_async(at + 32, page.value_scales + (rows.row(mine) & ~1u));
                }
            } else {
                if (token + TOKENS <= tokens) {
#pragma unroll
                    for (u32 g = 0; g < GROUPS; ++g) {
                        const u8* from = first + ids[g] * stride + row(g) * DIM;
#pragma unroll
                        for (u32 n = 0; n < COPIES; ++n) copy_16_async(place(g, n), from + n * 512);
                    }
                } else {
                    // Behind the last token are zeros: what is there otherwise may be no number.
#pragma unroll 1
                    for (u32 i = 0; i < GROUPS * COPIES; ++i) {
                        const u32 g = i / COPIES, n = i % COPIES, id = rows.id(token + 16 * g);
                        const u8* from = first + id * stride + row(g) * DIM + n * 512;
                        copy_16_async(place(g, n), from, token + 16 * g + n * ROWS + behind < tokens);
                    }
                }
                if (!VALUES && lane_id() < 4 * GROUPS) {
                    const u32 mine = lane_id() / 4;
                    u32 id = ids[0];
#pragma unroll
                    for (u32 g = 1; g < GROUPS; ++g) id = mine == g ? ids[g] : id;
                    copy_16_async(Shared{to_scales}, first_scales + id * stride + row(mine) * 2);
                }
            }
            copies_commit();
        }
    };

    // The scales of the tokens `4 pair..` of every 16.
    static DEVICE void unpack(const uint2 (&four)[GROUPS], float (&by)[GROUPS][4]) {
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g) {
            by[g][0] = low_bf16(four[g].x), by[g][1] = high_bf16(four[g].x);
            by[g][2] = low_bf16(four[g].y), by[g][3] = high_bf16(four[g].y);
        }
    }

    template <bool SMALL>
    static DEVICE void run(const StepView& step, const Pages& pages, const EvictionState* eviction_state, const Attention& op,
                           const Parts& parts, Room& room, u64* barrier) {
        __shared__ float factors[QUERIES];
        __shared__ Top tops[WARPS][QUERIES]; // of what a warp has found
        // The product behind this has its weights on the way by the time it is done.
        let_next_begin();
        const Part<QUERIES> part(step, pages, op, parts);
        if (!part.has_queries()) return wait_for_inputs();
        const Together<QUERIES, DIM, false> together(parts, part.context(), barrier, nullptr);
        if constexpr (BOUNDED) {
            if (part.template has_sums<DIM>()) return part.add_sums(*eviction_state, room.sums, together);
        }
        const u32 end = part.end();
        u32 token = part.begin();
        if (token >= end) return wait_for_inputs();
        token += warp_id() * TOKENS;
        const u32 group_lane = lane_id() >> 2, pair = lane_id() & 3;
        const Rows<KV, SMALL> rows = {pages, step.table(part.span.slot, op.ordinal), part.kv_head, part.tokens() - 1};
        const Arriving<SMALL, false> keys(rows, room.turn.keys[warp_id()], room.turn.scales[warp_id()]);
        const Arriving<SMALL, true> values(rows, room.turn.values[warp_id()], room.turn.scales[warp_id()]);
        // Of the tokens that are asked for next, and of those behind them.
        u32 ids[GROUPS] = {}, later[GROUPS] = {};
        const auto look_up = [&](u32 token, u32 (&ids)[GROUPS]) {
#pragma unroll
            for (u32 g = 0; g < GROUPS && !SMALL; ++g) ids[g] = rows.id(token + 16 * g);
        };
        const auto fetch_first = [&] {
            look_up(token, ids);
            keys.fetch(token, ids);
            values.fetch(token, ids);
        };

        // Nothing in a step writes keys of earlier ones. Short copies go through a cache that would not see new ones beside
        // them.
        const bool is_old = !SMALL && token + TOKENS <= min(part.span.context, end);
        if (is_old) fetch_first();
        wait_for_inputs();
        if (!is_old && token < end) fetch_first();
        look_up(token + WARPS * TOKENS, ids);
        look_up(token + 2 * WARPS * TOKENS, later);
        part.template load_queries<DIM, QUERIES / WARPS>(factors, [&](u32 i, u32 n, float low, float high) {
            room.turn.queries.put(i, 2 * (n * 32 + lane_id()), low, high);
        });
        __syncthreads();
        // Of the query `8 n + group_lane`.
        float factor[TILES];
        u32 visible[TILES];
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
            factor[n] = factors[8 * n + group_lane] * Work::KEY_FACTOR;
            visible[n] = part.visible(8 * n + group_lane);
        }
        const u32 seen_by_all = part.visible(0);
        float top[TILES], sum[TILES];
        float mixed[TILES][DIM / 16][4]; // of the queries `8 n + 2 pair` and the next one
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
            top[n] = MINUS_INFINITY, sum[n] = 0.0f;
#pragma unroll
            for (u32 m = 0; m < DIM / 16; ++m) mixed[n][m][0] = mixed[n][m][1] = mixed[n][m][2] = mixed[n][m][3] = 0.0f;
        }
#pragma unroll 1
        for (; token < end; token += WARPS * TOKENS) {
            const u32 next = token + WARPS * TOKENS;
            copies_wait<1>();
            __syncwarp();
            float scores[GROUPS][TILES][4]; // of the tokens `4 pair..` of every 16
            Work::multiply_keys(room.turn.keys[warp_id()], room.turn.queries, scores);
            uint2 key_scales[GROUPS], value_scales[GROUPS];
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g) {
                key_scales[g] = *reinterpret_cast<const uint2*>(&room.turn.scales[warp_id()][g].keys[4 * pair]);
                value_scales[g] = *reinterpret_cast<const uint2*>(&room.turn.scales[warp_id()][g].values[4 * pair]);
            }
            float scales[GROUPS][4];
            unpack(key_scales, scales);
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) scores[g][n][e] *= factor[n] * scales[g][e];
            __syncwarp(); // keys are read
            if (next < end)
                keys.fetch(next, ids);
            else
                copies_commit();
            const bool is_seen = token + TOKENS <= seen_by_all;
            const auto hide = [&](float instead) {
                if (is_seen) return;
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                    for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                        for (u32 e = 0; e < 4; ++e)
                            if (token + 16 * g + 4 * pair + e >= visible[n]) scores[g][n][e] = instead;
            };
            hide(MINUS_INFINITY);
            // Weights become relative to the largest score so far.
            float fade[TILES], worth[TILES], inverse[TILES];
#pragma unroll
            for (u32 n = 0; n < TILES; ++n) {
                float most = top[n];
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g)
                    most = fmaxf(most, fmaxf(fmaxf(scores[g][n][0], scores[g][n][1]), fmaxf(scores[g][n][2], scores[g][n][3])));
                most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
                most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
                const float by = most == MINUS_INFINITY ? 0.0f : most;
                fade[n] = power_of_two(top[n] - by);
                top[n] = most;
                float added = 0.0f;
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) {
                        scores[g][n][e] = power_of_two(scores[g][n][e] - by);
                        added += scores[g][n][e];
                    }
                sum[n] = fmaf(sum[n], fade[n], added);
            }
            unpack(value_scales, scales);
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) scores[g][n][e] *= scales[g][e];
            hide(0.0f); // the scale of what is not seen may be no number
            // Weights that have the scales of their values become relative to the largest of this turn.
            typename Work::Weights weights;
#pragma unroll
            for (u32 n = 0; n < TILES; ++n) {
                float most = LEAST_WEIGHT;
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g)
                    most = larger(most, larger(larger(scores[g][n][0], scores[g][n][1]),
                                               larger(scores[g][n][2], scores[g][n][3])));
                most = larger(most, __shfl_xor_sync(ALL_LANES, most, 1));
                most = larger(most, __shfl_xor_sync(ALL_LANES, most, 2));
                inverse[n] = Work::WEIGHTS * reciprocal(most);
                worth[n] = most * Work::VALUE_FACTOR;
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g) weights.put(g, n, scores[g][n], inverse[n]);
            }
            float fades[TILES][2], worths[TILES][2];
#pragma unroll
            for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    fades[n][i] = __shfl_sync(ALL_LANES, fade[n], 4 * (2 * pair + i));
                    worths[n][i] = __shfl_sync(ALL_LANES, worth[n], 4 * (2 * pair + i));
                }
            copies_wait<1>();
            __syncwarp();
            Work::mix_values(room.turn.values[warp_id()], weights, worths, fades, mixed);
            __syncwarp(); // values are read
            if (next < end)
                values.fetch(next, ids);
            else
                copies_commit();
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g) ids[g] = later[g];
            look_up(next + 2 * WARPS * TOKENS, later);
        }
        __syncthreads(); // no shared memory is read any more
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
            float total = sum[n];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            if (pair == 0) tops[warp_id()][8 * n + group_lane] = {top[n], total};
#pragma unroll
            for (u32 i = 0; i < 2; ++i)
#pragma unroll
                for (u32 m = 0; m < DIM / 16; ++m) {
                    const u32 column = m / 4 * 64 + group_lane * 8 + m % 4 * 2;
                    *reinterpret_cast<float2*>(&room.mixed[warp_id()][8 * n + 2 * pair + i][column]) =
                        make_float2(mixed[n][m][i], mixed[n][m][i + 2]);
                }
        }
        part.template finish<DIM>(tops, room.mixed);
    }
};
