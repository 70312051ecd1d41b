// What slots remember of a layer so that tokens of its pages can be evicted, and of those that were (ALGORITHMS 5).
#pragma once
#include "common/attention.cuh"
#include "common/copy.cuh"

// What a lane has of the score of a mean key.
struct MeanScore {
    float mean = 0.0f, squares = 0.0f;

    DEVICE void add(float query, float key, float variance) {
        mean = fmaf(query, key, mean);
        squares = fmaf(query * query, variance, squares);
    }
    DEVICE float all(const Bound& bound) const {
        // Half the variance of scores in nats, in powers of 2.
        const float excess = 0.5f * LN2 * warp_sum(squares);
        return warp_sum(mean) + (bound.mass_cap == 0.0f ? 0.0f : fminf(excess, bound.mass_cap * LOG2E));
    }
};

struct EvictionState {
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

    // The score of what was evicted, for a query that was multiplied with `scale`: to a whole warp.
    DEVICE float mean_score(const Bound& bound, u32 slot, u32 head, const float* query) const {
        const float *key = vectors_of(slot, head), *variance = key + pages.key_dim;
        MeanScore sum;
        for (u32 i = lane_id(); i < pages.key_dim; i += 32) sum.add(query[i], key[i], variance[i]);
        return sum.all(bound);
    }
};

static_assert(sizeof(EvictionState) == 104, "as in src/eviction.rs");

// Two columns of a row that are neighbours, 0 where there are none. Past the first-level cache, which may remember them as
// they were in an earlier step.
template <typename Stored> struct Two;
template <> struct Two<float> {
    float2 x;
    DEVICE void load(const float* at, bool is_aligned, u32 columns) {
        if (is_aligned)
            asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(at) : "memory");
        else
            x = make_float2(columns > 0 ? at[0] : 0.0f, columns > 1 ? at[1] : 0.0f);
    }
    DEVICE float2 both() const { return x; }
};
template <> struct Two<f16> {
    u32 bits;
    DEVICE void load(const f16* at, bool is_aligned, u32 columns) {
        if (is_aligned)
            asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
        else
            bits = (columns > 0 ? at[0].bits : 0) | u32(columns > 1 ? at[1].bits : 0) << 16;
    }
    DEVICE float2 both() const { return make_float2(low_f16(bits), high_f16(bits)); }
};

// Keeps `count` columns of the query of a row, if that is one of the last of its span. All threads of a block.
DEVICE void remember_query(const StepView& step, const EvictionState& layer, const float* q, u32 row, u32 first, u32 count) {
    const Span& span = step.spans[step.row_span[row]];
    const u32 behind = row - span.first, columns = layer.heads * layer.pages.key_dim;
    if (span.rows - behind > layer.window) return;
    u16* to = layer.queries + (u64(span.slot) * layer.window + (span.context + behind) % layer.window) * columns;
    for (u32 i = first + threadIdx.x; i < first + count; i += blockDim.x) to[i] = to_f16(q[u64(row) * columns + i]).bits;
}

// What was evicted, as one more part of the contexts of queries that share a KV head: each of its tokens has the weight of
// their mean key, and their values the first order of how far their keys are from it.
static constexpr u32 SUMS_COLUMNS = 64, SUMS_HEADS = 8;

// Shared memory of so many warps, for queries of so many columns.
template <u32 WARPS, u32 COLUMNS> struct SumsRoom {
    // Those of four heads come at once; rows are so long that what is written there lies in few banks twice.
    float queries[COLUMNS][SUMS_HEADS + 4], sums[WARPS][SUMS_HEADS][SUMS_COLUMNS];
};

// A query: a row of the step and a head.
struct RowHead {
    u32 row, head;
};

struct Sums {
    const StepView& step;
    const EvictionState& layer;
    const Attention& op;
    const Parts& parts;
    const Span& span; // as the layer has it
    Bound bound;
    u32 kv_head;

    // For `SUMS_COLUMNS` columns of values from the first, and `count` queries, which `query` numbers. Those that have the
    // first columns also remember the queries, if that is asked for. `wait`: for the queries; no step changes sums.
    // `put(i, column, y)`: takes what a query has in a column; `put_top(i, top)`: its score, of a whole warp. All threads of a
    // block.
    template <u32 WARPS, u32 COLUMNS, typename Query, typename Wait, typename Put, typename PutTop>
    DEVICE void add(u32 first_column, u32 count, const Query& query, SumsRoom<WARPS, COLUMNS>& room, const Wait& wait,
                    const Put& put, const PutTop& put_top) const {
        if (layer.is_f16)
            add_stored<f16>(first_column, count, query, room, wait, put, put_top);
        else
            add_stored<float>(first_column, count, query, room, wait, put, put_top);
    }

    template <typename Stored, u32 WARPS, u32 COLUMNS, typename Query, typename Wait, typename Put, typename PutTop>
    DEVICE void add_stored(u32 first_column, u32 count, const Query& query, SumsRoom<WARPS, COLUMNS>& room,
                           const Wait& wait, const Put& put, const PutTop& put_top) const {
        const u32 key_dim = layer.pages.key_dim, value_dim = layer.pages.value_dim;
        const u64 of_head = u64(span.slot) * layer.pages.kv_heads + kv_head;
        const Stored* covariance = static_cast<const Stored*>(layer.covariances) + of_head * key_dim * value_dim;
        const float *mean_key = layer.vectors_of(span.slot, kv_head), *variance = mean_key + key_dim;
        const float* mean_value = variance + key_dim;
        const u32 column = first_column + 2 * lane_id(), columns = column < value_dim ? value_dim - column : 0;
        const bool is_aligned = value_dim % 2 == 0 && columns > 0, is_first = first_column == 0;
        // Rows of the covariance that a warp asks for at once: all, if they are few.
        constexpr u32 ALL = COLUMNS / WARPS, ROWS = ALL <= 32 ? ALL : 16;
        Two<Stored> x[ROWS];
        const auto load = [&](u32 begin) {
#pragma unroll
            for (u32 i = 0; i < ROWS; ++i) {
                const u32 c = begin + i * WARPS;
                x[i] = {};
                if (c < key_dim) x[i].load(covariance + u64(c) * value_dim + column, is_aligned, columns);
            }
        };
        // Everything that is of no query comes before the wait for these.
        constexpr u32 EACH = (COLUMNS + 31) / 32;
        float of_key[EACH] = {}, of_variance[EACH] = {};
        if (is_first) {
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                const u32 c = lane_id() + 32 * i;
                if (c < key_dim) of_key[i] = load_float(mean_key + c), of_variance[i] = load_float(variance + c);
            }
        }
        // A thread puts together the same column of every query it has.
        static_assert(32 * WARPS % SUMS_COLUMNS == 0, "");
        const u32 own = first_column + threadIdx.x % SUMS_COLUMNS;
        const float mean_of_own = own < value_dim ? load_float(mean_value + own) : 0.0f;
        load(warp_id());
        wait();
        for (u32 first = 0; first < count; first += SUMS_HEADS) {
            const u32 some = min(count - first, SUMS_HEADS);
            __syncthreads();
            for (u32 i = threadIdx.x; i < SUMS_HEADS * key_dim; i += 32 * WARPS) {
                const u32 g = i / key_dim, c = i % key_dim;
                if (g >= some) continue;
                const RowHead of = query(first + g);
                room.queries[c][g] = load_float(op.q + (u64(of.row) * op.heads + of.head) * key_dim + c) * layer.scale;
            }
            __syncthreads();
            if (is_first) {
                for (u32 g = warp_id(); g < some; g += WARPS) {
                    MeanScore sum;
#pragma unroll
                    for (u32 i = 0; i < EACH; ++i) {
                        const u32 c = lane_id() + 32 * i;
                        if (c < key_dim) sum.add(room.queries[c][g], of_key[i], of_variance[i]);
                    }
                    put_top(first + g, sum.all(bound));
                }
            }
            float low[SUMS_HEADS] = {}, high[SUMS_HEADS] = {};
            for (u32 begin = warp_id(); begin < key_dim; begin += ROWS * WARPS) {
                if (first > 0 || begin >= WARPS) load(begin);
                // Four heads at a time.
#pragma unroll
                for (u32 half = 0; half < SUMS_HEADS; half += 4) {
                    if (half >= some) break;
#pragma unroll
                    for (u32 i = 0; i < ROWS; ++i) {
                        // Behind the last row are zeros.
                        const float4 q = *reinterpret_cast<const float4*>(&room.queries[min(begin + i * WARPS, key_dim - 1)][half]);
                        const float2 two = x[i].both();
                        low[half] = fmaf(q.x, two.x, low[half]), high[half] = fmaf(q.x, two.y, high[half]);
                        low[half + 1] = fmaf(q.y, two.x, low[half + 1]), high[half + 1] = fmaf(q.y, two.y, high[half + 1]);
                        low[half + 2] = fmaf(q.z, two.x, low[half + 2]), high[half + 2] = fmaf(q.z, two.y, high[half + 2]);
                        low[half + 3] = fmaf(q.w, two.x, low[half + 3]), high[half + 3] = fmaf(q.w, two.y, high[half + 3]);
                    }
                }
            }
#pragma unroll
            for (u32 g = 0; g < SUMS_HEADS; ++g) {
                if (g >= some) break;
                *reinterpret_cast<float2*>(&room.sums[warp_id()][g][2 * lane_id()]) = make_float2(low[g], high[g]);
            }
            __syncthreads();
            for (u32 i = threadIdx.x; i < some * SUMS_COLUMNS; i += 32 * WARPS) {
                const u32 g = i / SUMS_COLUMNS;
                if (own >= value_dim) continue;
                float sum = 0.0f;
#pragma unroll
                for (u32 w = 0; w < WARPS; ++w) sum += room.sums[w][g][i % SUMS_COLUMNS];
                put(first + g, own, bound.count * fmaf(LN2, sum, mean_of_own));
            }
            if (op.asks != 0 && is_first) {
                for (u32 g = 0; g < some; ++g) {
                    const RowHead of = query(first + g);
                    remember_query(step, layer, op.q, of.row, of.head * key_dim, key_dim);
                }
            }
        }
    }

    // Where the part of a query is: the last, whatever it sees of the tokens that are held.
    DEVICE u64 place_of(RowHead of) const {
        return (u64(of.row - parts.first_row) * op.heads + of.head) * parts.count + parts.count - 1;
    }
};

// What a layer evicts of a sequence.
struct Leaving {
    u32 layer;      // among those that evict tokens
    u32 table;      // where its pages begin in what was brought for all layers
    u32 held, keep; // tokens, before and after
    u32 stayed;     // of these the first, which have positions of their own
    u32 since;      // the position of those behind them
};

// Of several layers at once: which tokens go, and which rows move where.
struct Moving {
    const EvictionState* layers;
    const Leaving* leaving;
    const u32* tables;
    u32* gone;   // [layers][heads * most], in a layer [kv_heads][held - keep], ascending
    u32* moves;  // [layers][heads][most] of from, to
    u32* counts; // [layers][heads]: of moves
    u32 heads, most; // the most KV heads of a layer, and the most that go or move of one of them

    DEVICE u64 number(u32 leaving, u32 head) const { return u64(leaving) * heads + head; }
};

static_assert(sizeof(Leaving) == 24 && sizeof(Moving) == 56, "as in src/ops/evict.rs");
