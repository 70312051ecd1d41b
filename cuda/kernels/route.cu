// The choice of experts (`Route` of backend/src/op.rs). A warp per row.
#include "common/order.cuh"
#include "common/warp.cuh"

static constexpr u32 NONE = 0xffffffffu;

// A value and where it is.
struct Best {
    float value;
    u32 at;

    // Takes what is larger, or as large and further ahead.
    DEVICE void meet(float other, u32 other_at) {
        const bool better = at == NONE || other > value || (other == value && other_at < at);
        if (other_at != NONE && better) {
            value = other;
            at = other_at;
        }
    }

    // The best one of all lanes.
    DEVICE void meet_lanes() {
#pragma unroll
        for (u32 offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, value, offset);
            const u32 other_at = __shfl_xor_sync(ALL_LANES, at, offset);
            meet(other, other_at);
        }
    }
};

// The best of `values[count]` that no lane has taken yet; `taken` has a bit for each of a lane's values.
DEVICE Best best_of(const float* values, u32 count, u32& taken) {
    Best best{0.0f, NONE};
    for (u32 at = lane_id(), bit = 1; at < count; at += 32, bit <<= 1) {
        if (!(taken & bit)) best.meet(values[at], at);
    }
    best.meet_lanes();
    if (best.at % 32 == lane_id()) taken |= 1u << best.at / 32;
    return best;
}

// Scores of all experts: softmax in f64 as many of them are small, or sigmoids.
DEVICE void score(const float* logits, float* scores, u32 experts, u32 is_softmax) {
    if (!is_softmax) {
        for (u32 i = lane_id(); i < experts; i += 32) scores[i] = sigmoid(logits[i]);
        return;
    }
    float most = __int_as_float(0xff800000);
    for (u32 i = lane_id(); i < experts; i += 32) most = fmaxf(most, logits[i]);
    most = warp_max(most);
    double total = 0.0;
    for (u32 i = lane_id(); i < experts; i += 32) total += exp(double(logits[i] - most));
#pragma unroll
    for (u32 offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(ALL_LANES, total, offset);
    for (u32 i = lane_id(); i < experts; i += 32) scores[i] = float(exp(double(logits[i] - most)) / total);
}

// Takes the experts of all but the best groups out of the competition.
DEVICE void keep_best_groups(float* merits, float* of_groups, u32 experts, u32 groups, u32 active) {
    const u32 group = experts / groups;
    const float least = __int_as_float(0xff800000);
    for (u32 g = lane_id(); g < groups; g += 32) {
        float first = least, second = least;
        for (u32 i = 0; i < group; ++i) {
            const float merit = merits[g * group + i];
            second = fmaxf(second, fminf(first, merit));
            first = fmaxf(first, merit);
        }
        of_groups[g] = group > 1 ? first + second : first;
    }
    __syncwarp();
    u32 taken = 0;
    for (u32 i = 0; i < active; ++i) best_of(of_groups, groups, taken);
    // Group `g` is lane `g % 32`'s.
    for (u32 g = lane_id(), bit = 1; g < groups; g += 32, bit <<= 1) {
        if (!(taken & bit)) {
            for (u32 i = 0; i < group; ++i) merits[g * group + i] = least;
        }
    }
    __syncwarp();
}

// At most 1024 experts. Shared memory: scores, merits and the merits of groups.
KERNEL route_rows(const float* logits, const float* bias, float* chosen, float* weights, u32 experts, u32 active,
                  u32 is_softmax, u32 groups, u32 active_groups, u32 normalise, float scale) {
    let_next_begin();
    let_next_begin();
    wait_for_inputs();
    extern __shared__ float shared[];
    float *scores = shared, *merits = scores + experts, *of_groups = merits + experts;
    score(logits + u64(blockIdx.x) * experts, scores, experts, is_softmax);
    __syncwarp();
    for (u32 i = lane_id(); i < experts; i += 32) merits[i] = bias == nullptr ? scores[i] : scores[i] + bias[i];
    __syncwarp();
    if (groups > 0) keep_best_groups(merits, of_groups, experts, groups, active_groups);
    chosen += u64(blockIdx.x) * active;
    weights += u64(blockIdx.x) * active;
    u32 taken = 0;
    float total = 0.0f;
    for (u32 i = 0; i < active; ++i) {
        const u32 expert = best_of(merits, experts, taken).at;
        total += scores[expert];
        if (i % 32 == lane_id()) {
            chosen[i] = float(expert);
            weights[i] = scores[expert];
        }
    }
    for (u32 i = lane_id(); i < active; i += 32) weights[i] = (normalise ? weights[i] / total : weights[i]) * scale;
}
