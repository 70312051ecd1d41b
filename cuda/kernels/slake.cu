// Sequences that evict tokens, in a step and at its end: the last queries are remembered, what was evicted is one more
// part of a context, and tokens that were read are scored (ALGORITHMS 5.3, 5.4).
#include "common/slake.cuh"

// A block per row.
KERNEL slake_ask(StepView step, EvictionState layer, const float* q) {
    let_next_begin();
    wait_for_inputs();
    remember_query(step, layer, q, blockIdx.x, 0, layer.heads * layer.pages.key_dim);
}

static constexpr u32 PART_THREADS = 256, MOST_COLUMNS = 640;

// What was evicted as one more part of the contexts of the rows that are meant. A block per row, KV head and
// `SUMS_COLUMNS` columns of the value.
KERNEL __launch_bounds__(PART_THREADS) slake_part(StepView step, EvictionState layer, Attention op, Parts parts) {
    __shared__ SumsRoom<PART_THREADS / 32, MOST_COLUMNS> room;
    let_next_begin();
    wait_for_inputs();
    const u32 row = parts.first_row + blockIdx.x, kv_head = blockIdx.y, number = step.row_span[row];
    const Bound bound = step.bound(number, layer.ordinal);
    if (bound.count == 0.0f) return;
    const Span span = step.span_in(number, layer.ordinal);
    const u32 group = op.heads / layer.pages.kv_heads;
    const Sums sums = {step, layer, op, parts, span, bound, kv_head};
    const auto query = [&](u32 i) { return RowHead{row, kv_head * group + i}; };
    sums.add(
        blockIdx.z * SUMS_COLUMNS, group, query, room, [] {},
        [&](u32 i, u32 c, float y) { parts.mixed[sums.place_of(query(i)) * layer.pages.value_dim + c] = y; },
        [&](u32 i, float top) {
            if (lane_id() == 0) parts.tops[sums.place_of(query(i))] = make_float2(top, bound.count);
        });
}

// Adds the weights of the committed rows of a span to the scores of what they have read, which fade before. A block per
// KV head and layer. Dynamic shared memory: the scores of `at_once` query heads, `SCORED` at most, for all tokens there is
// room for.
static constexpr u32 SCORE_THREADS = 256, SCORED = 4;
// Tokens whose keys a warp asks for at once: with their heads as many sums as it has lanes.
static constexpr u32 SCORED_TOKENS = 32 / SCORED;

// Of `N` numbers a lane, 32 at first, the sum over all lanes of the one with its number.
template <u32 N> DEVICE float sum_of_own(const float (&x)[N]) {
    if constexpr (N == 1) {
        return x[0];
    } else {
        const bool is_upper = lane_id() & (N / 2);
        float half[N / 2];
#pragma unroll
        for (u32 i = 0; i < N / 2; ++i) {
            const float given = is_upper ? x[i] : x[i + N / 2], kept = is_upper ? x[i + N / 2] : x[i];
            half[i] = kept + __shfl_xor_sync(ALL_LANES, given, N / 2);
        }
        return sum_of_own(half);
    }
}

// Scores of some query heads for the tokens of a warp, `SCORED_TOKENS` of them from `begin` on, to `all`.
template <u32 KV>
DEVICE void score(const Pages& pages, const u32* table, u32 kv_head, const float (&queries)[SCORED][MOST_COLUMNS],
                  u32 heads, u32 begin, u32 tokens, float* all, u32 capacity) {
    // Columns of a lane whose keys are asked for at once.
    constexpr u32 AT_ONCE = 4;
    const u32 key_dim = pages.key_dim;
    const u8* keys[SCORED_TOKENS];
    float sums[32] = {};
#pragma unroll
    for (u32 n = 0; n < SCORED_TOKENS; ++n) {
        const u32 t = min(begin + n, tokens - 1);
        const HeadPage page = head_page<KV>(pages, table[t >> pages.shift], kv_head);
        keys[n] = page.keys + (t & (pages.page_size() - 1)) * page.key_stride;
    }
    for (u32 first = lane_id(); first < key_dim; first += 32 * AT_ONCE) {
        float k[AT_ONCE][SCORED_TOKENS];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i)
#pragma unroll
            for (u32 n = 0; n < SCORED_TOKENS; ++n) {
                const u32 c = first + 32 * i;
                k[i][n] = c < key_dim ? element<KV>(keys[n], c) : 0.0f;
            }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i)
#pragma unroll
            for (u32 g = 0; g < SCORED; ++g) {
                const float q = queries[g][min(first + 32 * i, key_dim - 1)];
#pragma unroll
                for (u32 n = 0; n < SCORED_TOKENS; ++n) sums[n * SCORED + g] = fmaf(q, k[i][n], sums[n * SCORED + g]);
            }
    }
    const float sum = sum_of_own(sums);
    const u32 t = begin + lane_id() / SCORED, g = lane_id() % SCORED;
    float by = 1.0f;
    if constexpr (has_scales<KV>()) {
        const u32 one = min(t, tokens - 1);
        const HeadPage page = head_page<KV>(pages, table[one >> pages.shift], kv_head);
        by = to_float(page.key_scales[one & (pages.page_size() - 1)]);
    }
    if (t < tokens && g < heads) all[g * capacity + t] = sum * by;
}

template <u32 KV> DEVICE void rescore(const StepView& step, const EvictionState* layers, u32 number, u32 accepted, u32 at_once) {
    extern __shared__ __align__(16) u8 bytes[];
    float* all = reinterpret_cast<float*>(bytes);
    __shared__ float queries[SCORED][MOST_COLUMNS], tops[SCORED], inverses[SCORED];
    const EvictionState layer = layers[blockIdx.y];
    const Pages pages = layer.pages;
    const u32 kv_head = blockIdx.x, key_dim = pages.key_dim, capacity = layer.capacity;
    const Bound bound = step.bound(number, layer.ordinal);
    if (kv_head >= pages.kv_heads || !bound.is_bounded()) return;
    const Span span = step.spans[number];
    float* scores = layer.scores + (u64(span.slot) * pages.kv_heads + kv_head) * capacity;
    if (bound.held + span.rows > capacity || span.rows > layer.window) {
        // Nobody has scored these tokens; what stands there is of others.
        for (u32 t = bound.held + threadIdx.x; t < min(bound.held + accepted, capacity); t += SCORE_THREADS)
            scores[t] = 0.0f;
        return;
    }
    const u32* table = step.table(span.slot, layer.ordinal);
    for (u32 r = 0; r < accepted; ++r) {
        const u32 tokens = bound.held + r + 1;
        const u64 at = u64(span.slot) * layer.window + (span.context + r) % layer.window;
        const u16* asked = layer.queries + (at * layer.heads + kv_head * layer.group()) * key_dim;
        for (u32 first = 0; first < layer.group(); first += at_once) {
            const u32 heads = min(layer.group() - first, at_once);
            __syncthreads();
            for (u32 i = threadIdx.x; i < SCORED * key_dim; i += SCORE_THREADS) {
                const u32 g = i / key_dim, c = i % key_dim;
                queries[g][c] = g < heads ? to_float(f16{asked[(first + g) * key_dim + c]}) * layer.scale : 0.0f;
            }
            __syncthreads();
            for (u32 begin = warp_id() * SCORED_TOKENS; begin < tokens; begin += SCORE_THREADS / 32 * SCORED_TOKENS)
                score<KV>(pages, table, kv_head, queries, heads, begin, tokens, all, capacity);
            __syncthreads();
            // A warp for each head finds what its weights are relative to.
            if (warp_id() < heads) {
                const float* x = all + warp_id() * capacity;
                const bool has_sums = bound.count > 0.0f;
                const float beside = has_sums ? layer.mean_score(bound, span.slot, kv_head, queries[warp_id()]) : MINUS_INFINITY;
                float most = beside, total = 0.0f;
                for (u32 t = lane_id(); t < tokens; t += 32) most = fmaxf(most, x[t]);
                most = warp_max(most);
                for (u32 t = lane_id(); t < tokens; t += 32) total += exp2f(x[t] - most);
                total = warp_sum(total);
                if (has_sums) total = fmaf(bound.count, exp2f(beside - most), total);
                if (lane_id() == 0) tops[warp_id()] = most, inverses[warp_id()] = 1.0f / total;
            }
            __syncthreads();
            for (u32 t = threadIdx.x; t < tokens; t += SCORE_THREADS) {
                float sum = t + 1 == tokens && first == 0 ? 0.0f : (first == 0 ? 0.9f : 1.0f) * scores[t];
                for (u32 g = 0; g < heads; ++g) sum = fmaf(exp2f(all[g * capacity + t] - tops[g]), inverses[g], sum);
                scores[t] = sum;
            }
        }
    }
}

#define OF_TYPE(name, KV)                                                                                             \
    KERNEL __launch_bounds__(SCORE_THREADS, 2)                                                                        \
        slake_rescore_##name(StepView step, const EvictionState* layers, u32 number, u32 accepted, u32 at_once) {     \
        rescore<KV>(step, layers, number, accepted, at_once);                                                         \
    }

OF_TYPE(f32, KV_F32)
OF_TYPE(f16, KV_F16)
OF_TYPE(bf16, KV_BF16)
OF_TYPE(q8_0, KV_Q8_0)
OF_TYPE(fp8, KV_F8)
