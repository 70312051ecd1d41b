// A part of the contexts of the few rows of a sequence, for a block: what the kernels of all types of pages have in common.
// A block has a KV head and 8 or 16 queries of the heads that share it, and its warps some tokens at a time.
#pragma once
#include "common/attention_together.cuh"
#include "common/slake.cuh"
#include "common/tiles.cuh"

static constexpr u32 WARPS = 4;
static_assert(WARPS == SUBPARTS, "a warp has a subpart of the part of a block");

// Where the tokens of a lane are. Pages of 16 tokens and more are looked up once for 16 tokens.
template <u32 KV, bool SMALL> struct Rows {
    const Pages& pages;
    const u32* table;
    u32 kv_head, last; // token that stands for those behind it

    DEVICE u32 id(u32 token) const { return table[min(token, last) >> pages.shift]; }
    DEVICE HeadPage page(u32 token) const { return head_page<KV>(pages, id(token), kv_head); }
    DEVICE u32 row(u32 token) const { return min(token, last) & (pages.page_size() - 1); }
};

// Shared memory for sums of what was evicted, where there may be some.
template <bool BOUNDED, u32 COLUMNS> struct RoomOfSums {};
template <u32 COLUMNS> struct RoomOfSums<true, COLUMNS> : SumsRoom<WARPS, COLUMNS> {};

// The queries of a block, and its tokens.
template <u32 QUERIES> struct Part {
    const StepView& step;
    const Pages& pages;
    const Attention& op;
    const Parts& parts;
    Span span; // as the layer has it
    u32 kv_head, first, group; // the first query, and queries of a row
    u32 skipped, rows_end;     // of the span
    u32 queries;               // of the KV head
    Cut cut;
    float inverse_group;

    // The step is there before its first kernel begins.
    DEVICE Part(const StepView& step, const Pages& pages, const Attention& op, const Parts& parts)
        : step(step), pages(pages), op(op), parts(parts), span(step.span_in(parts.first_span + blockIdx.z, op.ordinal)) {
        kv_head = blockIdx.y % pages.kv_heads, first = blockIdx.y / pages.kv_heads * QUERIES;
        group = op.heads / pages.kv_heads, inverse_group = 1.0f / float(group);
        skipped = parts.begin_in(span), rows_end = parts.end_in(span);
        queries = skipped < rows_end ? (rows_end - skipped) * group : 0;
        cut = parts.cut(span.context + skipped + 1, pages, span.has_sums());
    }

    DEVICE u32 tokens() const { return span.context + rows_end; }
    DEVICE bool has_queries() const { return first < queries; }
    DEVICE u32 begin() const { return blockIdx.x * cut.length; }
    DEVICE u32 end() const { return min(begin() + cut.length, tokens()); }
    // The last blocks have the sums of tokens that are not held, some columns each.
    template <u32 DIM> DEVICE u32 sums_begin() const { return gridDim.x - DIM / SUMS_COLUMNS; }
    template <u32 DIM> DEVICE bool has_sums() const { return span.has_sums() && blockIdx.x >= sums_begin<DIM>(); }
    // Queries of the block.
    DEVICE u32 count() const { return min(queries - first, QUERIES); }
    DEVICE Context context() const { return {tokens(), cut, count(), span.has_sums()}; }

    // A half is far more than what is rounded: exact for fewer than 2^20.
    DEVICE u32 row_behind(u32 query) const { return u32((float(first + query) + 0.5f) * inverse_group); }
    DEVICE u32 row(u32 query) const { return skipped + row_behind(query); }
    DEVICE u32 head(u32 query) const { return kv_head * group + first + query - row_behind(query) * group; }
    DEVICE u64 place(u32 query, u32 columns) const { return (u64(span.first + row(query)) * op.heads + head(query)) * columns; }
    // Tokens that a query sees; it may be none of the span.
    DEVICE u32 visible(u32 query) const { return row(query) < rows_end ? span.context + row(query) + 1 : 0; }

    template <u32 DIM, bool IS>
    DEVICE void add_sums(const EvictionState& eviction_state, SumsRoom<WARPS, DIM>& room, const Together<QUERIES, DIM, IS>& together) const {
        const Sums sums = {step, eviction_state, op, parts, span, step.bound(parts.first_span + blockIdx.z, op.ordinal), kv_head};
        const auto query = [&](u32 i) { return RowHead{span.first + row(i), head(i)}; };
        const auto wait = [&] {
            wait_for_inputs();
            together.begin();
        };
        const u32 column = (blockIdx.x - sums_begin<DIM>()) * SUMS_COLUMNS;
        const auto put = [&](u32 i, u32 c, float y) {
            if constexpr (IS)
                together.put_one(parts.count - 1, i, c, y);
            else
                parts.mixed[sums.place_of(query(i)) * DIM + c] = y;
        };
        const auto put_top = [&](u32 i, float top) {
            if constexpr (IS)
                together.put_top(parts.count - 1, i, lane_id(), {top, sums.bound.count});
            else if (lane_id() == 0)
                parts.tops[sums.place_of(query(i))] = make_float2(top, sums.bound.count);
        };
        sums.add(column, count(), query, room, wait, put, put_top);
        end_together(together);
    }

    template <u32 DIM, bool IS> DEVICE void end_together(const Together<QUERIES, DIM, IS>& together) const {
        together.end(op, [&](u32 i) { return visible(i); }, [&](u32 i) { return place(i, DIM); });
    }

    // The queries, each divided by a power of two, for `put(query, n, low, high)`: two columns of each lane, of every 64.
    // `factors`: those powers, times the scale. A warp asks for `EACH` of them at once.
    template <u32 DIM, u32 EACH, typename Put> DEVICE void load_queries(float* factors, const Put& put) const {
#pragma unroll 1
        for (u32 begin = warp_id(); begin < QUERIES; begin += EACH * WARPS) {
            float2 x[EACH][DIM / 64];
#pragma unroll
            for (u32 k = 0; k < EACH; ++k) {
                const u32 i = begin + k * WARPS;
                const float2* q = reinterpret_cast<const float2*>(op.q + place(i, DIM));
#pragma unroll
                for (u32 n = 0; n < DIM / 64; ++n)
                    x[k][n] = row(i) < rows_end ? q[n * 32 + lane_id()] : make_float2(0.0f, 0.0f);
            }
#pragma unroll
            for (u32 k = 0; k < EACH; ++k) {
                const u32 i = begin + k * WARPS;
                float most = 0.0f;
#pragma unroll
                for (u32 n = 0; n < DIM / 64; ++n) most = fmaxf(most, fmaxf(fabsf(x[k][n].x), fabsf(x[k][n].y)));
                const float power = power_below(warp_max(most)), inverse = inverse_of_power(power);
                if (lane_id() == 0) factors[i] = power * op.scale * LOG2E;
#pragma unroll
                for (u32 n = 0; n < DIM / 64; ++n) put(i, n, x[k][n].x * inverse, x[k][n].y * inverse);
            }
        }
    }

    // Puts together what the warps have of the part: the largest scores, the sums of weights relative to them, and values mixed
    // with these.
    template <u32 DIM, u32 ROW>
    DEVICE void finish(const Top (&subparts)[WARPS][QUERIES], const float (&mixed)[WARPS][QUERIES][ROW]) const {
        // A context of one part needs no merging: the same operations, here. What gates it is asked for before the last wait.
        const bool is_whole = parts.count == 1, is_gated = is_whole && op.gate != nullptr;
        constexpr u32 FOURS = (DIM + 127) / 128;
        float4 gates[FOURS];
        const auto ask_for_gates = [&](u32 query) {
            if (!is_gated || query >= QUERIES || first + query >= queries) return;
#pragma unroll
            for (u32 i = 0; i < FOURS; ++i) {
                const u32 column = lane_id() * 4 + 128 * i;
                if (column < DIM) gates[i] = load_four_floats(op.gate + place(query, DIM) + column);
            }
        };
        ask_for_gates(warp_id());
        __syncthreads();
        for (u32 query = warp_id(); query < QUERIES && first + query < queries; query += WARPS) {
            float by[WARPS];
            const Top all = part_of_subparts([&](u32 w) { return subparts[w][query]; }, by);
            const u64 at = u64(span.first + row(query) - parts.first_row) * op.heads + head(query);
            float* out = is_whole ? op.out + place(query, DIM) : parts.mixed_at(at, DIM);
            const float inverse = 1.0f / all.sum;
#pragma unroll
            for (u32 i = 0; i < FOURS; ++i) {
                const u32 column = lane_id() * 4 + 128 * i;
                if (column >= DIM) break;
                float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (u32 w = 0; w < WARPS; ++w) {
                    const float4 x = *reinterpret_cast<const float4*>(&mixed[w][query][column]);
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
            if (lane_id() == 0) *parts.tops_at(at) = make_float2(all.top, all.sum);
        }
    }
};

// A kernel that runs what is last, for which there are `DECODE_BOUNDS` and `DECODE_ROOM`. `given`: parameters before the op.
#define DECODE_AS(function, bounds, eviction_state, given, ...)                                                       \
    KERNEL bounds function(StepView step, Pages pages, given Attention op, Parts parts) {                             \
        using Kernel = __VA_ARGS__;                                                                                   \
        DECODE_ROOM(typename Kernel::Room);                                                                           \
        __shared__ u64 barrier;                                                                                       \
        if (pages.shift < 4) {                                                                                        \
            Kernel::template run<true>(step, pages, eviction_state, op, parts, room, &barrier);                       \
        } else {                                                                                                      \
            Kernel::template run<false>(step, pages, eviction_state, op, parts, room, &barrier);                      \
        }                                                                                                             \
    }

#define NONE_EVICTED
#define SOME_EVICTED EvictionState layer,

// By type and columns of a head, and tiles of 8 queries of a block.
#define DECODE(name, KV, DIM, TILES)                                                                                  \
    DECODE_AS(attention_decode_##name##_##DIM##_##TILES, DECODE_BOUNDS(DIM, TILES), nullptr, NONE_EVICTED,            \
              Decode<KV, DIM, TILES, false>)
#define BOUNDED(name, KV, DIM, TILES)                                                                                 \
    DECODE_AS(attention_bounded_##name##_##DIM##_##TILES, DECODE_BOUNDS(DIM, TILES), &layer, SOME_EVICTED,            \
              Decode<KV, DIM, TILES, true>)

#define EACH(SHAPE, name, KV)                                                                                         \
    SHAPE(name, KV, 64, 1)                                                                                            \
    SHAPE(name, KV, 64, 2)                                                                                            \
    SHAPE(name, KV, 128, 1)                                                                                           \
    SHAPE(name, KV, 128, 2)                                                                                           \
    SHAPE(name, KV, 256, 1)
