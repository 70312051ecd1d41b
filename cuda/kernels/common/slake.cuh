// What slots remember of a layer so that tokens of its pages can be given up, and of those that were (ALGORITHMS 5).
#pragma once
#include "common/attention.cuh"

struct GivenUp {
    float* scores;     // [slots][kv_heads][capacity]
    u32* positions;    // [slots][kv_heads][capacity], of the tokens that stayed in the last eviction
    float* vectors;    // [slots][kv_heads][mean key: key_dim | variance of the key: key_dim | mean value: value_dim]
    void* covariances; // [slots][kv_heads][key_dim][value_dim]
    u16* queries;      // [slots][window][heads * key_dim] in f16, that of a position at its remainder
    Pages pages;
    u32 heads, window, capacity;
    u32 ordinal; // of the page store
    float scale; // what makes powers of 2 of scores
    u32 is_f16;  // covariances are

    DEVICE u32 group() const { return heads / pages.kv_heads; }
    DEVICE u32 vector_len() const { return 2 * pages.key_dim + pages.value_dim; }
    DEVICE const float* vectors_of(u32 slot, u32 head) const {
        return vectors + u64(slot * pages.kv_heads + head) * vector_len();
    }

    // The score of what was given up, for a query that was multiplied with `scale`: to a whole warp.
    DEVICE float mean_score(const Bound& bound, u32 slot, u32 head, const float* query) const {
        const float *key = vectors_of(slot, head), *variance = key + pages.key_dim;
        float mean = 0.0f, squares = 0.0f;
        for (u32 i = lane_id(); i < pages.key_dim; i += 32) {
            mean = fmaf(query[i], key[i], mean);
            squares = fmaf(query[i] * query[i], variance[i], squares);
        }
        // Half the variance of scores in nats, in powers of 2.
        const float excess = 0.5f * LN2 * warp_sum(squares);
        return warp_sum(mean) + (bound.mass_cap == 0.0f ? 0.0f : fminf(excess, bound.mass_cap * LOG2E));
    }
};

static_assert(sizeof(GivenUp) == 104, "as in src/given_up.rs");

// Two columns of a row that are neighbours, 0 where there are none. Past the first-level cache, which may remember them as
// they were in an earlier step.
DEVICE float2 two(const float* at, bool is_aligned, u32 columns) {
    if (is_aligned) {
        float2 x;
        asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(at) : "memory");
        return x;
    }
    return make_float2(columns > 0 ? at[0] : 0.0f, columns > 1 ? at[1] : 0.0f);
}
DEVICE float2 two(const f16* at, bool is_aligned, u32 columns) {
    if (is_aligned) {
        u32 bits;
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
        return make_float2(to_float(f16{u16(bits)}), to_float(f16{u16(bits >> 16)}));
    }
    return make_float2(columns > 0 ? to_float(at[0]) : 0.0f, columns > 1 ? to_float(at[1]) : 0.0f);
}

// Keeps `count` columns of the query of a row, if that is one of the last of its span. All threads of a block.
DEVICE void remember_query(const StepView& step, const GivenUp& layer, const float* q, u32 row, u32 first, u32 count) {
    const Span& span = step.spans[step.row_span[row]];
    const u32 behind = row - span.first, columns = layer.heads * layer.pages.key_dim;
    if (span.rows - behind > layer.window) return;
    u16* to = layer.queries + (u64(span.slot) * layer.window + (span.context + behind) % layer.window) * columns;
    for (u32 i = first + threadIdx.x; i < first + count; i += blockDim.x) to[i] = to_f16(q[u64(row) * columns + i]).bits;
}

// What was given up, as one more part of the contexts of queries that share a KV head: each of its tokens has the weight of
// their mean key, and their values the first order of how far their keys are from it.
static constexpr u32 SUMS_COLUMNS = 64, SUMS_HEADS = 8;

// Shared memory of so many warps, for queries of so many columns.
template <u32 WARPS, u32 COLUMNS> struct SumsRoom {
    float queries[SUMS_HEADS][COLUMNS], sums[WARPS][SUMS_HEADS][SUMS_COLUMNS];
};

// A query: a row of the step and a head.
struct RowHead {
    u32 row, head;
};

struct Sums {
    const StepView& step;
    const GivenUp& layer;
    const Attention& op;
    const Parts& parts;
    const Span& span; // as the layer has it
    Bound bound;
    u32 kv_head;

    // For `SUMS_COLUMNS` columns of values from the first, and `count` queries, which `query` numbers. Those that have the
    // first columns also remember the queries, if that is asked for. `wait`: for the queries; no step changes sums. All
    // threads of a block.
    template <u32 WARPS, u32 COLUMNS, typename Query, typename Wait>
    DEVICE void add(u32 first_column, u32 count, const Query& query, SumsRoom<WARPS, COLUMNS>& room, const Wait& wait) const {
        if (layer.is_f16)
            add_stored<f16>(first_column, count, query, room, wait);
        else
            add_stored<float>(first_column, count, query, room, wait);
    }

    template <typename Stored, u32 WARPS, u32 COLUMNS, typename Query, typename Wait>
    DEVICE void add_stored(u32 first_column, u32 count, const Query& query, SumsRoom<WARPS, COLUMNS>& room,
                           const Wait& wait) const {
        const u32 key_dim = layer.pages.key_dim, value_dim = layer.pages.value_dim;
        const u64 of_head = u64(span.slot) * layer.pages.kv_heads + kv_head;
        const Stored* covariance = static_cast<const Stored*>(layer.covariances) + of_head * key_dim * value_dim;
        const float* mean_value = layer.vectors_of(span.slot, kv_head) + 2 * key_dim;
        const u32 column = first_column + 2 * lane_id(), columns = column < value_dim ? value_dim - column : 0;
        const bool is_aligned = value_dim % 2 == 0 && columns > 0;
        // Rows of the covariance that a warp asks for at once.
        constexpr u32 ROWS = COLUMNS < 128 ? COLUMNS / 8 : 16;
        float2 x[ROWS];
        const auto load = [&](u32 begin) {
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
                const u32 c = begin + i * WARPS;
                x[i] = c < key_dim ? two(covariance + u64(c) * value_dim + column, is_aligned, columns) : make_float2(0.0f, 0.0f);
            }
        };
        load(warp_id());
        wait();
        for (u32 first = 0; first < count; first += SUMS_HEADS) {
            const u32 some = min(count - first, SUMS_HEADS);
            __syncthreads();
            for (u32 i = threadIdx.x; i < SUMS_HEADS * key_dim; i += 32 * WARPS) {
                const u32 g = i / key_dim, c = i % key_dim;
                const RowHead of = query(first + min(g, some - 1));
                const float q = op.q[(u64(of.row) * op.heads + of.head) * key_dim + c];
                room.queries[g][c] = g < some ? q * layer.scale : 0.0f;
            }
            if (op.asks != 0 && first_column == 0) {
                for (u32 g = 0; g < some; ++g) {
                    const RowHead of = query(first + g);
                    remember_query(step, layer, op.q, of.row, of.head * key_dim, key_dim);
                }
            }
            __syncthreads();
            float low[SUMS_HEADS] = {}, high[SUMS_HEADS] = {};
            for (u32 begin = warp_id(); begin < key_dim; begin += ROWS * WARPS) {
                if (first > 0 || begin >= WARPS) load(begin);
#pragma unroll
                for (u32 i = 0; i < ROWS; ++i) {
                    // Behind the last row are zeros.
                    const u32 c = min(begin + i * WARPS, key_dim - 1);
#pragma unroll
                    for (u32 g = 0; g < SUMS_HEADS; ++g) {
                        low[g] = fmaf(room.queries[g][c], x[i].x, low[g]);
                        high[g] = fmaf(room.queries[g][c], x[i].y, high[g]);
                    }
                }
            }
#pragma unroll
            for (u32 g = 0; g < SUMS_HEADS; ++g) {
                room.sums[warp_id()][g][2 * lane_id()] = low[g];
                room.sums[warp_id()][g][2 * lane_id() + 1] = high[g];
            }
            __syncthreads();
            for (u32 i = threadIdx.x; i < some * SUMS_COLUMNS; i += 32 * WARPS) {
                const u32 g = i / SUMS_COLUMNS, c = first_column + i % SUMS_COLUMNS;
                if (c >= value_dim) continue;
                float sum = 0.0f;
#pragma unroll
                for (u32 w = 0; w < WARPS; ++w) sum += room.sums[w][g][i % SUMS_COLUMNS];
                parts.mixed[place_of(query(first + g)) * value_dim + c] = bound.count * fmaf(LN2, sum, mean_value[c]);
            }
            if (first_column != 0) continue;
            for (u32 g = warp_id(); g < some; g += WARPS) {
                const float top = layer.mean_score(bound, span.slot, kv_head, room.queries[g]);
                if (lane_id() == 0) parts.tops[place_of(query(first + g))] = make_float2(top, bound.count);
            }
        }
    }

    // Where the part of a query is: the last, whatever it sees of the tokens that are held.
    DEVICE u64 place_of(RowHead of) const {
        return (u64(of.row - parts.first_row) * op.heads + of.head) * parts.count + parts.count - 1;
    }
};

// What a layer gives up of a sequence.
struct Leaving {
    u32 layer;      // among those that give up tokens
    u32 table;      // where its pages begin in what was brought for all layers
    u32 held, keep; // tokens, before and after
    u32 stayed;     // of these the first, which have positions of their own
    u32 since;      // the position of those behind them
};

// Of several layers at once: which tokens go, and which rows move where.
struct Moving {
    const GivenUp* layers;
    const Leaving* leaving;
    const u32* tables;
    u32* gone;   // [layers][heads * most], in a layer [kv_heads][held - keep], ascending
    u32* moves;  // [layers][heads][most] of from, to
    u32* counts; // [layers][heads]: of moves
    u32 heads, most; // the most KV heads of a layer, and the most that go or move of one of them

    DEVICE u64 number(u32 leaving, u32 head) const { return u64(leaving) * heads + head; }
};

static_assert(sizeof(Leaving) == 24 && sizeof(Moving) == 56, "as in src/ops/giving.rs");
