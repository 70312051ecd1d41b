// Rotation of queries and keys, and keys and values into pages; rows of pages in and out.
#include "common/norm.cuh"
#include "common/order.cuh"
#include "common/pages.cuh"
#include "common/rotation.cuh"
#include "common/step.cuh"

// Norms of the heads of q and k that are made here, or null.
struct HeadNorms {
    const float *q, *k;
    float q_eps, k_eps;
};

static_assert(sizeof(HeadNorms) == 24, "as in src/ops/rope_store.rs");

// A norm of a head of at most 256 columns, whole fours, by a warp: what `norm_rows_by_4` of norm.cu does with as many threads.
struct HeadNorm {
    const float* weight;
    u32 columns;
    float eps;
    float4 by[2];

    DEVICE u32 at(u32 i) const { return 4 * (i * 32 + lane_id()); }

    // Weights are asked for before anything is waited for.
    DEVICE HeadNorm(const float* weight, u32 columns, float eps) : weight(weight), columns(columns), eps(eps) {
        if (weight == nullptr) return;
#pragma unroll
        for (u32 i = 0; i < 2; ++i)
            if (at(i) < columns) by[i] = *reinterpret_cast<const float4*>(weight + at(i));
    }

    // Norms `x` in place.
    DEVICE void apply(float* x) const {
        if (weight == nullptr) return;
        float4 kept[2];
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            kept[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (at(i) < columns) kept[i] = *reinterpret_cast<const float4*>(x + at(i));
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) sum += square_sum(kept[i]);
        const float inverse = inverse_root(warp_sum(sum), columns, eps);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            if (at(i) >= columns) continue;
            kept[i].x = normed(kept[i].x, inverse, by[i].x), kept[i].y = normed(kept[i].y, inverse, by[i].y);
            kept[i].z = normed(kept[i].z, inverse, by[i].z), kept[i].w = normed(kept[i].w, inverse, by[i].w);
            *reinterpret_cast<float4*>(x + at(i)) = kept[i];
        }
        __syncwarp();
    }
};

// Norms and rotates the heads of q and k in place, and appends k and v. A block per row and eight heads, a warp per head: those
// of q first, then those of k, then those of v, unless these are columns of k. `pairs == 0`: nothing rotates. `by_place`: a
// position is the place in the table.
template <u32 KV>
DEVICE void rope_store(const StepView& step, const Pages& pages, u32 ordinal, float* q, float* k, const float* v,
                       u32 heads, u32 key_dim, const float* frequencies, u32 pairs, u32 adjacent, float magnitude,
                       u32 by_place, const HeadNorms& norms) {
    __shared__ Angles angles;
    let_next_begin();
    // The step is there before its first kernel begins.
    const u32 row = blockIdx.x;
    const Span& span = step.spans[step.row_span[row]];
    const u32 place_at = step.span_in(step.row_span[row], ordinal).context + row - span.first;
    angles.set(by_place ? place_at : span.context + row - span.first, frequencies, pairs, magnitude);
    u32 head = blockIdx.y * (blockDim.x / 32) + warp_id();
    const bool is_query = head < heads, is_value = head >= heads + pages.kv_heads;
    const HeadNorm norm(is_value ? nullptr : is_query ? norms.q : norms.k, key_dim, is_query ? norms.q_eps : norms.k_eps);
    const u32 page = is_query ? 0 : step.table(span.slot, ordinal)[place_at >> pages.shift];
    wait_for_inputs();
    __syncthreads();
    if (head >= heads + (pages.latent ? 1 : 2) * pages.kv_heads) return;
    if (!is_query) head = (head - heads) % pages.kv_heads;
    const u32 token = place_at & (pages.page_size() - 1);
    const HeadPage place = head_page<KV>(pages, page, head);
    const float* value = v + (u64(row) * pages.kv_heads + head) * pages.value_dim;
    if (is_value) {
        write_row<KV>(place.values + token * place.value_stride, place.value_scales + token, value, pages.value_dim, value, 0);
        return;
    }
    const u32 columns = is_query || !pages.latent ? key_dim : key_dim - pages.value_dim;
    float* x = is_query ? q + (u64(row) * heads + head) * columns : k + (u64(row) * pages.kv_heads + head) * columns;
    norm.apply(x);
    angles.turn(x, pairs, adjacent);
    if (is_query) return;
    __syncwarp();
    u8* key_row = place.keys + token * place.key_stride;
    if (pages.latent) {
        write_row<KV>(key_row, place.key_scales + token, value, pages.value_dim, x, columns);
    } else {
        write_row<KV>(key_row, place.key_scales + token, x, columns, x, 0);
    }
}

// Rows of a page to f32, `[rows][kv_heads][elements of a head]`. A block per row and KV head.
template <u32 KV> DEVICE void save_page(const Pages& pages, u32 page, float* out) {
    const u32 token = blockIdx.x, head = blockIdx.y, elements = pages.head_elements();
    const HeadPage place = head_page<KV>(pages, page, head);
    out += (u64(token) * pages.kv_heads + head) * elements;
    for (u32 i = threadIdx.x; i < elements; i += blockDim.x) {
        const bool is_key = i < pages.key_dim;
        const u8* row = is_key ? place.keys + token * place.key_stride : place.values + token * place.value_stride;
        float x = element<KV>(row, is_key ? i : i - pages.key_dim);
        if constexpr (has_scales<KV>()) x *= to_float((is_key ? place.key_scales : place.value_scales)[token]);
        out[i] = x;
    }
}

// The opposite; a warp per row and KV head.
template <u32 KV> DEVICE void load_page(const Pages& pages, u32 page, const float* values) {
    const u32 token = blockIdx.x, head = blockIdx.y, elements = pages.head_elements();
    const HeadPage place = head_page<KV>(pages, page, head);
    values += (u64(token) * pages.kv_heads + head) * elements;
    write_row<KV>(place.keys + token * place.key_stride, place.key_scales + token, values, pages.key_dim, values, 0);
    if (!pages.latent) {
        values += pages.key_dim;
        write_row<KV>(place.values + token * place.value_stride, place.value_scales + token, values, pages.value_dim,
                      values, 0);
    }
}

#define OF_TYPE(name, KV)                                                                                             \
    KERNEL rope_store_##name(StepView step, Pages pages, u32 ordinal, float* q, float* k, const float* v, u32 heads,  \
                             u32 key_dim, const float* frequencies, u32 pairs, u32 adjacent, float magnitude,         \
                             u32 by_place, HeadNorms norms) {                                                         \
        rope_store<KV>(step, pages, ordinal, q, k, v, heads, key_dim, frequencies, pairs, adjacent, magnitude,        \
                       by_place, norms);                                                                              \
    }                                                                                                                 \
    KERNEL save_page_##name(Pages pages, u32 page, float* out) { save_page<KV>(pages, page, out); }                   \
    KERNEL load_page_##name(Pages pages, u32 page, const float* values) { load_page<KV>(pages, page, values); }

OF_TYPE(f32, KV_F32)
OF_TYPE(f16, KV_F16)
OF_TYPE(bf16, KV_BF16)
OF_TYPE(q8_0, KV_Q8_0)
OF_TYPE(fp8, KV_F8)
