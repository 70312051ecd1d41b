// Attention of few rows a sequence over pages of 16-bit numbers. The warps of a block take 16 tokens at a time. Keys and values
// go from the pages into registers, 16 bytes a lane, and from there into matrix instructions as they are: tokens are the rows
// of the product with the queries, columns of values those of the product with the weights.
#pragma once
#include "common/attention_part.cuh"

static constexpr u32 TOKENS = 16;
#define DECODE_BOUNDS(DIM, TILES) __launch_bounds__(WARPS * 32, DIM == 64 ? 4 : DIM == 256 || TILES == 2 ? 2 : 3)
#define DECODE_ROOM(Room) __shared__ __align__(16) Room room

// `BOUNDED`: tokens may have been evicted and summed up. `SPREAD`: a warp has a KV tile, a cluster a context. Kernels for all
// others are spared the code.
template <u32 KV, u32 DIM, u32 TILES, bool BOUNDED, bool SPREAD = false> struct Decode {
    static constexpr u32 QUERIES = 8 * TILES, TERMS = terms<KV>(), PADDED = DIM + 32;
    // Turns of a warp that are on the way: those that are spread are few, and have the registers.
    static constexpr u32 AHEAD = SPREAD && TILES == 1 && DIM <= 128 ? 2 : 1;

    // Columns of a row of values, and some that keep rows apart, if there is room for them in 48 KB.
    static constexpr u32 ROW = DIM + (TERMS == 3 && TILES == 2 && DIM == 128 ? 0 : 4);

    struct Room {
        u16 queries[TERMS][QUERIES][PADDED];
        union {
            float mixed[WARPS][QUERIES][ROW];
            RoomOfSums<BOUNDED, DIM> sums;
        };
        float factors[QUERIES];
        Top tops[WARPS][QUERIES]; // of what a warp has found
    };
    static_assert(sizeof(Room) + 128 <= 48 << 10, "");

    template <bool SMALL>
    static DEVICE void run(const StepView& step, const Pages& pages, const EvictionState* eviction_state, const Attention& op,
                           const Parts& parts, Room& room, u64* barrier) {
        extern __shared__ __align__(16) u8 bytes[];
        // The product behind this has its weights on the way by the time it is done.
        let_next_begin();
        const Part<QUERIES> part(step, pages, op, parts);
        if (!part.has_queries()) return wait_for_inputs();
        const Together<QUERIES, DIM, SPREAD> together(parts, part.context(), barrier, bytes);
        if constexpr (BOUNDED) {
            if (part.template has_sums<DIM>()) return part.add_sums(*eviction_state, room.sums, together);
        }
        const Span& span = part.span;
        const Cut cut = part.cut;
        // The warp has a KV tile, or a subpart of the part of the block.
        u32 token, end;
        if constexpr (SPREAD) {
            token = (blockIdx.x * WARPS + warp_id()) * cut.kv_tile, end = min(token + cut.kv_tile, part.tokens());
        } else {
            if (part.begin() >= part.end()) return wait_for_inputs();
            token = part.begin() + warp_id() * cut.subpart(), end = min(token + cut.subpart(), part.end());
        }
        const u32 group_lane = lane_id() >> 2, pair = lane_id() & 3;
        const Rows<KV, SMALL> rows = {pages, step.table(span.slot, op.ordinal), part.kv_head, part.tokens() - 1};
        Eight<KV> keys[AHEAD][DIM / 32][2], values[AHEAD][DIM / 64][4];

        // Pages of the turns to come, 32 at a time: a lane has one, so that no turn waits for a table.
        u32 turn = 0, ids = 0;
        HeadPage page;
        const auto look_up = [&](u32 token) {
            if constexpr (!SMALL) {
                if (turn % 32 == 0) ids = rows.id(token + lane_id() * TOKENS);
                page = head_page<KV>(pages, __shfl_sync(ALL_LANES, ids, turn % 32), part.kv_head);
                turn += 1;
            }
        };
        const auto load_keys = [&](u32 token, u32 behind) {
#pragma unroll
            for (u32 r = 0; r < 2; ++r) {
                const u32 mine = token + group_lane + 8 * r;
                if constexpr (SMALL) page = rows.page(mine);
                const u8* key = page.keys + rows.row(mine) * (2 * DIM);
#pragma unroll
                for (u32 n = 0; n < DIM / 32; ++n) keys[behind][n][r].load(key + 2 * (n * 32 + pair * 8));
            }
        };
        const auto load_values = [&](u32 token, u32 behind) {
#pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                const u32 mine = token + 2 * pair + (r & 1) + 8 * (r >> 1);
                if constexpr (SMALL) page = rows.page(mine);
                const u8* value = page.values + rows.row(mine) * (2 * DIM);
#pragma unroll
                for (u32 n = 0; n < DIM / 64; ++n) values[behind][n][r].load(value + 2 * (n * 64 + group_lane * 8));
            }
        };
        const auto load_first = [&](u32 behind) {
            const u32 first = token + behind * TOKENS;
            look_up(first);
            load_keys(first, behind);
            load_values(first, behind);
        };

        // Nothing in a step writes keys and values of earlier ones.
        const auto is_old = [&](u32 behind) { return token + (behind + 1) * TOKENS <= min(span.context, end); };
#pragma unroll
        for (u32 behind = 0; behind < AHEAD; ++behind)
            if (is_old(behind)) load_first(behind);
        wait_for_inputs();
#pragma unroll
        for (u32 behind = 0; behind < AHEAD; ++behind)
            if (!is_old(behind) && token + behind * TOKENS < end) load_first(behind);
        part.template load_queries<DIM, QUERIES / WARPS>(room.factors, [&](u32 i, u32 n, float low, float high) {
#pragma unroll
            for (u32 t = 0; t < TERMS; ++t)
                *reinterpret_cast<u32*>(&room.queries[t][i][2 * (n * 32 + lane_id())]) = take_pair<KV>(low, high);
        });
        __syncthreads();
        // Of the queries `8 n + 2 pair` and the next one.
        float top[TILES][2], sum[TILES][2], factor[TILES][2];
        u32 visible[TILES][2];
        float mixed[TILES][DIM / 16][4];
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 query = 8 * n + 2 * pair + i;
                factor[n][i] = room.factors[query];
                visible[n][i] = part.visible(query);
            }
        }
        bool is_first = true;
        Top of_subpart[TILES][2];
#pragma unroll 1
        do {
            const u32 kv_tile_end = min(token + cut.kv_tile, end);
#pragma unroll
            for (u32 n = 0; n < TILES; ++n) {
#pragma unroll
                for (u32 i = 0; i < 2; ++i) top[n][i] = MINUS_INFINITY, sum[n][i] = 0.0f;
#pragma unroll
                for (u32 m = 0; m < DIM / 16; ++m) mixed[n][m][0] = mixed[n][m][1] = mixed[n][m][2] = mixed[n][m][3] = 0.0f;
            }
#pragma unroll 1
            while (token < kv_tile_end) {
#pragma unroll
                for (u32 behind = 0; behind < AHEAD; ++behind) {
                    if (behind > 0 && token >= kv_tile_end) break;
                    // Terms are summed apart: so much less waits for what is ahead of it.
                    float scores[TILES][4], sums_of[TERMS][TILES][4];
#pragma unroll
                    for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                        for (u32 t = 0; t < TERMS; ++t)
                            sums_of[t][n][0] = sums_of[t][n][1] = sums_of[t][n][2] = sums_of[t][n][3] = 0.0f;
#pragma unroll
                    for (u32 c = 0; c < DIM / 32; ++c) {
                        u32 low[4], high[4];
                        keys[behind][c][0].words(low);
                        keys[behind][c][1].words(high);
                        const u32 a[2][4] = {{low[0], high[0], low[1], high[1]}, {low[2], high[2], low[3], high[3]}};
#pragma unroll
                        for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                            for (u32 t = 0; t < TERMS; ++t) {
                                const uint4 q = *reinterpret_cast<const uint4*>(
                                    &room.queries[t][8 * n + group_lane][c * 32 + pair * 8]);
                                const u32 b[2][2] = {{q.x, q.y}, {q.z, q.w}};
                                multiply<KV>(sums_of[t][n], a[0], b[0]);
                                multiply<KV>(sums_of[t][n], a[1], b[1]);
                            }
                    }
#pragma unroll
                    for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                        for (u32 e = 0; e < 4; ++e) {
                            scores[n][e] = sums_of[TERMS - 1][n][e];
#pragma unroll
                            for (u32 t = TERMS - 1; t-- > 0;) scores[n][e] += sums_of[t][n][e];
                        }
                    const u32 next_token = token + AHEAD * TOKENS;
                    if (next_token < end) {
                        look_up(next_token);
                        load_keys(next_token, behind);
                    }
                    u32 weights[TILES][TERMS][2];
#pragma unroll
                    for (u32 n = 0; n < TILES; ++n) {
                        float fade[2], p[4];
#pragma unroll
                        for (u32 i = 0; i < 2; ++i) {
                            float &low = scores[n][i], &high = scores[n][i + 2];
                            const bool sees[2] = {token + group_lane < visible[n][i], token + group_lane + 8 < visible[n][i]};
                            low = sees[0] ? low * factor[n][i] : MINUS_INFINITY;
                            high = sees[1] ? high * factor[n][i] : MINUS_INFINITY;
                            float most = fmaxf(low, high);
                            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 4));
                            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 8));
                            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 16));
                            most = fmaxf(most, top[n][i]);
                            const float by = most == MINUS_INFINITY ? 0.0f : most;
                            fade[i] = exp2f(top[n][i] - by);
                            top[n][i] = most;
                            p[i] = exp2f(low - by), p[i + 2] = exp2f(high - by);
                            sum[n][i] = fmaf(sum[n][i], fade[i], p[i] + p[i + 2]);
                        }
#pragma unroll
                        for (u32 m = 0; m < DIM / 16; ++m)
#pragma unroll
                            for (u32 e = 0; e < 4; ++e) mixed[n][m][e] *= fade[e & 1];
#pragma unroll
                        for (u32 t = 0; t < TERMS; ++t) {
                            weights[n][t][0] = transposed(take_pair<KV>(p[0], p[1]));
                            weights[n][t][1] = transposed(take_pair<KV>(p[2], p[3]));
                        }
                    }
#pragma unroll
                    for (u32 c = 0; c < DIM / 64; ++c) {
                        u32 r[4][4];
#pragma unroll
                        for (u32 i = 0; i < 4; ++i) values[behind][c][i].words(r[i]);
#pragma unroll
                        for (u32 j = 0; j < 4; ++j) {
                            const u32 a[4] = {permute(r[0][j], r[1][j], 0x5410), permute(r[0][j], r[1][j], 0x7632),
                                              permute(r[2][j], r[3][j], 0x5410), permute(r[2][j], r[3][j], 0x7632)};
#pragma unroll
                            for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                                for (u32 t = 0; t < TERMS; ++t) multiply<KV>(mixed[n][4 * c + j], a, weights[n][t]);
                        }
                    }
                    if (next_token < end) load_values(next_token, behind);
                    token += TOKENS;
                }
            }
#pragma unroll
            for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    sum[n][i] += __shfl_xor_sync(ALL_LANES, sum[n][i], 4);
                    sum[n][i] += __shfl_xor_sync(ALL_LANES, sum[n][i], 8);
                    sum[n][i] += __shfl_xor_sync(ALL_LANES, sum[n][i], 16);
                }
            add_kv_tile(SPREAD || is_first, top, sum, mixed, of_subpart, room.mixed[warp_id()]);
            is_first = false;
        } while (!SPREAD && token < end);
        if (group_lane == 0) {
#pragma unroll
            for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                for (u32 i = 0; i < 2; ++i) room.tops[warp_id()][8 * n + 2 * pair + i] = of_subpart[n][i];
        }
        if constexpr (SPREAD) {
            together.begin();
            __syncthreads();
            if (blockIdx.x * WARPS * cut.kv_tile < part.tokens()) together.tell(room.tops, room.mixed);
            part.end_together(together);
        } else {
            part.template finish<DIM>(room.tops, room.mixed);
        }
    }

    // Adds a KV tile to what its subpart has, of which the warp alone has the values.
    static DEVICE void add_kv_tile(bool is_first, const float (&top)[TILES][2], const float (&sum)[TILES][2],
                                const float (&mixed)[TILES][DIM / 16][4], Top (&of_subpart)[TILES][2], float (&all)[QUERIES][ROW]) {
        const u32 group_lane = lane_id() >> 2, pair = lane_id() & 3;
#pragma unroll
        for (u32 n = 0; n < TILES; ++n)
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                float* at = &all[8 * n + 2 * pair + i][group_lane * 8];
                const Top of_kv_tile = {top[n][i], sum[n][i]};
                if (is_first) {
                    of_subpart[n][i] = of_kv_tile;
#pragma unroll
                    for (u32 m = 0; m < DIM / 16; ++m)
                        *reinterpret_cast<float2*>(at + m / 4 * 64 + m % 4 * 2) = make_float2(mixed[n][m][i], mixed[n][m][i + 2]);
                } else {
                    const Fold fold(of_subpart[n][i], of_kv_tile);
#pragma unroll
                    for (u32 m = 0; m < DIM / 16; ++m) {
                        float2* two = reinterpret_cast<float2*>(at + m / 4 * 64 + m % 4 * 2);
                        *two = make_float2(fold.of(two->x, mixed[n][m][i]), fold.of(two->y, mixed[n][m][i + 2]));
                    }
                }
            }
    }
};

#define SPREAD(name, KV, DIM, TILES)                                                                                  \
    DECODE_AS(attention_decode_##name##_spread_##DIM##_##TILES, __launch_bounds__(WARPS * 32), nullptr, NONE_EVICTED, \
              Decode<KV, DIM, TILES, false, true>)
#define BOUNDED_SPREAD(name, KV, DIM, TILES)                                                                          \
    DECODE_AS(attention_bounded_##name##_spread_##DIM##_##TILES, __launch_bounds__(WARPS * 32), &layer, SOME_EVICTED, \
              Decode<KV, DIM, TILES, true, true>)
