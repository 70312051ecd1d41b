// Attention of few rows a sequence. A block has a KV head, a part of the context and 8 or 16 queries of the heads that
// share it; its warps take 16 tokens at a time. Keys and values go from the pages into registers, 16 bytes a lane, and
// from there into matrix instructions as they are: tokens are the rows of the product with the queries, columns of values
// those of the product with the weights.
#pragma once
#include "common/slake.cuh"
#include "common/tiles.cuh"

static constexpr u32 WARPS = 4;
static constexpr u32 TOKENS = 16;

// Where the tokens of a lane are. Pages of 16 tokens and more are looked up once for 16 tokens.
template <u32 KV, bool SMALL> struct Rows {
    const Pages& pages;
    const u32* table;
    u32 kv_head, last; // token that stands for those behind it

    DEVICE HeadPage page(u32 token) const { return head_page<KV>(pages, table[min(token, last) >> pages.shift], kv_head); }
    DEVICE u32 row(u32 token) const { return min(token, last) & (pages.page_size() - 1); }
};

// Shared memory for sums of what was given up, where there may be some.
template <bool BOUNDED, u32 COLUMNS> struct RoomOfSums {};
template <u32 COLUMNS> struct RoomOfSums<true, COLUMNS> : SumsRoom<WARPS, COLUMNS> {};

// `BOUNDED`: tokens may have been given up and summed up. Kernels for all others are spared the code.
template <u32 KV, u32 DIM, u32 TILES, bool BOUNDED> struct Decode {
    static constexpr u32 QUERIES = 8 * TILES, TERMS = terms<KV>(), PADDED = DIM + 32, BYTES = element_bytes<KV>();

    union Shared {
        u16 queries[TERMS][QUERIES][PADDED];
        float mixed[WARPS][QUERIES][DIM + 4];
        RoomOfSums<BOUNDED, DIM> sums;
    };

    // Puts the queries into shared memory, each divided by a power of two. `factors`: those powers, times the scale.
    static DEVICE void load_queries(const Span& span, const Pages& pages, const Attention& op, const Parts& parts,
                                    u32 first, u32 kv_head, Shared& shared, float* factors) {
        const u32 group = op.heads / pages.kv_heads;
        for (u32 i = warp_id(); i < QUERIES; i += WARPS) {
            const u32 row = parts.begin_in(span) + (first + i) / group, head = kv_head * group + (first + i) % group;
            const bool inside = row < parts.end_in(span);
            const float* q = op.q + (u64(span.first + (inside ? row : 0)) * op.heads + head) * DIM;
            float x[DIM / 32], most = 0.0f;
#pragma unroll
            for (u32 n = 0; n < DIM / 64; ++n) {
                const float2 pair = reinterpret_cast<const float2*>(q)[n * 32 + lane_id()];
                x[2 * n] = inside ? pair.x : 0.0f, x[2 * n + 1] = inside ? pair.y : 0.0f;
                most = fmaxf(most, fmaxf(fabsf(x[2 * n]), fabsf(x[2 * n + 1])));
            }
            const float power = power_below(warp_max(most)), inverse = 1.0f / power;
            if (lane_id() == 0) factors[i] = power * op.scale * LOG2E;
#pragma unroll
            for (u32 n = 0; n < DIM / 64; ++n) {
                float low = x[2 * n] * inverse, high = x[2 * n + 1] * inverse;
#pragma unroll
                for (u32 t = 0; t < TERMS; ++t)
                    *reinterpret_cast<u32*>(&shared.queries[t][i][2 * (n * 32 + lane_id())]) = take_pair<KV>(low, high);
            }
        }
    }

    template <bool SMALL>
    static DEVICE void run(const StepView& step, const Pages& pages, const GivenUp* given_up, const Attention& op,
                           const Parts& parts, Shared& shared) {
        __shared__ float factors[QUERIES], tops[WARPS][QUERIES], sums[WARPS][QUERIES];
        // The step is there before its first kernel begins.
        const Span span = step.span_in(parts.first_span + blockIdx.z, op.ordinal);
        const u32 kv_head = blockIdx.y % pages.kv_heads, first = blockIdx.y / pages.kv_heads * QUERIES;
        const u32 group = op.heads / pages.kv_heads;
        const u32 skipped = parts.begin_in(span), rows_end = parts.end_in(span), tokens = span.context + rows_end;
        if (skipped >= rows_end) return wait_for_inputs();
        const u32 queries = (rows_end - skipped) * group;
        if constexpr (BOUNDED) {
            if (span.has_sums() && blockIdx.x + 1 >= parts.count) {
                // Behind the tokens that are held come the sums of those that are not: a block for each of some columns.
                if (first >= queries) return wait_for_inputs();
                const auto query = [&](u32 i) {
                    return RowHead{span.first + skipped + (first + i) / group, kv_head * group + (first + i) % group};
                };
                const Sums sums = {step, *given_up, op, parts, span, step.bound(parts.first_span + blockIdx.z, op.ordinal), kv_head};
                const auto wait = [] {
                    wait_for_inputs();
                    let_next_begin();
                };
                const u32 column = (blockIdx.x + 1 - parts.count) * SUMS_COLUMNS;
                return sums.add(column, min(queries - first, QUERIES), query, shared.sums, wait);
            }
        }
        const u32 part = part_tokens(span.context + skipped + 1, pages.kv_heads, span.has_sums()), begin = blockIdx.x * part;
        const u32 end = min(begin + part, tokens);
        if (begin >= end || first >= queries) return wait_for_inputs();
        const u32 group_lane = lane_id() >> 2, pair = lane_id() & 3;
        const Rows<KV, SMALL> rows = {pages, step.table(span.slot, op.ordinal), kv_head, tokens - 1};
        Eight<KV> keys[DIM / 32][2], values[DIM / 64][4];
        float key_scales[2], value_scales[2];

        auto load_keys = [&](u32 token) {
            HeadPage page = rows.page(token);
#pragma unroll
            for (u32 r = 0; r < 2; ++r) {
                const u32 mine = token + group_lane + 8 * r;
                if constexpr (SMALL) page = rows.page(mine);
                const u8* key = page.keys + rows.row(mine) * (DIM * BYTES);
                if constexpr (has_scales<KV>()) key_scales[r] = to_float(page.key_scales[rows.row(mine)]);
#pragma unroll
                for (u32 n = 0; n < DIM / 32; ++n) keys[n][r].load(key + (n * 32 + pair * 8) * BYTES);
            }
        };
        auto load_values = [&](u32 token) {
            HeadPage page = rows.page(token);
#pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                const u32 mine = token + 2 * pair + (r & 1) + 8 * (r >> 1);
                if constexpr (SMALL) page = rows.page(mine);
                const u8* value = page.values + rows.row(mine) * (DIM * BYTES);
#pragma unroll
                for (u32 n = 0; n < DIM / 64; ++n) values[n][r].load(value + (n * 64 + group_lane * 8) * BYTES);
            }
            if constexpr (has_scales<KV>()) {
#pragma unroll
                for (u32 r = 0; r < 2; ++r) {
                    const u32 mine = token + group_lane + 8 * r;
                    if constexpr (SMALL) page = rows.page(mine);
                    value_scales[r] = to_float(page.value_scales[rows.row(mine)]);
                }
            }
        };

        u32 token = begin + warp_id() * TOKENS;
        // Nothing in a step writes keys of earlier ones.
        const bool is_old = token + TOKENS <= min(span.context, end);
        if (is_old) load_keys(token);
        wait_for_inputs();
        if (!is_old && token < end) load_keys(token);
        load_queries(span, pages, op, parts, first, kv_head, shared, factors);
        __syncthreads();
        // Of the queries `8 n + 2 pair` and the next one.
        float top[TILES][2], sum[TILES][2], factor[TILES][2], unit[TILES][2];
        u32 visible[TILES][2];
        float mixed[TILES][DIM / 16][4];
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 query = 8 * n + 2 * pair + i, row = skipped + (first + query) / group;
                top[n][i] = MINUS_INFINITY, sum[n][i] = 0.0f, unit[n][i] = LEAST_UNIT;
                factor[n][i] = factors[query];
                visible[n][i] = row < rows_end ? min(span.context + row + 1, end) : 0;
            }
#pragma unroll
            for (u32 m = 0; m < DIM / 16; ++m) mixed[n][m][0] = mixed[n][m][1] = mixed[n][m][2] = mixed[n][m][3] = 0.0f;
        }
#pragma unroll 1
        for (; token < end; token += WARPS * TOKENS) {
            load_values(token);
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
                keys[c][0].words(low);
                keys[c][1].words(high);
                const u32 a[2][4] = {{low[0], high[0], low[1], high[1]}, {low[2], high[2], low[3], high[3]}};
#pragma unroll
                for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                    for (u32 t = 0; t < TERMS; ++t) {
                        const uint4 q = *reinterpret_cast<const uint4*>(
                            &shared.queries[t][8 * n + group_lane][c * 32 + pair * 8]);
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
            const u32 next_token = token + WARPS * TOKENS;
            float scaled[2] = {1.0f, 1.0f};
            if constexpr (has_scales<KV>()) scaled[0] = key_scales[0], scaled[1] = key_scales[1];
            if (next_token < end) load_keys(next_token);
            u32 weights[TILES][TERMS][2];
#pragma unroll
            for (u32 n = 0; n < TILES; ++n) {
                float fade[2], p[4];
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    float &low = scores[n][i], &high = scores[n][i + 2];
                    const bool sees[2] = {token + group_lane < visible[n][i], token + group_lane + 8 < visible[n][i]};
                    low = sees[0] ? low * (factor[n][i] * scaled[0]) : MINUS_INFINITY;
                    high = sees[1] ? high * (factor[n][i] * scaled[1]) : MINUS_INFINITY;
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
                    if constexpr (has_scales<KV>()) {
                        // Weights are given the scales of their values, in a unit that grows with those that are seen.
                        float largest = fmaxf(sees[0] ? value_scales[0] : 0.0f, sees[1] ? value_scales[1] : 0.0f);
                        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 4));
                        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 8));
                        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 16));
                        fade[i] *= grow_unit(unit[n][i], largest);
                        const float inverse = 1.0f / unit[n][i];
                        p[i] = p[i] * inverse * value_scales[0], p[i + 2] = p[i + 2] * inverse * value_scales[1];
                    }
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
                for (u32 i = 0; i < 4; ++i) values[c][i].words(r[i]);
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
        }
        __syncthreads(); // queries are read no more
        let_next_begin();
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 query = 8 * n + 2 * pair + i;
                const float by = has_scales<KV>() ? unit[n][i] : 1.0f;
                float total = sum[n][i];
                total += __shfl_xor_sync(ALL_LANES, total, 4);
                total += __shfl_xor_sync(ALL_LANES, total, 8);
                total += __shfl_xor_sync(ALL_LANES, total, 16);
                if (group_lane == 0) {
                    tops[warp_id()][query] = top[n][i];
                    sums[warp_id()][query] = total;
                }
#pragma unroll
                for (u32 m = 0; m < DIM / 16; ++m) {
                    const u32 column = m / 4 * 64 + group_lane * 8 + m % 4 * 2;
                    *reinterpret_cast<float2*>(&shared.mixed[warp_id()][query][column]) =
                        make_float2(mixed[n][m][i] * by, mixed[n][m][i + 2] * by);
                }
            }
        }
        // A context of one part needs no merging: the same operations, here. What gates it is asked for before the last wait.
        const bool is_whole = parts.count == 1, is_gated = is_whole && op.gate != nullptr;
        constexpr u32 FOURS = (DIM + 127) / 128;
        float4 gates[FOURS];
        const auto place_of = [&](u32 query) {
            const u32 row = skipped + (first + query) / group, head = kv_head * group + (first + query) % group;
            return (u64(span.first + row) * op.heads + head) * DIM;
        };
        const auto ask_for_gates = [&](u32 query) {
            if (!is_gated || query >= QUERIES || first + query >= queries) return;
#pragma unroll
            for (u32 i = 0; i < FOURS; ++i) {
                const u32 column = lane_id() * 4 + 128 * i;
                if (column < DIM) gates[i] = load_four_floats(op.gate + place_of(query) + column);
            }
        };
        ask_for_gates(warp_id());
        __syncthreads();
        for (u32 query = warp_id(); query < QUERIES && first + query < queries; query += WARPS) {
            const u32 row = skipped + (first + query) / group, head = kv_head * group + (first + query) % group;
            float most = MINUS_INFINITY, total = 0.0f, by[WARPS];
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) most = fmaxf(most, tops[w][query]);
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) {
                by[w] = tops[w][query] == MINUS_INFINITY ? 0.0f : exp2f(tops[w][query] - most);
                total = fmaf(by[w], sums[w][query], total);
            }
            const u64 at = u64(span.first + row - parts.first_row) * op.heads + head;
            float* out = is_whole ? op.out + place_of(query) : parts.mixed_at(at, DIM);
            const float inverse = 1.0f / total;
#pragma unroll
            for (u32 i = 0; i < FOURS; ++i) {
                const u32 column = lane_id() * 4 + 128 * i;
                if (column >= DIM) break;
                float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (u32 w = 0; w < WARPS; ++w) {
                    const float4 x = *reinterpret_cast<const float4*>(&shared.mixed[w][query][column]);
                    y[0] = fmaf(by[w], x.x, y[0]), y[1] = fmaf(by[w], x.y, y[1]);
                    y[2] = fmaf(by[w], x.z, y[2]), y[3] = fmaf(by[w], x.w, y[3]);
                }
#pragma unroll
                for (u32 e = 0; is_whole && e < 4; ++e) y[e] *= inverse;
                if (is_gated) {
                    y[0] *= sigmoid(gates[i].x), y[1] *= sigmoid(gates[i].y);
                    y[2] *= sigmoid(gates[i].z), y[3] *= sigmoid(gates[i].w);
                }
                *reinterpret_cast<float4*>(out + column) = make_float4(y[0], y[1], y[2], y[3]);
            }
            ask_for_gates(query + WARPS);
            if (is_whole) continue;
            if (lane_id() == 0) *parts.tops_at(at) = make_float2(most, total);
        }
    }
};

// By type and columns of a head, and tiles of 8 queries of a block.
#define DECODE_AS(function, KV, DIM, TILES, BOUNDED, given_up, ...)                                                   \
    KERNEL __launch_bounds__(WARPS * 32) function(StepView step, Pages pages, __VA_ARGS__ Attention op, Parts parts) { \
        using Kernel = Decode<KV, DIM, TILES, BOUNDED>;                                                               \
        __shared__ __align__(16) typename Kernel::Shared shared;                                                      \
        if (pages.shift < 4) {                                                                                        \
            Kernel::template run<true>(step, pages, given_up, op, parts, shared);                                     \
        } else {                                                                                                      \
            Kernel::template run<false>(step, pages, given_up, op, parts, shared);                                    \
        }                                                                                                             \
    }

#define DECODE(name, KV, DIM, TILES)                                                                                  \
    DECODE_AS(attention_decode_##name##_##DIM##_##TILES, KV, DIM, TILES, false, nullptr, )
#define BOUNDED(name, KV, DIM, TILES)                                                                                 \
    DECODE_AS(attention_bounded_##name##_##DIM##_##TILES, KV, DIM, TILES, true, &layer, GivenUp layer, )

#define EACH(SHAPE, name, KV)                                                                                         \
    SHAPE(name, KV, 64, 1)                                                                                            \
    SHAPE(name, KV, 64, 2)                                                                                            \
    SHAPE(name, KV, 128, 1)                                                                                           \
    SHAPE(name, KV, 128, 2)                                                                                           \
    SHAPE(name, KV, 256, 1)
