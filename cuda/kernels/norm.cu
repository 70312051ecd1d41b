// Root-mean-square norms of groups of columns. A block per row and group; outputs may be the inputs.
#include "common/norm.cuh"
#include "common/order.cuh"
#include "common/warp.cuh"

// Fours of a group that a thread keeps; those of very large groups are read again.
static constexpr u32 KEPT = 2;

// Four columns of a group of any size, zeros behind its end.
template <bool WHOLE> DEVICE float4 four(const float* from, u32 at, u32 group) {
    if (WHOLE) return at < group ? *reinterpret_cast<const float4*>(from + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(at < group ? from[at] : 0.0f, at + 1 < group ? from[at + 1] : 0.0f,
                       at + 2 < group ? from[at + 2] : 0.0f, at + 3 < group ? from[at + 3] : 0.0f);
}

template <bool WHOLE> DEVICE void put_four(float* to, u32 at, u32 group, const float4& x) {
    if (at >= group) return;
    if constexpr (WHOLE) {
        *reinterpret_cast<float4*>(to + at) = x;
    } else {
        to[at] = x.x;
        if (at + 1 < group) to[at + 1] = x.y;
        if (at + 2 < group) to[at + 2] = x.z;
        if (at + 3 < group) to[at + 3] = x.w;
    }
}

template <typename F> DEVICE float4 each(const float4& a, const float4& b, F f) {
    return make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}

// out = x / sqrt(mean(x^2) + eps) * weight. Not a multiple of four columns: WHOLE is false.
template <bool WHOLE> DEVICE void norm(const float* x, const float* weight, float* out, u32 group, float eps) {
    let_next_begin();
    x += u64(blockIdx.x) * group, out += u64(blockIdx.x) * group;
    const auto at = [&](u32 i) { return 4 * (i * blockDim.x + threadIdx.x); };
    float4 by[KEPT], kept[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) by[i] = four<WHOLE>(weight, at(i), group);
    wait_for_inputs();
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) kept[i] = four<WHOLE>(x, at(i), group);
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) sum += square_sum(kept[i]);
    for (u32 i = KEPT; at(i) < group; ++i) sum += square_sum(four<WHOLE>(x, at(i), group));
    const float inverse = inverse_root(block_sum(sum), group, eps);
    const auto scaled = [&](float value, float weight) { return normed(value, inverse, weight); };
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) put_four<WHOLE>(out, at(i), group, each(kept[i], by[i], scaled));
    for (u32 i = KEPT; at(i) < group; ++i) {
        const float4 value = four<WHOLE>(x, at(i), group), of = four<WHOLE>(weight, at(i), group);
        put_four<WHOLE>(out, at(i), group, each(value, of, scaled));
    }
}

KERNEL __launch_bounds__(512) norm_rows(const float* x, const float* weight, float* out, u32 group, float eps) {
    norm<false>(x, weight, out, group, eps);
}

// The same for groups of whole fours.
KERNEL __launch_bounds__(512) norm_rows_by_4(const float* x, const float* weight, float* out, u32 group, float eps) {
    norm<true>(x, weight, out, group, eps);
}

// x = norm(x) * weight * activation(gate), or, with `before`, norm(x * activation(gate)) * weight. The weights of
// group `g` are row `g % weight_rows`; without a weight there is no norm either. Groups of one warp each share a block: there would
// not be enough blocks on a multiprocessor for its warps otherwise.
template <bool WHOLE>
DEVICE void gated_norm(float* x, const float* gate, const float* weight, u32 groups, u32 group, u32 weight_rows, float eps,
                       u32 activation, u32 before) {
    let_next_begin();
    const u32 number = blockIdx.x * blockDim.y + threadIdx.y;
    if (number >= groups) return wait_for_inputs();
    x += u64(number) * group, gate += u64(number) * group;
    const bool is_plain = weight == nullptr;
    weight = is_plain ? nullptr : weight + u64(number % weight_rows) * group;
    const auto at = [&](u32 i) { return 4 * (i * blockDim.x + threadIdx.x); };
    const auto weights = [&](u32 i) {
        return is_plain ? make_float4(1.0f, 1.0f, 1.0f, 1.0f) : four<WHOLE>(weight, at(i), group);
    };
    const auto activated = [&](const float4& of) {
        float x[4];
        set_four(x, of);
        activate_all(activation, x);
        return make_float4(x[0], x[1], x[2], x[3]);
    };
    const auto gates = [&](u32 i) { return activated(four<WHOLE>(gate, at(i), group)); };
    const auto product = [](float a, float b) { return a * b; };
    float4 by[KEPT], kept[KEPT], gated[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) by[i] = weights(i);
    wait_for_inputs();
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) kept[i] = four<WHOLE>(x, at(i), group), gated[i] = four<WHOLE>(gate, at(i), group);
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        if (at(i) < group) gated[i] = activated(gated[i]);
    }
    if (is_plain) {
#pragma unroll
        for (u32 i = 0; i < KEPT; ++i) put_four<WHOLE>(x, at(i), group, each(kept[i], gated[i], product));
        for (u32 i = KEPT; at(i) < group; ++i) {
            put_four<WHOLE>(x, at(i), group, each(four<WHOLE>(x, at(i), group), gates(i), product));
        }
        return;
    }
    const auto gated_before = [&](const float4& value, const float4& by) { return before ? each(value, by, product) : value; };
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) sum += square_sum(gated_before(kept[i], gated[i]));
    for (u32 i = KEPT; at(i) < group; ++i) sum += square_sum(gated_before(four<WHOLE>(x, at(i), group), gates(i)));
    const float inverse = inverse_root(block_sum(sum), group, eps);
    const auto scaled = [&](float value, float weight) { return normed(value, inverse, weight); };
    const auto finish = [&](u32 i, const float4& value, const float4& gate, const float4& weight) {
        const float4 y = each(gated_before(value, gate), weight, scaled);
        put_four<WHOLE>(x, at(i), group, before ? y : each(y, gate, product));
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) finish(i, kept[i], gated[i], by[i]);
    for (u32 i = KEPT; at(i) < group; ++i) finish(i, four<WHOLE>(x, at(i), group), gates(i), weights(i));
}

KERNEL __launch_bounds__(512) gated_norm_rows(float* x, const float* gate, const float* weight, u32 groups, u32 group,
                                              u32 weight_rows, float eps, u32 activation, u32 before) {
    gated_norm<false>(x, gate, weight, groups, group, weight_rows, eps, activation, before);
}

// The same for groups of whole fours.
KERNEL __launch_bounds__(512) gated_norm_rows_by_4(float* x, const float* gate, const float* weight, u32 groups, u32 group,
                                                   u32 weight_rows, float eps, u32 activation, u32 before) {
    gated_norm<true>(x, gate, weight, groups, group, weight_rows, eps, activation, before);
}
