// Rows that stay in the ring, up to as many as are solved together, and a single row that goes into the state. A row of a
// span gets the bits that it would get in a step of its own, so that drafts change no answer.
//
// What was written since the checkpoint (the entries: those of the ring, then the rows of the span) is not put into the
// state but answers for itself: `S x = S0 x' + sum_j u_j (k_j' . x)`, all factors at most 1. For every row the entries
// before it are added up in one order, the oldest first, then what the checkpoint gives, whether they are in the ring or
// in the span. How much an entry has faded until a row is told by a sum over those behind it: of up to 16 in the order of
// a tree that is rooted at the row (`sum_of_16`), of more by one that has no order (`Faded`).
#pragma once
#include "common/recurrence_rows.cuh"

// The logarithm of how much something has faded, as a whole number of steps of 2^-40: sums of these are the same in any
// order. Beyond 128 nothing is left that f32 could tell from 0.
struct Faded {
    i64 steps = 0;

    DEVICE Faded() {}
    explicit DEVICE Faded(i64 steps) : steps(steps) {}
    explicit DEVICE Faded(float g) : steps(__float2ll_rn(fminf(fmaxf(g, -128.0f), 128.0f) * 1099511627776.0f)) {}
    DEVICE Faded operator+(Faded other) const { return Faded(steps + other.steps); }
    DEVICE Faded operator-(Faded other) const { return Faded(steps - other.steps); }
    DEVICE float factor() const { return expf(__ll2float_rn(steps) * 9.094947017729282e-13f); }
    // That of a lane, of those that are `WIDTH` neighbours.
    template <u32 WIDTH = 32> DEVICE Faded of(u32 lane) const { return Faded(__shfl_sync(ALL_LANES, steps, lane, WIDTH)); }
};

// The sum of `x` of the lanes before this one and its own, of 16 neighbours.
DEVICE float sum_of_16(float x) {
#pragma unroll
    for (u32 offset = 1; offset < 16; offset *= 2) {
        const float before = __shfl_up_sync(ALL_LANES, x, offset, 16);
        x += (lane_id() & 15) >= offset ? before : 0.0f;
    }
    return x;
}

// The same, of lanes that are in any order.
DEVICE Faded sum_before(Faded x) {
    const u32 lane = lane_id() & 15;
#pragma unroll
    for (u32 offset = 1; offset < 16; offset *= 2) {
        const i64 before = __shfl_up_sync(ALL_LANES, x.steps, offset, 16);
        x.steps += lane >= offset ? before : 0;
    }
    return x;
}

template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, bool LONG>
struct Few : Block<KIND, State, QUADS, WARPS, LANE_ROWS, LONG> {
    using Base = Block<KIND, State, QUADS, WARPS, LANE_ROWS, LONG>;
    using Base::op, Base::span, Base::head, Base::first_row, Base::state, Base::lane_row, Base::shared, Base::carry;
    using Base::clear_carry, Base::dot, Base::ring_row, Base::ring_g, Base::ring_k, Base::ring_u, Base::request_entries;
    using Base::fade_entries, Base::state_times, Base::store_state;
    static constexpr u32 COLUMNS = Base::COLUMNS, ROWS = Base::ROWS, MOST = Base::MOST, OWN_COLUMNS = Base::OWN_COLUMNS;
    static constexpr bool IS_DELTA = Base::IS_DELTA, PER_CHANNEL = Base::PER_CHANNEL;
    static constexpr u32 THREADS = Base::THREADS, GROUPS = THREADS / 8;

    // Eight lanes have some rows of the state: a lane has what one of them gives the key (`which` 0) or the query (1).
    const u32 which = (lane_id() & 7) >> 2, row = lane_row() + min(lane_id() & 3, LANE_ROWS - 1);
    const u32 group = threadIdx.x / 8; // that has an entry

    using Base::Base;

    // Found where they are asked for: registers are few.
    DEVICE bool is_mine() const { return (lane_id() & 3) < LANE_ROWS && first_row + row < op.value_dim; }
    DEVICE bool has_keys() const { return !span.is_final() && blockIdx.x == 0 && op.is_first_of_key_head(head); }

    // Row of the ring that row `t` of the span goes to.
    DEVICE u32 entry(u32 t) const { return ring_row(span.after_base + span.after_held, t); }

    // Brings `count` entries of the ring from `from` on, newest first.
    DEVICE void bring_entries(u32 base, u32 from, u32 count) {
        __syncthreads(); // what is there may still be read
        request_entries(base, from, count);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
    }

    // What a row writes to a row of the state, and its output.
    struct Given {
        float u, y;
    };

    // Those of row `t`, of which the checkpoint and the entries give `answered`. The output is stored if `PUTS`.
    template <bool PUTS>
    DEVICE Given finish(u32 t, bool is_there, float answered, float decay, float strength, float own) {
        const float other = __shfl_xor_sync(ALL_LANES, answered, 4);
        const float to_key = which ? other : answered, to_query = which ? answered : other;
        const float value = is_mine() ? shared.u[t][row] : 0.0f;
        const float u = strength * (IS_DELTA ? fmaf(-decay, to_key, value) : value);
        const float y = fmaf(own, u, fmaf(decay, to_query, shared.skip * value));
        const u64 at = (u64(span.first + t) * op.value_heads + head) * op.value_dim + first_row + row;
        if (PUTS && is_there && is_mine() && which == 1) op.out[at] = y;
        if (is_there && is_mine() && which == 0 && !span.is_final()) const_cast<float*>(ring_u(entry(t)))[row] = u;
        return {u, y};
    }

    // How much all entries have faded, where they are more than are looked at together.
    DEVICE Faded sum_of_ring(u32 base, u32 held) const {
        Faded sum;
#pragma unroll 4
        for (u32 i = lane_id(); i < held; i += 32) sum = sum + Faded(*ring_g(ring_row(base, i)));
#pragma unroll
        for (u32 offset = 16; offset > 0; offset /= 2) sum.steps += __shfl_xor_sync(ALL_LANES, sum.steps, offset);
        return sum;
    }

    // How much entry `i` fades, of those of which lanes of 16 have the `sum`s from the newest on; `newer` until there.
    static DEVICE Faded later(Faded newer, Faded sum, u32 i) {
        const Faded until = sum.template of<16>(i > 0 ? i - 1 : 0);
        return newer + (i > 0 ? until : Faded());
    }

    // Goes through the entries of the ring, the oldest first, as many as are looked at together at a time: `multiply(newer,
    // sum, count)` with what `later` takes, if that is `asked` for, and `add(count)` once all have been multiplied. The first
    // ones are there. `newer`: how much all fade.
    template <typename Multiply, typename Add>
    DEVICE void through_ring(u32 base, u32 held, Faded newer, bool asked, Multiply multiply, Add add) {
        u32 from = 0;
        do {
            const u32 count = min(held - from, CHUNK), lane = lane_id() & 15;
            if (from > 0) bring_entries(base, from, count);
            Faded sum;
            if (asked) {
                sum = sum_before(lane < count ? Faded(shared.entry_g[0][lane]) : Faded());
                newer = newer - sum.template of<16>(15);
            }
            multiply(newer, sum, count);
            __syncthreads();
            add(count);
            from += CHUNK;
        } while (from < held);
    }

    // A single row: little but the state passes through registers. Its output.
    template <bool PUTS> DEVICE float run_one(u32 base, u32 held, Faded sum, bool is_zero) {
        const u32 c = lane_id() & 7;
        const float *key = shared.k[0], *query = shared.q[0];
        const float size = softplus(shared.g[0][0] + shared.bias[0]), g = shared.rate * size, decay = expf(g);
        const float strength = IS_DELTA ? sigmoid(shared.strengths[0]) : size;
        if (!span.is_final() && blockIdx.x == 0 && threadIdx.x == 0) *const_cast<float*>(ring_g(entry(0))) = g;
        float scales[2] = {1.0f, 1.0f}, own = warp_sum<8>(dot(query, key));
        if constexpr (IS_DELTA) {
            scales[0] = rsqrtf(warp_sum<8>(dot(key, key)) + op.norm_eps);
            scales[1] = rsqrtf(warp_sum<8>(dot(query, query)) + op.norm_eps) * op.query_scale;
            own *= scales[0] * scales[1];
        }
        if (has_keys())
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column < op.key_dim) const_cast<float*>(ring_k(entry(0)))[column] = key[column] * scales[0];
            }
        float answered = 0.0f, passed = 1.0f;
        const auto multiply = [&](float factor, u32 i, bool is_there) {
            const float to_key = warp_sum<8>(dot(shared.faded[i], key)), to_query = warp_sum<8>(dot(shared.faded[i], query));
            if (c == 0 && is_there) {
                shared.products[i][0] = to_key * (scales[0] * factor);
                shared.products[i][1] = to_query * (scales[1] * factor);
            }
        };
        const auto add = [&](u32 count) {
#pragma unroll 4
            for (u32 i = count; i-- > 0;) answered = fmaf(shared.ring_u[i][row], shared.products[i][which], answered);
        };
        if (held > CHUNK) {
            const auto one = [&](Faded newer, Faded sum, u32 count) {
                const u32 i = min(group, count - 1);
                multiply(later(newer, sum, i).factor(), i, group < count);
            };
            through_ring(base, held, sum, true, one, add);
            passed = sum.factor();
        } else if (held > 0) {
            const u32 lane = lane_id() & 15;
            const float fade = sum_of_16(lane < held ? shared.entry_g[0][lane] : 0.0f);
            const float newer = __shfl_sync(ALL_LANES, fade, group > 0 ? group - 1 : 0, 16);
            passed = expf(__shfl_sync(ALL_LANES, fade, 15, 16));
            multiply(group > 0 ? expf(newer) : 1.0f, min(group, held - 1), group < held);
            __syncthreads();
            add(held);
        }
        if (!is_zero) answered = fmaf(scales[which] * passed, state_times(key, query), answered);
        const Given given = finish<PUTS>(0, true, answered, decay, strength, own);
        if (span.is_final()) {
            step_state(given.u * scales[0], decay);
            store_state();
        }
        return given.y;
    }

    // state = state faded + u k^T of a single row, with the `u` of a row of the state in lane `row` of its eight.
    DEVICE void step_state(float u, float decay) {
        float written[LANE_ROWS];
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) written[i] = __shfl_sync(ALL_LANES, u, (lane_id() & 24) | i);
        if constexpr (stays_packed<State>()) {
            return Base::change_rows([&](u32 i, float (&row)[QUADS][4]) {
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) {
                        const u32 column = (n * 8 + (lane_id() & 7)) * 4 + e;
                        const float fade = PER_CHANNEL ? shared.passed[0][column] : decay;
                        row[n][e] = fmaf(fade, row[n][e], written[i] * shared.k[0][column]);
                    }
            });
        }
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 column = (n * 8 + (lane_id() & 7)) * 4 + e;
                const float k = shared.k[0][column], fade = PER_CHANNEL ? shared.passed[0][column] : decay;
#pragma unroll
                for (u32 i = 0; i < LANE_ROWS; ++i) state[i][n][e] = fmaf(fade, state[i][n][e], written[i] * k);
            }
    }

    // The products of an entry, four of whose columns a lane has of every 32, with the keys and queries of four rows of the
    // span from `first` on: one to each of eight lanes.
    DEVICE float times_rows(const float4 (&x)[QUADS], u32 first) const {
        float sums[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sums[i] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 at = (n * 8 + (lane_id() & 7)) * 4;
                const float4 q = *reinterpret_cast<const float4*>(&shared.q[first + i][at]);
                sums[4 + i] = fmaf(x[n].x, q.x, fmaf(x[n].y, q.y, fmaf(x[n].z, q.z, fmaf(x[n].w, q.w, sums[4 + i]))));
                if constexpr (!IS_DELTA) continue;
                const float4 k = *reinterpret_cast<const float4*>(&shared.k[first + i][at]);
                sums[i] = fmaf(x[n].x, k.x, fmaf(x[n].y, k.y, fmaf(x[n].z, k.z, fmaf(x[n].w, k.w, sums[i]))));
            }
        }
        return sum_8_over_8(sums);
    }

    // Where the product of entry `j` of the span with the key or query of row `t` is.
    DEVICE float& pair(u32 j, u32 of, u32 t) const { return (&shared.read[0][0][0])[(2 * j + of) * MOST + t]; }

    // How long keys (`factors`) and queries (`advancing`) are, and their products (`kk`): a pair of rows to eight lanes.
    DEVICE void measure_rows(u32 rows) {
        const u32 pairs = (IS_DELTA ? 3 : 1) * rows;
#pragma unroll 1
        for (u32 first = 0; first < pairs; first += GROUPS) {
            const u32 i = min(first + group, pairs - 1), kind = i / rows, t = i % rows;
            const float* a = kind == 1 ? shared.k[t] : shared.q[t];
            const float sum = warp_sum<8>(dot(a, kind == 2 ? shared.q[t] : shared.k[t]));
            if ((lane_id() & 7) != 0 || first + group >= pairs) continue;
            if (kind == 0) shared.kk[0][t] = sum;
            if (kind == 1) shared.factors[t] = rsqrtf(sum + op.norm_eps);
            if (kind == 2) shared.advancing[t] = rsqrtf(sum + op.norm_eps) * op.query_scale;
        }
        if (!IS_DELTA && threadIdx.x < rows) shared.factors[threadIdx.x] = shared.advancing[threadIdx.x] = 1.0f;
        __syncthreads();
    }

    // How much entries fade until each row, where they are no more than there are groups: `fades`, by how many others are
    // between, and `decays` for all. Lanes `t` of every 16 have the decay `g` of row `t`. Half a warp finds it for a row.
    template <u32 WIDTH> DEVICE void fade_rows(u32 held, float g) {
        const u32 p = lane_id() & 15;
#pragma unroll
        for (u32 t = threadIdx.x / 16; t < WIDTH; t += THREADS / 16) {
            const float of_span = __shfl_sync(ALL_LANES, g, t - 1 - p, 16);
            const float fade = sum_of_16(p < t ? of_span : p < t + held ? shared.entry_g[0][p - t] : 0.0f);
            const float newer = __shfl_up_sync(ALL_LANES, fade, 1, 16);
            shared.fades[t][p] = p > 0 ? expf(newer) : 1.0f;
            if (p == 15) shared.decays[t] = expf(fade);
        }
    }

    // Up to `WIDTH` rows, with a decay per head. What does not depend on what other rows of the span write is found for
    // all of them at once; what is found for rows that are not there is anything, and nobody reads it.
    template <u32 WIDTH> DEVICE void run_some(u32 rows, u32 base, u32 held, Faded sum, bool is_zero) {
        static_assert(2 * MOST * MOST <= 2 * MOST * ROWS && WIDTH <= MOST, "pairs are where `read` is");
        const u32 lane = lane_id();
        // Lane `t` of every 16 has row `t`: how much it fades what is before it, and the rows before it do together.
        const bool has_row = (lane & 15) < rows;
        const float size = has_row ? softplus(shared.g[0][lane & 15] + shared.bias[0]) : 0.0f, g = shared.rate * size;
        const bool has_many = held + rows - 1 > CHUNK; // before the last row
        Faded before, until;
        if (has_many) {
            const Faded mine = has_row ? Faded(g) : Faded();
            until = sum_before(mine), before = until - mine;
        }
        fade_rows<WIDTH>(held, g);
        float strength = size;
        if constexpr (IS_DELTA) strength = has_row ? sigmoid(shared.strengths[lane & 15]) : 0.0f;
        const float decay = expf(g);
        if (blockIdx.x == 0 && threadIdx.x < rows) *const_cast<float*>(ring_g(entry(threadIdx.x))) = g;
        measure_rows(rows);
        if (has_keys())
#pragma unroll 1
            for (u32 at = threadIdx.x; at < rows * COLUMNS; at += THREADS) {
                const u32 t = at / COLUMNS, column = at % COLUMNS;
                if (column < op.key_dim) const_cast<float*>(ring_k(entry(t)))[column] = shared.k[t][column] * shared.factors[t];
            }
        // Entries of the ring, and with them the rows of the span, times rows: a warp has four of these and of those at a time.
        bool has_span = true;
        const auto multiply = [&](Faded newer, Faded sum, u32 count) {
            const u32 of_ring = (count + 3) / 4, fours = of_ring + (has_span ? (rows + 3) / 4 : 0);
            has_span = false;
#pragma unroll 1
            for (u32 task = warp_id(); task < fours * (WIDTH / 4); task += WARPS) {
                const u32 four = task / (WIDTH / 4), first = task % (WIDTH / 4) * 4, t = first + (lane & 3);
                const bool is_own = four >= of_ring;
                const u32 begin = 4 * (is_own ? four - of_ring : four), here = is_own ? rows : count;
                if (is_own && first < begin) continue; // only rows behind it ask
                const u32 group = begin + lane / 8, i = min(group, here - 1);
                const float* key = is_own ? shared.k[i] : shared.faded[i];
                const float length = is_own ? shared.factors[i] : 1.0f;
                float4 x[QUADS];
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n) {
                    x[n] = *reinterpret_cast<const float4*>(&key[(n * 8 + (lane & 7)) * 4]);
                    if constexpr (IS_DELTA) {
                        x[n].x = __fmul_rn(x[n].x, length), x[n].y = __fmul_rn(x[n].y, length);
                        x[n].z = __fmul_rn(x[n].z, length), x[n].w = __fmul_rn(x[n].w, length);
                    }
                }
                const float product = times_rows(x, first), scale = which ? shared.advancing[t] : shared.factors[t];
                float faded = shared.fades[t][is_own ? (t > i ? t - 1 - i : 0) : min(i + t, CHUNK - 1)];
                if (has_many) {
                    const Faded from = is_own ? Faded() - until.of(i) : later(newer, sum, i);
                    const float many = (from + before.of(t)).factor();
                    faded = held + t > CHUNK ? many : faded;
                }
                if (group < here) (is_own ? &pair(i, which, 0) : &shared.products[i][which * MOST])[t] = product * (scale * faded);
            }
        };
        float answered[WIDTH], u[WIDTH];
#pragma unroll
        for (u32 t = 0; t < WIDTH; ++t) answered[t] = 0.0f;
        const auto add = [&](u32 count) {
#pragma unroll 2
            for (u32 i = count; i-- > 0;) {
                const float of_row = shared.ring_u[i][row];
#pragma unroll
                for (u32 t = 0; t < WIDTH; t += 4) {
                    const float4 of = *reinterpret_cast<const float4*>(&shared.products[i][which * MOST + t]);
                    answered[t] = fmaf(of_row, of.x, answered[t]), answered[t + 1] = fmaf(of_row, of.y, answered[t + 1]);
                    answered[t + 2] = fmaf(of_row, of.z, answered[t + 2]);
                    answered[t + 3] = fmaf(of_row, of.w, answered[t + 3]);
                }
            }
        };
        if (has_many && held <= CHUNK) {
            sum = sum_before((lane & 15) < held ? Faded(shared.entry_g[0][lane & 15]) : Faded()).template of<16>(15);
        }
        through_ring(base, held, sum, has_many, multiply, add);
        float given[WIDTH];
#pragma unroll
        for (u32 t = 0; t < WIDTH; ++t) given[t] = 0.0f;
#pragma unroll
        for (u32 t = 0; t < WIDTH; ++t) {
            if (t % 2 == 0 && t >= rows) break;
            given[t] = state_times(shared.k[t], shared.q[t]);
        }
        // Of row `t` in lane `t`.
        float faded = shared.decays[lane & 15];
        if (has_many && held + (lane & 15) > CHUNK) faded = (sum + before).factor();
#pragma unroll
        for (u32 t = 0; t < WIDTH; ++t) {
            if (t % 2 == 0 && t >= rows) break;
#pragma unroll
            for (u32 j = 0; j < t; ++j) answered[t] = fmaf(u[j], pair(j, which, t), answered[t]);
            const float scale = which ? shared.advancing[t] : shared.factors[t];
            const float by = scale * __shfl_sync(ALL_LANES, faded, t);
            if (!is_zero) answered[t] = fmaf(by, given[t], answered[t]);
            float own = shared.kk[0][t];
            if constexpr (IS_DELTA) own *= shared.factors[t] * shared.advancing[t];
            const float of_row[2] = {__shfl_sync(ALL_LANES, decay, t), __shfl_sync(ALL_LANES, strength, t)};
            u[t] = finish<true>(t, t < rows, answered[t], of_row[0], of_row[1], own).u;
        }
    }

    // Entries that end before row `t` of the span, newest first: those of the ring, or of the span, which are in `k`, `u`
    // and `g`.
    DEVICE void bring_any(u32 base, u32 held, u32 from, u32 count) {
        __syncthreads();
        const u32 in_ring = from < held ? min(held - from, count) : 0, in_span = count - in_ring;
        // Places are counted from the newest.
        if (in_ring > 0) request_entries(base, from, in_ring, in_span);
#pragma unroll 1
        for (u32 at = threadIdx.x; at < in_span * COLUMNS; at += THREADS) {
            const u32 i = at / COLUMNS, column = at % COLUMNS, t = from + count - 1 - i - held;
            shared.faded[i][column] = shared.k[t][column];
            shared.entry_g[i][column] = shared.g[t][column];
        }
#pragma unroll 1
        for (u32 at = threadIdx.x; at < in_span * ROWS; at += THREADS)
            shared.ring_u[at / ROWS][at % ROWS] = shared.u[from + count - 1 - at / ROWS - held][at % ROWS];
        copies_commit();
        copies_wait<0>();
        __syncthreads();
    }

    // Row `t` of a few, with decays per channel: keys of entries fade column by column, so each row goes through all of
    // them. Here the newest come first. Its output.
    template <bool PUTS> DEVICE float run_channels(u32 t, u32 base, u32 held, bool is_zero) {
        const u32 c = lane_id() & 7;
        clear_carry();
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) {
            const u32 column = threadIdx.x + n * THREADS;
            if (column >= COLUMNS) continue;
            const float g = column < op.key_dim ? shared.rate * softplus(shared.g[t][column] + shared.bias[column]) : 0.0f;
            const float passed = expf(g);
            shared.g[t][column] = g;
            shared.passed[0][column] = passed;
            shared.own[0][column] = shared.k[t][column] * passed;
            shared.own[1][column] = shared.q[t][column] * passed;
            if (!span.is_final() && blockIdx.x == 0 && column < op.key_dim) const_cast<float*>(ring_g(entry(t)))[column] = g;
        }
        __syncthreads();
        const float strength = sigmoid(shared.strengths[t]);
        const float scales[2] = {rsqrtf(warp_sum<8>(dot(shared.k[t], shared.k[t])) + op.norm_eps),
                                 rsqrtf(warp_sum<8>(dot(shared.q[t], shared.q[t])) + op.norm_eps) * op.query_scale};
        const float own = warp_sum<8>(dot(shared.q[t], shared.k[t])) * (scales[0] * scales[1]);
        float answered = 0.0f;
#pragma unroll 1
        for (u32 end = held + t; end > 0;) {
            const u32 count = min(end, CHUNK), j = min(group, count - 1);
            if (t > 0 || end < held) bring_any(base, held, end - count, count);
            fade_entries(count);
            const float to_key = warp_sum<8>(dot(shared.faded[j], shared.own[0]));
            const float to_query = warp_sum<8>(dot(shared.faded[j], shared.own[1]));
            if (c == 0 && group < count) {
                shared.products[j][0] = to_key * scales[0];
                shared.products[j][1] = to_query * scales[1];
            }
            __syncthreads();
#pragma unroll 4
            for (u32 i = 0; i < count; ++i) answered = fmaf(shared.ring_u[i][row], shared.products[i][which], answered);
            end -= count;
        }
        if (held + t > 0) {
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column >= COLUMNS) continue;
                const float passed = expf(carry[n]);
                shared.own[0][column] *= passed;
                shared.own[1][column] *= passed;
            }
            __syncthreads();
        }
        if (!is_zero) answered = fmaf(scales[which], state_times(shared.own[0], shared.own[1]), answered);
        const Given given = finish<PUTS>(t, true, answered, 1.0f, strength, own);
        if (span.is_final()) {
            step_state(given.u * scales[0], 1.0f);
            store_state();
            return given.y;
        }
        // It becomes an entry.
        __syncthreads();
        if (is_mine() && which == 0) shared.u[t][row] = given.u;
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) {
            const u32 column = threadIdx.x + n * THREADS;
            if (column >= COLUMNS) continue;
            const float k = shared.k[t][column] * scales[0];
            shared.k[t][column] = k;
            if (has_keys() && column < op.key_dim) const_cast<float*>(ring_k(entry(t)))[column] = k;
        }
        return given.y;
    }

    // What rows of a span begin with: entries that answer for themselves, from row `base` of the ring on; how much all of these
    // have faded, where they are more than are looked at together; whether the checkpoint is zero.
    struct Start {
        u32 base, held;
        Faded sum;
        bool is_zero;
    };

    // Everything is asked for before anything is waited for: what earlier steps have left, then, with `request`, what this one
    // has made. `folds`: the entries go into the state.
    template <typename Request> DEVICE Start start(bool folds, Request request) {
        const u32 base = span.flush() ? span.before_base : span.after_base;
        const u32 held = span.flush() ? span.before_held : span.after_held;
        bool is_zero = span.is_fresh();
        const u32 first_entries = min(held, CHUNK);
        request_entries(base, folds || !PER_CHANNEL ? 0 : held - first_entries, first_entries);
        Base::request_constants();
        Base::request_state(is_zero);
        const Faded sum = !PER_CHANNEL && !folds && held > CHUNK ? sum_of_ring(base, held) : Faded();
        request();
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        if (!stays_packed<State>()) Base::open_state();
        if (folds) {
            Base::fold(base, held);
            if (span.flush()) store_state();
            is_zero = is_zero && held == 0;
        }
        return {base, folds ? 0 : held, sum, is_zero};
    }

    // `SEVERAL`: several rows that stay in the ring; all others without.
    template <bool SEVERAL> DEVICE void run() {
        const auto [base, left, sum, is_zero] = start(span.flush() || (LONG && !SEVERAL && span.rows >= CHUNK), [&] {
            wait_for_inputs();
            Base::request_rows(0, min(span.rows, CHUNK));
        });
        if constexpr (PER_CHANNEL) {
            if (!SEVERAL && span.rows == 0) return;
            if constexpr (LONG && !SEVERAL)
                if (span.rows > 1) return Base::run_many(is_zero);
#pragma unroll 1
            for (u32 t = 0; t < span.rows; ++t) run_channels<true>(t, base, left, is_zero);
        } else if constexpr (SEVERAL) {
            if constexpr (LONG) return run_some<16>(span.rows, base, left, sum, is_zero);
            if (span.rows <= 4) return run_some<4>(span.rows, base, left, sum, is_zero);
            run_some<8>(span.rows, base, left, sum, is_zero);
        } else {
            if (span.rows == 0) return;
            if constexpr (LONG)
                if (span.rows > 1) return Base::run_many(is_zero);
            run_one<true>(base, left, sum, is_zero);
        }
    }
};

template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, bool LONG, bool SEVERAL>
DEVICE void recur(const StepView& step, const Recurrence& op, const Fold& fold, u32 least, u32 most) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    Span span = {};
    if (fold.held > 0) {
        wait_for_inputs();
        span = fold.span();
    } else {
        span = step.spans[blockIdx.z];
        // Whole chunks have gone into the state in this step. Else nothing in it writes the memory of a layer but this.
        if (span.is_final()) wait_for_inputs();
        if (has_prompts(KIND, 32 * QUADS) && span.is_final()) skip_chunks(span);
        const bool several = !span.is_final() && span.rows > 1 && span.rows < CHUNK;
        if (span.rows < least || span.rows > most || several != SEVERAL) return wait_for_inputs();
    }
    using Whole = Few<KIND, State, QUADS, WARPS, LANE_ROWS, LONG>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.template run<SEVERAL>();
}

// Blocks that a multiprocessor has registers for: one more of states in f16, unless their decays take that room.
template <u32 KIND, typename State, u32 LANE_ROWS> DEVICE constexpr u32 at_once() {
    return sizeof(State) == 2 && LANE_ROWS == 4 && KIND != DELTA_PER_CHANNEL ? 5 : 4;
}

// By most columns of a key: for many blocks, and for few or for spans of any length.
#define RECURRENCE(name, KIND, State, QUADS, LANE_ROWS, LONG)                                                          \
    KERNEL __launch_bounds__(32 * BLOCK_WARPS, at_once<KIND, State, LANE_ROWS>())                                      \
        name##_x##LANE_ROWS(StepView step, Recurrence op, Fold fold, u32 least, u32 most) {                            \
        recur<KIND, State, QUADS, BLOCK_WARPS, LANE_ROWS, LONG, false>(step, op, fold, least, most);                   \
    }

// Several rows that stay in the ring, by blocks of so many warps: all rows of most heads, so that what is found besides the
// state is found once.
#define SEVERAL_BY(name, KIND, State, QUADS, WARPS, LANE_ROWS)                                                         \
    KERNEL __launch_bounds__(32 * WARPS, 16 / WARPS)                                                                   \
        name##_several_##WARPS(StepView step, Recurrence op, Fold fold, u32 least, u32 most) {                         \
        recur<KIND, State, QUADS, WARPS, LANE_ROWS, false, true>(step, op, fold, least, most);                         \
    }

// The same of long spans.
#define SEVERAL_LONG(name, KIND, State, QUADS, LANE_ROWS)                                                              \
    KERNEL __launch_bounds__(256, 2)                                                                                   \
        name##_several_long(StepView step, Recurrence op, Fold fold, u32 least, u32 most) {                            \
        recur<KIND, State, QUADS, 8, LANE_ROWS, true, true>(step, op, fold, least, most);                              \
    }

// All of these.
#define SEVERAL(name, KIND, State)                                                                                     \
    SEVERAL_BY(name##_64, KIND, State, 2, 4, 4)                                                                        \
    SEVERAL_BY(name##_128, KIND, State, 4, 4, 4)                                                                       \
    SEVERAL_BY(name##_128, KIND, State, 4, 8, 4)                                                                       \
    SEVERAL_BY(name##_256, KIND, State, 8, 8, 2)                                                                       \
    SEVERAL_LONG(name##_64, KIND, State, 2, 4)                                                                         \
    SEVERAL_LONG(name##_128, KIND, State, 4, 4)                                                                        \
    SEVERAL_LONG(name##_256, KIND, State, 8, 2)
