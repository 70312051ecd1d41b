// Attention over latent pages on GPUs of compute capability 9.0. A block has 64 rows of queries, and 64 tokens at a time: its two
// times four warps share out the scores of half of the tokens each, and mix half of the columns each. Queries and weights of
// prompts are f16, 11 bits. Of few rows they are two f16, 22 bits: a block has half as many queries, and the second term of one is
// the row eight behind the first, so that the lane that has one result has the other.
#pragma once
#include "common/attention_latent_narrow.cuh"
#include "common/hopper.cuh"

#ifdef HAS_WARPGROUPS

template <u32 KV, u32 TERMS> struct LatentWide : LatentRows<KV, 64> {
    using Base = LatentRows<KV, 64>;
    using typename Base::Arriving;
    using typename Base::Tile;
    using Base::begin, Base::end, Base::first, Base::length, Base::op, Base::queries, Base::span, Base::visible;
    static constexpr u32 KEY = Base::KEY, VALUE = Base::VALUE, TOKENS = Base::TOKENS, COLUMNS = Base::COLUMNS, EACH = Base::EACH;
    static constexpr u32 THREADS = Base::THREADS, STAGES = Base::STAGES, ROWS = 64, QUERIES = ROWS / TERMS;
    // Queries whose results a lane has.
    static constexpr u32 OF_LANE = 2 / TERMS;

    struct Room {
        uint4 queries[COLUMNS][ROWS][8];
        Tile tiles[STAGES];
        uint4 weights[ROWS][8];
        // Of half of the tokens: the largest scores, sums of weights, and the largest scales of a tile that a query sees.
        float tops[2][QUERIES], sums[2][QUERIES], largest[2][QUERIES];
        float factors[QUERIES], scales[STAGES][TOKENS];
    };
    static_assert(sizeof(Room) <= 2 * KEY * (ROWS + STAGES * TOKENS) + 2 * ROWS * TOKENS + 4 * 9 * 64, "as in src/ops/latent.rs");

    Room& shared;

    typedef float Scores[TOKENS / 4];
    typedef float Mixed[VALUE / 4];
    typedef float Exponents[OF_LANE][TOKENS / 8];

    static DEVICE u32 half() { return warp_id() / 4; }
    // A query of this lane, and the row of a term of one.
    static DEVICE u32 query(u32 i) { return warp_id() % 4 * (16 / TERMS) + lane_id() / 4 + 8 * i; }
    static DEVICE u32 row(u32 query, u32 term) { return TERMS == 1 ? query : query / 8 * 16 + query % 8 + 8 * term; }
    // Of the two results of a lane for two rows of queries.
    static DEVICE float result(const float* of_rows, u32 i, u32 e) {
        return TERMS == 1 ? of_rows[2 * i + e] : of_rows[e] + of_rows[2 + e];
    }

    DEVICE void ask(Arriving& arriving, const u32 (&ids)[EACH], u32 stage, u32 from) const {
        Base::ask(arriving, ids, shared.tiles[stage], from);
    }
    DEVICE void arrive(const Arriving& arriving, u32 stage) const {
        Base::arrive(arriving, shared.tiles[stage], shared.scales[stage]);
        written_for_engines();
    }

    // A warp loads a query after the other, a few at a time.
    DEVICE void load_queries() const {
        constexpr u32 WARPS = THREADS / 32, AT_ONCE = 4;
#pragma unroll 1
        for (u32 i = warp_id(); i < QUERIES; i += WARPS * AT_ONCE) {
            float2 x[AT_ONCE][COLUMNS];
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 query = i + n * WARPS;
                const bool is_there = first + query < queries;
                const float2* q = reinterpret_cast<const float2*>(
                    op.q + (is_there ? this->place(query) : 0) * KEY);
#pragma unroll
                for (u32 c = 0; c < COLUMNS; ++c) x[n][c] = is_there ? q[c * 32 + lane_id()] : make_float2(0.0f, 0.0f);
            }
#pragma unroll
            for (u32 n = 0; n < AT_ONCE; ++n) {
                const u32 query = i + n * WARPS;
                float most = 0.0f;
#pragma unroll
                for (u32 c = 0; c < COLUMNS; ++c) most = fmaxf(most, fmaxf(fabsf(x[n][c].x), fabsf(x[n][c].y)));
                const float power = power_below(warp_max(most)), inverse = inverse_of_power(power);
                if (lane_id() == 0) shared.factors[query] = power * op.scale * LOG2E;
#pragma unroll
                for (u32 c = 0; c < COLUMNS; ++c) {
                    float low = x[n][c].x * inverse, high = x[n][c].y * inverse;
#pragma unroll
                    for (u32 t = 0; t < TERMS; ++t) {
                        const u32 to = row(query, t);
                        reinterpret_cast<u32*>(&shared.queries[c][to][lane_id() / 4 ^ (to & 7)])[lane_id() % 4] =
                            take_pair<KV_F16>(low, high);
                    }
                }
            }
        }
    }

    // Of half of the tokens.
    DEVICE void multiply_keys(Scores& scores, u32 stage) const {
        products_begin();
#pragma unroll
        for (u32 k = 0; k < KEY / 16; ++k) {
            product_f16(scores, rows_of_128(&shared.queries[k / 4]) + 2 * (k % 4),
                        rows_of_128(&shared.tiles[stage][k / 4][half() * (TOKENS / 2)]) + 2 * (k % 4), k > 0);
        }
        products_commit();
    }

    // Half of the columns.
    DEVICE void mix_values(Mixed& mixed, u32 stage) const {
        products_begin();
        const u64 weights = rows_of_128(&shared.weights);
        const u64 values = rows_of_128(&shared.tiles[stage][half() * (VALUE / 128)], sizeof(Tile) / COLUMNS);
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; ++k) product_f16_transposed(mixed, weights + 2 * k, values + 128 * k, 1);
        products_commit();
    }

    // Of the queries of this lane; `unit`: what values are over, a power of two.
    struct Softmax {
        float top[OF_LANE], sum[OF_LANE], factor[OF_LANE], fade[OF_LANE], unit[OF_LANE];
        u32 visible[OF_LANE];

        DEVICE void reset() {
#pragma unroll
            for (u32 i = 0; i < OF_LANE; ++i) top[i] = MINUS_INFINITY, sum[i] = 0.0f, unit[i] = LEAST_UNIT;
        }
    };

    // Exponents of half of the tokens, to base 2, and the largest of each query, which the other half is told; the same of the
    // scales of the tokens that a query sees, and of no others, so that nothing depends on these.
    DEVICE void find_tops(const Scores& scores, Exponents& exponents, const Softmax& of, u32 stage, u32 from) const {
        float most[OF_LANE], largest[OF_LANE];
#pragma unroll
        for (u32 i = 0; i < OF_LANE; ++i) most[i] = MINUS_INFINITY, largest[i] = 0.0f;
#pragma unroll
        for (u32 n = 0; n < TOKENS / 8; ++n) {
            const u32 in_tile = half() * (TOKENS / 2) + n / 2 * 8 + 2 * (lane_id() & 3) + n % 2;
            float scale = 1.0f;
            if constexpr (has_scales<KV>()) scale = shared.scales[stage][in_tile];
#pragma unroll
            for (u32 i = 0; i < OF_LANE; ++i) {
                const bool sees = from + in_tile < of.visible[i];
                const float score = result(scores + n / 2 * 4, i, n % 2) * of.factor[i] * scale;
                exponents[i][n] = sees ? score : MINUS_INFINITY;
                most[i] = fmaxf(most[i], exponents[i][n]);
                if constexpr (has_scales<KV>()) largest[i] = fmaxf(largest[i], sees ? scale : 0.0f);
            }
        }
#pragma unroll
        for (u32 i = 0; i < OF_LANE; ++i) {
            most[i] = fmaxf(most[i], __shfl_xor_sync(ALL_LANES, most[i], 1));
            most[i] = fmaxf(most[i], __shfl_xor_sync(ALL_LANES, most[i], 2));
            if ((lane_id() & 3) == 0) shared.tops[half()][query(i)] = most[i];
            if constexpr (has_scales<KV>()) {
                largest[i] = fmaxf(largest[i], __shfl_xor_sync(ALL_LANES, largest[i], 1));
                largest[i] = fmaxf(largest[i], __shfl_xor_sync(ALL_LANES, largest[i], 2));
                if ((lane_id() & 3) == 0) shared.largest[half()][query(i)] = largest[i];
            }
        }
    }

    // Weights relative to the largest score so far, and over the unit of values; `fade`: what earlier sums become by that.
    DEVICE void weigh(const Exponents& exponents, Softmax& of, u32 stage) const {
#pragma unroll
        for (u32 i = 0; i < OF_LANE; ++i) {
            const float most = fmaxf(of.top[i], fmaxf(shared.tops[0][query(i)], shared.tops[1][query(i)]));
            const float by = most == MINUS_INFINITY ? 0.0f : most;
            const float fade = power_of_two(of.top[i] - by);
            float added = 0.0f, inverse = 1.0f;
            of.top[i] = most, of.fade[i] = fade;
            if constexpr (has_scales<KV>()) {
                of.fade[i] *= grow_unit(of.unit[i], fmaxf(shared.largest[0][query(i)], shared.largest[1][query(i)]));
                inverse = inverse_of_power(of.unit[i]);
            }
#pragma unroll
            for (u32 n = 0; n < TOKENS / 16; ++n) {
                const u32 in_tile = half() * (TOKENS / 2) + 8 * n + 2 * (lane_id() & 3);
                float low = power_of_two(exponents[i][2 * n] - by), high = power_of_two(exponents[i][2 * n + 1] - by);
                added += low + high;
                if constexpr (has_scales<KV>()) {
                    low *= shared.scales[stage][in_tile] * inverse, high *= shared.scales[stage][in_tile + 1] * inverse;
                }
#pragma unroll
                for (u32 t = 0; t < TERMS; ++t) {
                    const u32 to = row(query(i), t), piece = half() * 4 + n;
                    reinterpret_cast<u32*>(&shared.weights[to][piece ^ (to & 7)])[lane_id() & 3] = take_pair<KV_F16>(low, high);
                }
            }
            of.sum[i] = fmaf(of.sum[i], fade, added);
        }
    }

    // Makes weights of the scores of a tile, which all threads see then.
    DEVICE void weigh_tile(const Scores& scores, Mixed& mixed, Softmax& of, u32 stage, u32 from) const {
        Exponents exponents;
        find_tops(scores, exponents, of, stage, from);
        __syncthreads();
        weigh(exponents, of, stage);
        written_for_engines();
        __syncthreads();
        // From some tile on nothing fades as a rule.
        if (!__any_sync(ALL_LANES, of.fade[0] != 1.0f || of.fade[OF_LANE - 1] != 1.0f)) return;
#pragma unroll
        for (u32 i = 0; i < VALUE / 4; ++i) mixed[i] *= of.fade[i / 2 % OF_LANE];
    }

    static DEVICE void clear(Mixed& mixed) {
#pragma unroll
        for (u32 i = 0; i < VALUE / 4; ++i) mixed[i] = 0.0f;
    }

    DEVICE void attend() const {
        const u32 rounds = ceil_div(end - begin, TOKENS);
        Arriving arriving;
        u32 ids[EACH];
        this->look_up(ids, begin);
        const bool is_old = this->is_old();
        if (is_old) ask(arriving, ids, 0, begin);
        wait_for_inputs();
        if (!is_old) ask(arriving, ids, 0, begin);
        this->look_up(ids, begin + TOKENS);
        load_queries();
        arrive(arriving, 0);
        __syncthreads();
        if (rounds > 1) ask(arriving, ids, 1, begin + TOKENS);
        this->look_up(ids, begin + 2 * TOKENS);
        Softmax of;
        of.reset();
#pragma unroll
        for (u32 i = 0; i < OF_LANE; ++i) of.factor[i] = shared.factors[query(i)], of.visible[i] = visible(query(i));
        Scores scores;
        Mixed mixed;
        clear(mixed);
        multiply_keys(scores, 0);
        products_wait<0>();
        hold(scores);
        u32 from = begin, part_end = begin + length;
#pragma unroll 1
        for (u32 round = 0; round + 1 < rounds; ++round, from += TOKENS) {
            const u32 stage = round % STAGES;
            weigh_tile(scores, mixed, of, stage, from);
            mix_values(mixed, stage);
            arrive(arriving, stage ^ 1);
            __syncthreads();
            multiply_keys(scores, stage ^ 1);
            products_wait<1>();
            __syncthreads(); // nobody reads the tile any more, nor the weights
            if (round + 2 < rounds) {
                ask(arriving, ids, stage, from + 2 * TOKENS);
                this->look_up(ids, from + 3 * TOKENS);
            }
            products_wait<0>();
            hold(mixed);
            hold(scores);
            if constexpr (TERMS == 2) {
                if (from + TOKENS < part_end) continue;
                finish(mixed, of, part_end);
                of.reset();
                clear(mixed);
                part_end += length;
            }
        }
        weigh_tile(scores, mixed, of, (rounds - 1) % STAGES, from);
        mix_values(mixed, (rounds - 1) % STAGES);
        products_wait<0>();
        hold(mixed);
        finish(mixed, of, part_end);
    }

    // Of the context, or of the part of it that ends there.
    DEVICE void finish(const Mixed& mixed, const Softmax& of, u32 part_end) const {
#pragma unroll
        for (u32 i = 0; i < OF_LANE; ++i) {
            float sum = of.sum[i];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            if ((lane_id() & 3) == 0) shared.sums[half()][query(i)] = sum;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < OF_LANE; ++i) {
            if (first + query(i) >= queries) continue;
            const float2 found = make_float2(of.top[i], shared.sums[0][query(i)] + shared.sums[1][query(i)]);
            const bool tells = half() == 0 && (lane_id() & 3) == 0;
            const auto target = this->target(query(i), part_end, found, has_scales<KV>() ? of.unit[i] : 1.0f, tells);
#pragma unroll
            for (u32 m = 0; m < VALUE / 16; ++m) {
                const u32 column = half() * (VALUE / 2) + 8 * m + 2 * (lane_id() & 3);
                target.put(column, result(mixed + 4 * m, i, 0), result(mixed + 4 * m, i, 1));
            }
        }
    }
};

template <u32 KV> using LatentOfPrompts = LatentWide<KV, 1>;
template <u32 KV> using LatentOfFew = LatentWide<KV, 2>;

#else

template <u32 KV> using LatentOfPrompts = LatentNarrow<KV>;
template <u32 KV> using LatentOfFew = LatentNarrow<KV>;

#endif
