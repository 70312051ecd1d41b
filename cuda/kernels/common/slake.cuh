// What slots remember of a layer so that tokens of its pages can be given up, and of those that were (ALGORITHMS 5).
#pragma once
#include "common/attention.cuh"

struct GivenUp {
    float* scores;     // [slots][kv_heads][capacity]
    float* vectors;    // [slots][kv_heads][mean key: key_dim | variance of the key: key_dim | mean value: value_dim]
    void* covariances; // [slots][kv_heads][key_dim][value_dim]
    u16* queries;      // [slots][window][heads * key_dim] in f16, that of a position at its remainder
    Pages pages;
    u32 heads, window, capacity;
    u32 ordinal; // of the page store
    float scale; // what makes powers of 2 of scores
    u32 padding;

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

static_assert(sizeof(GivenUp) == 96, "as in src/given_up.rs");
