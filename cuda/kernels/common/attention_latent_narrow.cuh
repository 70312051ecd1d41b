// Attention over latent pages on all GPUs, by instructions of a warp. A block has 16 queries, and 32 tokens at a time: two times
// four warps have the scores of half of the tokens each, over a quarter of the columns, for which they keep the queries in
// registers; sixteen threads make the weights of a query; and each warp mixes 64 columns. Queries and weights are sums of 16-bit
// numbers, as in the kernels of other pages.
#pragma once
#include "common/attention_latent.cuh"

template <u32 KV> struct LatentNarrow : LatentRows<KV, 32> {
    using Base = LatentRows<KV, 32>;
    using typename Base::Arriving;
    using typename Base::Tile;
    using Base::begin, Base::end, Base::first, Base::length, Base::op, Base::queries, Base::visible;
    static constexpr u32 KEY = Base::KEY, VALUE = Base::VALUE, TOKENS = Base::TOKENS, EACH = Base::EACH;
    static constexpr u32 THREADS = Base::THREADS, STAGES = Base::STAGES, QUERIES = 16, TERMS = terms<KV>();
    // Parts that columns are cut into for scores, products of 16 columns each, and threads that have a query.
    static constexpr u32 QUARTERS = 4, PRODUCTS = KEY / 16 / QUARTERS, OF_QUERY = THREADS / QUERIES;
    static_assert(TOKENS == 2 * OF_QUERY && VALUE == 64 * THREADS / 32, "two weights to a thread, 64 columns to a warp");

    struct Room {
        Tile tiles[STAGES];
        float scores[QUARTERS][QUERIES][TOKENS + 8];
        u16 weights[TERMS][QUERIES][TOKENS + 8];
        float tops[QUERIES], sums[QUERIES], units[QUERIES], fades[QUERIES], factors[QUERIES], scales[STAGES][TOKENS];
    };
    static_assert(sizeof(Room) <= 2 * STAGES * KEY * TOKENS + (4 * QUARTERS + 2 * TERMS) * QUERIES * (TOKENS + 8) +
                                      4 * (5 * QUERIES + STAGES * TOKENS),
                  "as in src/ops/latent.rs");

    Room& shared;

    typedef u32 Queries[PRODUCTS][TERMS][4];
    typedef float Mixed[8][4];

    static DEVICE u32 quarter() { return warp_id() / 2; }

    // Queries over a power of two each, as the left side of products of this warp.
    DEVICE void load_queries(Queries& of) const {
        for (u32 i = warp_id(); i < QUERIES; i += THREADS / 32) {
            const bool is_there = first + i < queries;
            const float* q = op.q + (is_there ? this->place(i) : 0) * KEY;
            float most = 0.0f;
#pragma unroll
            for (u32 n = 0; n < KEY / 32; ++n) most = fmaxf(most, is_there ? fabsf(q[n * 32 + lane_id()]) : 0.0f);
            const float power = power_below(warp_max(most));
            if (lane_id() == 0) shared.factors[i] = power;
        }
        __syncthreads();
        const u32 group = lane_id() / 4, pair = lane_id() % 4;
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            const u32 query = group + 8 * r;
            const bool is_there = first + query < queries;
            const float* q = op.q + (is_there ? this->place(query) : 0) * KEY;
            const float inverse = is_there ? inverse_of_power(shared.factors[query]) : 0.0f;
#pragma unroll
            for (u32 k = 0; k < PRODUCTS; ++k) {
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    const u32 column = (quarter() * PRODUCTS + k) * 16 + 8 * e + 2 * pair;
                    const float2 x = *reinterpret_cast<const float2*>(q + column);
                    float low = x.x * inverse, high = x.y * inverse;
#pragma unroll
                    for (u32 t = 0; t < TERMS; ++t) of[k][t][r + 2 * e] = take_pair<KV>(low, high);
                }
            }
        }
    }

    // Of 16 tokens, over a quarter of the columns.
    DEVICE void multiply_keys(const Queries& of, u32 stage) const {
        // Terms are summed apart: so much less waits for what is ahead of it.
        float sums[TERMS][2][4];
#pragma unroll
        for (u32 i = 0; i < TERMS * 8; ++i) sums[i / 8][i / 4 % 2][i % 4] = 0.0f;
        const u32 half = warp_id() % 2, matrix = lane_id() / 8, token = half * 16 + matrix / 2 * 8 + lane_id() % 8;
#pragma unroll
        for (u32 k = 0; k < PRODUCTS; ++k) {
            const u32 all = quarter() * PRODUCTS + k;
            u32 r[4];
            load_matrices(r, &shared.tiles[stage][all / 4][token][(all % 4 * 2 + matrix % 2) ^ (token & 7)]);
            const u32 b[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
            for (u32 t = 0; t < TERMS; ++t)
#pragma unroll
                for (u32 n = 0; n < 2; ++n) multiply<KV>(sums[t][n], of[k][t], b[n]);
        }
#pragma unroll
        for (u32 n = 0; n < 2; ++n)
#pragma unroll
            for (u32 r = 0; r < 2; ++r) {
                float2 x = make_float2(0.0f, 0.0f);
#pragma unroll
                for (u32 t = TERMS; t-- > 0;) x.x += sums[t][n][2 * r], x.y += sums[t][n][2 * r + 1];
                float* to = &shared.scores[quarter()][lane_id() / 4 + 8 * r][half * 16 + 8 * n + 2 * (lane_id() % 4)];
                *reinterpret_cast<float2*>(to) = x;
            }
    }

    // Of the query of this thread; `unit`: what values are over, a power of two.
    struct Softmax {
        float top, sum, factor, unit;
        u32 visible;

        DEVICE void reset() { top = MINUS_INFINITY, sum = 0.0f, unit = LEAST_UNIT; }
    };

    static DEVICE float largest_of_query(float x) {
#pragma unroll
        for (u32 offset = OF_QUERY / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
        return x;
    }

    // Two weights relative to the largest score so far, and over the unit of values. The unit grows with the scales that the
    // query sees, and with no others, so that nothing depends on these.
    DEVICE void weigh(Softmax& of, u32 stage, u32 from) const {
        const u32 query = threadIdx.x / OF_QUERY, in_tile = threadIdx.x % OF_QUERY * 2;
        float2 x = make_float2(0.0f, 0.0f);
#pragma unroll
        for (u32 i = 0; i < QUARTERS; ++i) {
            const float2 y = *reinterpret_cast<const float2*>(&shared.scores[i][query][in_tile]);
            x.x += y.x, x.y += y.y;
        }
        const bool sees[2] = {from + in_tile < of.visible, from + in_tile + 1 < of.visible};
        float scales[2] = {1.0f, 1.0f};
        if constexpr (has_scales<KV>()) scales[0] = shared.scales[stage][in_tile], scales[1] = shared.scales[stage][in_tile + 1];
        const float low = sees[0] ? x.x * of.factor * scales[0] : MINUS_INFINITY;
        const float high = sees[1] ? x.y * of.factor * scales[1] : MINUS_INFINITY;
        const float most = fmaxf(of.top, largest_of_query(fmaxf(low, high)));
        const float by = most == MINUS_INFINITY ? 0.0f : most;
        float fade = power_of_two(of.top - by), first = power_of_two(low - by), second = power_of_two(high - by);
        of.top = most, of.sum = fmaf(of.sum, fade, first + second);
        if constexpr (has_scales<KV>()) {
            const float largest = largest_of_query(fmaxf(sees[0] ? scales[0] : 0.0f, sees[1] ? scales[1] : 0.0f));
            fade *= grow_unit(of.unit, largest);
            const float inverse = inverse_of_power(of.unit);
            first *= scales[0] * inverse, second *= scales[1] * inverse;
        }
#pragma unroll
        for (u32 t = 0; t < TERMS; ++t) *reinterpret_cast<u32*>(&shared.weights[t][query][in_tile]) = take_pair<KV>(first, second);
        if (in_tile == 0) shared.fades[query] = fade;
    }

    // 64 columns.
    DEVICE void mix_values(Mixed& mixed, u32 stage) const {
        const float fade[2] = {shared.fades[lane_id() / 4], shared.fades[lane_id() / 4 + 8]};
#pragma unroll
        for (u32 i = 0; i < 32; ++i) mixed[i / 4][i % 4] *= fade[i / 2 % 2];
        const u32 matrix = lane_id() / 8, of_matrix = lane_id() % 8;
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; ++k) {
            u32 a[TERMS][4];
#pragma unroll
            for (u32 t = 0; t < TERMS; ++t)
                load_matrices(a[t], &shared.weights[t][matrix % 2 * 8 + of_matrix][k * 16 + matrix / 2 * 8]);
            const u32 token = k * 16 + matrix % 2 * 8 + of_matrix;
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                u32 r[4];
                load_matrices_transposed(r, &shared.tiles[stage][warp_id()][token][(2 * n + matrix / 2) ^ (token & 7)]);
                const u32 b[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
                for (u32 t = 0; t < TERMS; ++t)
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) multiply<KV>(mixed[2 * n + i], a[t], b[i]);
            }
        }
    }

    static DEVICE void clear(Mixed& mixed) {
#pragma unroll
        for (u32 i = 0; i < 32; ++i) mixed[i / 4][i % 4] = 0.0f;
    }

    DEVICE void attend() const {
        Arriving arriving;
        u32 ids[EACH];
        this->look_up(ids, begin);
        const bool is_old = this->is_old();
        if (is_old) this->ask(arriving, ids, shared.tiles[0], begin);
        wait_for_inputs();
        if (!is_old) this->ask(arriving, ids, shared.tiles[0], begin);
        this->look_up(ids, begin + TOKENS);
        Queries of_block;
        load_queries(of_block);
        Softmax of;
        of.reset();
        of.factor = shared.factors[threadIdx.x / OF_QUERY] * op.scale * LOG2E, of.visible = visible(threadIdx.x / OF_QUERY);
        Mixed mixed;
        clear(mixed);
        u32 stage = 0, part_end = begin + length;
#pragma unroll 1
        for (u32 from = begin; from < end; from += TOKENS, stage ^= 1) {
            Base::arrive(arriving, shared.tiles[stage], shared.scales[stage]);
            __syncthreads(); // and nobody reads the tile before it any more
            if (from + TOKENS < end) {
                this->ask(arriving, ids, shared.tiles[stage ^ 1], from + TOKENS);
                this->look_up(ids, from + 2 * TOKENS);
            }
            multiply_keys(of_block, stage);
            __syncthreads();
            weigh(of, stage, from);
            __syncthreads();
            mix_values(mixed, stage);
            if (from + TOKENS != part_end && from + TOKENS < end) continue;
            finish(mixed, of, part_end);
            of.reset();
            clear(mixed);
            part_end += length;
        }
    }

    // Of the context, or of the part of it that ends there.
    DEVICE void finish(const Mixed& mixed, const Softmax& of, u32 part_end) const {
        float sum = of.sum;
#pragma unroll
        for (u32 offset = OF_QUERY / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
        if (threadIdx.x % OF_QUERY == 0) {
            const u32 query = threadIdx.x / OF_QUERY;
            shared.tops[query] = of.top, shared.sums[query] = sum, shared.units[query] = has_scales<KV>() ? of.unit : 1.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            const u32 query = lane_id() / 4 + 8 * r;
            if (first + query >= queries) continue;
            const float2 found = make_float2(shared.tops[query], shared.sums[query]);
            const auto target = this->target(query, part_end, found, shared.units[query], warp_id() == 0 && lane_id() % 4 == 0);
#pragma unroll
            for (u32 n = 0; n < 8; ++n)
                target.put(warp_id() * 64 + 8 * n + 2 * (lane_id() % 4), mixed[n][2 * r], mixed[n][2 * r + 1]);
        }
    }
};
