// Sequences that give up tokens, in a step and at its end: the last queries are remembered, what was given up is one more
// part of a context, and tokens that were read are scored (ALGORITHMS 5.3, 5.4).
#include "common/slake.cuh"

// Keeps the queries of the last rows of every span. A block per row.
KERNEL slake_ask(StepView step, GivenUp layer, const float* q) {
    let_next_begin();
    wait_for_inputs();
    const u32 row = blockIdx.x, columns = layer.heads * layer.pages.key_dim;
    const Span& span = step.spans[step.row_span[row]];
    const u32 behind = row - span.first;
    if (span.rows - behind > layer.window) return;
    u16* to = layer.queries + (u64(span.slot) * layer.window + (span.context + behind) % layer.window) * columns;
    for (u32 i = threadIdx.x; i < columns; i += blockDim.x) to[i] = to_f16(q[u64(row) * columns + i]).bits;
}

// What was given up as one more part of the contexts of the rows that are meant: each of its tokens has the weight of
// their mean key, and their values the first order of how far their keys are from it. A block per row, KV head and
// `PART_COLUMNS` columns of the value.
static constexpr u32 PART_THREADS = 256, PART_WARPS = PART_THREADS / 32, PART_COLUMNS = 64, PART_HEADS = 8;
static constexpr u32 MOST_COLUMNS = 640;

template <typename Stored> DEVICE void part(const StepView& step, const GivenUp& layer, const Attention& op, Parts parts) {
    __shared__ float queries[PART_HEADS][MOST_COLUMNS], sums[PART_WARPS][PART_HEADS][PART_COLUMNS];
    let_next_begin();
    wait_for_inputs();
    const Pages& pages = layer.pages;
    const u32 row = parts.first_row + blockIdx.x, kv_head = blockIdx.y, first_column = blockIdx.z * PART_COLUMNS;
    const u32 number = step.row_span[row], key_dim = pages.key_dim, value_dim = pages.value_dim;
    const Bound bound = step.bound(number, layer.ordinal);
    if (bound.count == 0.0f) return;
    const Span span = step.span_in(number, layer.ordinal);
    const u32 tokens = span.context + row - span.first + 1;
    const u32 index = ceil_div(tokens, part_tokens(tokens, pages.kv_heads, true));
    const u64 of_head = u64(span.slot) * pages.kv_heads + kv_head;
    const Stored* covariance = static_cast<const Stored*>(layer.covariances) + of_head * key_dim * value_dim;
    const float* mean_value = layer.vectors_of(span.slot, kv_head) + 2 * key_dim;
    const u32 column = first_column + 2 * lane_id(), group = op.heads / pages.kv_heads;
    for (u32 first = 0; first < group; first += PART_HEADS) {
        const u32 heads = min(group - first, PART_HEADS);
        const u32 head = kv_head * group + first;
        __syncthreads();
        for (u32 i = threadIdx.x; i < PART_HEADS * key_dim; i += PART_THREADS) {
            const u32 g = i / key_dim, c = i % key_dim;
            queries[g][c] = g < heads ? op.q[(u64(row) * op.heads + head + g) * key_dim + c] * layer.scale : 0.0f;
        }
        __syncthreads();
        float low[PART_HEADS] = {}, high[PART_HEADS] = {};
#pragma unroll 4
        for (u32 c = warp_id(); c < key_dim; c += PART_WARPS) {
            const Stored* at = covariance + u64(c) * value_dim + column;
            const float a = column < value_dim ? to_float(at[0]) : 0.0f, b = column + 1 < value_dim ? to_float(at[1]) : 0.0f;
#pragma unroll
            for (u32 g = 0; g < PART_HEADS; ++g) {
                low[g] = fmaf(queries[g][c], a, low[g]);
                high[g] = fmaf(queries[g][c], b, high[g]);
            }
        }
#pragma unroll
        for (u32 g = 0; g < PART_HEADS; ++g) {
            sums[warp_id()][g][2 * lane_id()] = low[g];
            sums[warp_id()][g][2 * lane_id() + 1] = high[g];
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < heads * PART_COLUMNS; i += PART_THREADS) {
            const u32 g = i / PART_COLUMNS, c = first_column + i % PART_COLUMNS;
            if (c >= value_dim) continue;
            float sum = 0.0f;
#pragma unroll
            for (u32 w = 0; w < PART_WARPS; ++w) sum += sums[w][g][i % PART_COLUMNS];
            const u64 query = u64(row - parts.first_row) * op.heads + head + g;
            parts.mixed[(query * parts.count + index) * value_dim + c] = bound.count * fmaf(LN2, sum, mean_value[c]);
        }
        if (blockIdx.z != 0 || warp_id() >= heads) continue;
        const float top = layer.mean_score(bound, span.slot, kv_head, queries[warp_id()]);
        const u64 query = u64(row - parts.first_row) * op.heads + head + warp_id();
        if (lane_id() == 0) parts.tops[query * parts.count + index] = make_float2(top, bound.count);
    }
}

KERNEL __launch_bounds__(PART_THREADS) slake_part_f32(StepView step, GivenUp layer, Attention op, Parts parts) {
    part<float>(step, layer, op, parts);
}

KERNEL __launch_bounds__(PART_THREADS) slake_part_f16(StepView step, GivenUp layer, Attention op, Parts parts) {
    part<f16>(step, layer, op, parts);
}

// Adds the weights of the committed rows of a span to the scores of what they have read, which fade before. A block per
// KV head and layer. Dynamic shared memory: the scores of `at_once` query heads, `SCORED` at most, for all tokens there is
// room for.
static constexpr u32 SCORE_THREADS = 256, SCORED = 4;

template <u32 KV> DEVICE void rescore(const StepView& step, const GivenUp* layers, u32 number, u32 accepted, u32 at_once) {
    extern __shared__ __align__(16) u8 bytes[];
    float* all = reinterpret_cast<float*>(bytes);
    __shared__ float queries[SCORED][MOST_COLUMNS], besides[SCORED];
    const GivenUp layer = layers[blockIdx.y];
    const Pages& pages = layer.pages;
    const u32 kv_head = blockIdx.x, key_dim = pages.key_dim;
    const Bound bound = step.bound(number, layer.ordinal);
    if (kv_head >= pages.kv_heads || !bound.is_bounded()) return;
    const Span& span = step.spans[number];
    float* scores = layer.scores + (u64(span.slot) * pages.kv_heads + kv_head) * layer.capacity;
    if (bound.held + span.rows > layer.capacity || span.rows > layer.window) {
        // Nobody has scored these tokens; what stands there is of others.
        for (u32 t = bound.held + threadIdx.x; t < min(bound.held + accepted, layer.capacity); t += SCORE_THREADS)
            scores[t] = 0.0f;
        return;
    }
    const u32* table = step.table(span.slot, layer.ordinal);
    for (u32 r = 0; r < accepted; ++r) {
        const u32 tokens = bound.held + r + 1;
        // A thread has the same tokens throughout.
        for (u32 t = threadIdx.x; t < tokens; t += SCORE_THREADS) scores[t] = t + 1 == tokens ? 0.0f : 0.9f * scores[t];
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
            if (warp_id() < heads && bound.count > 0.0f) {
                const float score = layer.mean_score(bound, span.slot, kv_head, queries[warp_id()]);
                if (lane_id() == 0) besides[warp_id()] = score;
            }
#pragma unroll 2
            for (u32 t = warp_id(); t < tokens; t += SCORE_THREADS / 32) {
                const HeadPage page = head_page<KV>(pages, table[t >> pages.shift], kv_head);
                const u32 in_page = t & (pages.page_size() - 1);
                const u8* key = page.keys + in_page * page.key_stride;
                float sums[SCORED] = {};
                for (u32 c = lane_id(); c < key_dim; c += 32) {
                    const float k = element<KV>(key, c);
#pragma unroll
                    for (u32 g = 0; g < SCORED; ++g) sums[g] = fmaf(queries[g][c], k, sums[g]);
                }
                const float by = has_scales<KV>() ? to_float(page.key_scales[in_page]) : 1.0f;
#pragma unroll
                for (u32 g = 0; g < SCORED; ++g) {
                    const float sum = warp_sum(sums[g]);
                    if (lane_id() == 0 && g < heads) all[g * layer.capacity + t] = sum * by;
                }
            }
            __syncthreads();
            for (u32 g = 0; g < heads; ++g) {
                const float* x = all + g * layer.capacity;
                float most = bound.count > 0.0f ? besides[g] : MINUS_INFINITY, total = 0.0f;
                for (u32 t = threadIdx.x; t < tokens; t += SCORE_THREADS) most = fmaxf(most, x[t]);
                most = block_max(most);
                for (u32 t = threadIdx.x; t < tokens; t += SCORE_THREADS) total += exp2f(x[t] - most);
                total = block_sum(total);
                if (bound.count > 0.0f) total = fmaf(bound.count, exp2f(besides[g] - most), total);
                for (u32 t = threadIdx.x; t < tokens; t += SCORE_THREADS) scores[t] += exp2f(x[t] - most) / total;
            }
        }
    }
}

#define OF_TYPE(name, KV)                                                                                             \
    KERNEL __launch_bounds__(SCORE_THREADS)                                                                           \
        slake_rescore_##name(StepView step, const GivenUp* layers, u32 number, u32 accepted, u32 at_once) {           \
        rescore<KV>(step, layers, number, accepted, at_once);                                                         \
    }

OF_TYPE(f32, KV_F32)
OF_TYPE(f16, KV_F16)
OF_TYPE(bf16, KV_BF16)
OF_TYPE(q8_0, KV_Q8_0)
OF_TYPE(fp8, KV_F8)
