// Softmax attention over pages, for every type and size: parts of the context are looked at by blocks of their own, and
// put together by `attention_merge`. Sums are in f32, exponentials to base 2.
#include "common/attention.cuh"

static constexpr u32 THREADS = 128;
// Columns of keys and values a lane has at most.
static constexpr u32 MOST = 20;

// A block has a query head of a row and a part of its context; a warp every fourth token.
template <u32 KV> DEVICE void attend(const StepView& step, const Pages& pages, const Attention& op, Parts parts) {
    __shared__ float queries[32 * MOST], values[THREADS / 32][32 * MOST], tops[THREADS / 32], sums[THREADS / 32];
    let_next_begin();
    wait_for_inputs();
    const u32 row = parts.first_row + blockIdx.z, head = blockIdx.y;
    const Span span = step.span_in(step.row_span[row], op.ordinal);
    const u32 tokens = span.context + row - span.first + 1;
    const u32 part = parts.cut(tokens, pages, span.has_sums()).length, begin = blockIdx.x * part, end = min(begin + part, tokens);
    if (begin >= end) return;
    const u32 kv_head = head / (op.heads / pages.kv_heads);
    const float* q = op.q + (u64(row) * op.heads + head) * pages.key_dim;
    for (u32 i = threadIdx.x; i < pages.key_dim; i += THREADS) queries[i] = q[i] * (op.scale * LOG2E);
    __syncthreads();
    const u32* table = step.table(span.slot, op.ordinal);
    float top = MINUS_INFINITY, sum = 0.0f, mixed[MOST];
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) mixed[i] = 0.0f;
    for (u32 token = begin + warp_id(); token < end; token += THREADS / 32) {
        const HeadPage page = head_page<KV>(pages, table[token >> pages.shift], kv_head);
        const u32 at = token & (pages.page_size() - 1);
        const u8* key = page.keys + at * page.key_stride;
        const u8* value = page.values + at * page.value_stride;
        float score = 0.0f;
        for (u32 i = lane_id(); i < pages.key_dim; i += 32) score = fmaf(queries[i], element<KV>(key, i), score);
        score = warp_sum(score);
        float weight_scale = 1.0f;
        if constexpr (has_scales<KV>()) {
            score *= to_float(page.key_scales[at]);
            weight_scale = to_float(page.value_scales[at]);
        }
        const float next = fmaxf(top, score), fade = exp2f(top - next), weight = exp2f(score - next);
        top = next;
        sum = fmaf(sum, fade, weight);
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) {
            const u32 column = i * 32 + lane_id();
            if (column < pages.value_dim) mixed[i] = fmaf(mixed[i], fade, weight * weight_scale * element<KV>(value, column));
        }
    }
#pragma unroll
    for (u32 i = 0; i < MOST; ++i) values[warp_id()][i * 32 + lane_id()] = mixed[i];
    if (lane_id() == 0) {
        tops[warp_id()] = top;
        sums[warp_id()] = sum;
    }
    __syncthreads();
    top = MINUS_INFINITY, sum = 0.0f;
    float factors[THREADS / 32];
    for (u32 w = 0; w < THREADS / 32; ++w) top = fmaxf(top, tops[w]);
    for (u32 w = 0; w < THREADS / 32; ++w) {
        factors[w] = exp2f(tops[w] - top);
        sum = fmaf(factors[w], sums[w], sum);
    }
    const u64 query = u64(row - parts.first_row) * op.heads + head;
    for (u32 column = threadIdx.x; column < pages.value_dim; column += THREADS) {
        float y = 0.0f;
        for (u32 w = 0; w < THREADS / 32; ++w) y = fmaf(factors[w], values[w][column], y);
        parts.mixed_at(query, pages.value_dim)[column] = y;
    }
    if (threadIdx.x == 0) *parts.tops_at(query) = make_float2(top, sum);
}

#define OF_TYPE(name, KV)                                                                                             \
    KERNEL __launch_bounds__(THREADS) attention_any_##name(StepView step, Pages pages, Attention op, Parts parts) {   \
        attend<KV>(step, pages, op, parts);                                                                           \
    }

OF_TYPE(f32, KV_F32)
OF_TYPE(f16, KV_F16)
OF_TYPE(bf16, KV_BF16)
OF_TYPE(q8_0, KV_Q8_0)
OF_TYPE(fp8, KV_F8)

// Puts the parts of rows together, and applies the gate. A block per row and head: its threads have four columns of every
// few parts each.
static constexpr u32 MERGE_PARTS = 1024;

KERNEL __launch_bounds__(MERGE_THREADS) attention_merge(StepView step, Pages pages, Attention op, Parts parts) {
    __shared__ float weights[MERGE_PARTS];
    __shared__ float4 sums[MERGE_THREADS];
    let_next_begin();
    // The step is there before its first kernel begins.
    const u32 row = parts.first_row + blockIdx.x, head = blockIdx.y;
    const Span span = step.span_in(step.row_span[row], op.ordinal);
    const u32 tokens = span.context + row - span.first + 1;
    const u32 parts_held = ceil_div(tokens, parts.cut(tokens, pages, span.has_sums()).length) + span.has_sums();
    const u32 count = min(parts_held, MERGE_PARTS);
    // Sums are the last part of all rows, however many tokens those see.
    const u32 last = span.has_sums() ? parts.count - 1 : count - 1;
    const auto place = [&](u32 i) { return i + 1 == count ? last : i; };
    wait_for_inputs();
    const u64 query = u64(row - parts.first_row) * op.heads + head;
    const float2* tops = parts.tops + query * parts.count;
    const float* mixed = parts.mixed + query * parts.count * pages.value_dim;
    float top = MINUS_INFINITY, sum = 0.0f;
    for (u32 i = threadIdx.x; i < count; i += MERGE_THREADS) top = fmaxf(top, tops[place(i)].x);
    top = block_max(top);
    for (u32 i = threadIdx.x; i < count; i += MERGE_THREADS) {
        const float2 mine = tops[place(i)];
        weights[i] = exp2f(mine.x - top);
        sum = fmaf(weights[i], mine.y, sum);
    }
    const float inverse = 1.0f / block_sum(sum);
    __syncthreads();
    const u64 first = (u64(row) * op.heads + head) * pages.value_dim;
    auto write = [&](u32 column, float y) {
        y *= inverse;
        op.out[first + column] = op.gate == nullptr ? y : y * sigmoid(op.gate[first + column]);
    };
    if (pages.value_dim % 4 != 0) {
        for (u32 column = threadIdx.x; column < pages.value_dim; column += MERGE_THREADS) {
            float y = 0.0f;
            for (u32 i = 0; i < count; ++i) y = fmaf(weights[i], mixed[u64(place(i)) * pages.value_dim + column], y);
            write(column, y);
        }
        return;
    }
    const u32 fours = pages.value_dim / 4, groups = MERGE_THREADS / fours;
    const u32 group = threadIdx.x / fours, four = threadIdx.x % fours;
    float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (group < groups) {
#pragma unroll 4
        for (u32 i = group; i < count; i += groups) {
            const float4 x = reinterpret_cast<const float4*>(mixed + u64(place(i)) * pages.value_dim)[four];
            const float w = weights[i];
            y.x = fmaf(w, x.x, y.x), y.y = fmaf(w, x.y, y.y), y.z = fmaf(w, x.z, y.z), y.w = fmaf(w, x.w, y.w);
        }
        sums[threadIdx.x] = y;
    }
    __syncthreads();
    for (u32 column = threadIdx.x; column < pages.value_dim; column += MERGE_THREADS) {
        float total = 0.0f;
        for (u32 i = 0; i < groups; ++i) total += reinterpret_cast<const float*>(&sums[i * fours])[column];
        write(column, total);
    }
}
