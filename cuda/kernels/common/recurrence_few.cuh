// Rows that stay in the ring, up to as many as are solved together, and a single row that goes into the state. A row of a
// span gets the bits that it would get in a step of its own, so that drafts change no answer.
//
// What was written since the checkpoint (the entries: those of the ring, then the rows of the span) is not put into the
// state but answers for itself: `S x = S0 x' + sum_j u_j (k_j' . x)`, all factors at most 1. For every row the entries
// before it are added up in one order, the oldest first, then what the checkpoint gives, whether they are in the ring or
// in the span. How much an entry has faded until a row is told by a sum over those behind it: of up to 16 in the order of
// a tree that is rooted at the row (`sum_of_16`), of more by one that has no order (`Faded`).
#pragma once
#include "common/cluster.cuh"
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

template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, Fit FIT>
struct Few : Block<KIND, State, QUADS, WARPS, LANE_ROWS, FIT> {
    using Base = Block<KIND, State, QUADS, WARPS, LANE_ROWS, FIT>;
    using Base::op, Base::span, Base::head, Base::first_row, Base::state, Base::lane_row, Base::shared, Base::carry;
    using Base::clear_carry, Base::dot, Base::ring_row, Base::ring_g, Base::ring_k, Base::ring_u, Base::request_entries;
    using Base::fade_entries, Base::state_times, Base::store_state, Base::key_dim, Base::LONG, Base::WHOLE;
    static constexpr u32 COLUMNS = Base::COLUMNS, ROWS = Base::ROWS, MOST = Base::MOST, OWN_COLUMNS = Base::OWN_COLUMNS;
    static constexpr bool IS_DELTA = Base::IS_DELTA, PER_CHANNEL = Base::PER_CHANNEL;
    static constexpr u32 THREADS = Base::THREADS, GROUPS = THREADS / 8;
    static_assert(GROUPS >= CHUNK || !PER_CHANNEL, "a group for each entry that is looked at");

    // Eight lanes have some rows of the state: a lane has what one of them gives the key (`which` 0) or the query (1), or both where
    // there are eight.
    static constexpr u32 ANSWERS = LANE_ROWS == 8 ? 2 : 1;
    const u32 which = (lane_id() & 7) >> 2, row = lane_row() + (ANSWERS == 2 ? lane_id() & 7 : min(lane_id() & 3, LANE_ROWS - 1));
    const u32 group = threadIdx.x / 8; // that has an entry

    using Base::Base;

    // Found where they are asked for: registers are few.
    DEVICE bool is_mine() const { return (lane_id() & 3) < LANE_ROWS && (WHOLE || first_row + row < op.value_dim); }
    DEVICE bool has_keys() const { return !span.is_final() && first_row == 0 && op.is_first_of_key_head(head); }

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

    // Which of two answer number `of` of this lane is: to the key (0) or the query (1); and what of two belongs to it. Not an index: what
    // is looked up by one is in memory, and everything else that comes from there drives it out of the first cache.
    DEVICE u32 answer(u32 of) const { return ANSWERS == 2 ? of : which; }
    DEVICE float chosen(const float (&two)[2], u32 of) const { return answer(of) ? two[1] : two[0]; }

    // Where a lane puts what it finds for each row of the span: what goes to the ring (0), or outputs (1), which are stored if `PUTS`.
    struct Places {
        u8* first;
        u32 begin, mask, stride;
        bool is_any, is_output;

        DEVICE void put(u32 t, float x) const {
            u8* at = first + u64((begin + t) & mask) * stride;
            if (is_any && is_output) *reinterpret_cast<float*>(at) = x;
            if (is_any && !is_output) store_rounded(reinterpret_cast<f16*>(at), x);
        }
    };
    template <bool PUTS> DEVICE Places places() const { return places<PUTS>(answer(ANSWERS - 1)); }
    template <bool PUTS> DEVICE Places places(u32 of) const {
        const u32 width = op.value_heads * op.value_dim;
        if (of) {
            float* out = op.out + u64(span.first) * width + head * op.value_dim + first_row + row;
            return {reinterpret_cast<u8*>(out), 0, ~0u, 4 * width, PUTS && is_mine(), true};
        }
        return {reinterpret_cast<u8*>(ring_u(0) + row), span.after_base + span.after_held, op.ring - 1, 2 * op.value_dim,
                is_mine() && !span.is_final(), false};
    }

    // What a row of the span writes to a row of the state, and its output.
    struct Given {
        float u, y;
    };

    // Those of row `t`, of which the checkpoint and the entries give `to_key` and `to_query`.
    DEVICE Given solve(u32 t, float to_key, float to_query, float decay, float strength, float own) const {
        const float value = is_mine() ? shared.u[t][row] : 0.0f;
        const float u = strength * (IS_DELTA ? fmaf(-decay, to_key, value) : value);
        return {u, fmaf(own, u, fmaf(decay, to_query, shared.skip * value))};
    }
    // The same, of which a lane has `answered`, put where it belongs.
    DEVICE Given finish(const Places& to, u32 t, bool is_there, float answered, float decay, float strength, float own) const {
        const float other = __shfl_xor_sync(ALL_LANES, answered, 4);
        const Given given = solve(t, which ? other : answered, which ? answered : other, decay, strength, own);
        if (is_there) to.put(t, which ? given.y : given.u);
        return given;
    }
    DEVICE Given finish(const Places& to, u32 t, const float (&answered)[1], float decay, float strength, float own) const {
        return finish(to, t, true, answered[0], decay, strength, own);
    }
    // The same with both answers, of which `to` is the place of the second one.
    DEVICE Given finish(const Places& to, u32 t, const float (&answered)[2], float decay, float strength, float own) const {
        const Given given = solve(t, answered[0], answered[1], decay, strength, own);
        places<false>(0).put(t, given.u);
        to.put(t, given.y);
        return given;
    }

    // What the state gives a key and a query, times `scales`, is added to what is `answered`.
    DEVICE void ask_state(float (&answered)[ANSWERS], const float* key, const float* query, const float (&scales)[2]) const {
        float given[ANSWERS];
        Base::state_times(key, query, given);
#pragma unroll
        for (u32 of = 0; of < ANSWERS; ++of) answered[of] = fmaf(chosen(scales, of), given[of], answered[of]);
    }

    // What was `written` gives is added: its products are number `i`.
    DEVICE void add_written(float (&answered)[ANSWERS], float written, u32 i) const {
#pragma unroll
        for (u32 of = 0; of < ANSWERS; ++of) answered[of] = fmaf(written, shared.products[i][answer(of)], answered[of]);
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

    // What keys and queries of row `t` are multiplied with, and the product of both, so multiplied.
    struct Lengths {
        float scales[2], own;
    };

    // Every eight lanes of a warp find one of the products.
    DEVICE Lengths measure(u32 t) const {
        const float *key = shared.k[t], *query = shared.q[t];
        if constexpr (!IS_DELTA) return {{1.0f, 1.0f}, warp_sum<8>(dot(query, key))};
        const u32 of = lane_id() / 8;
        const float sum = warp_sum<8>(dot(of == 0 ? key : query, of == 1 ? query : key));
        const float key_scale = rsqrtf(__shfl_sync(ALL_LANES, sum, 0) + op.norm_eps);
        const float query_scale = rsqrtf(__shfl_sync(ALL_LANES, sum, 8) + op.norm_eps) * op.query_scale;
        return {{key_scale, query_scale}, __shfl_sync(ALL_LANES, sum, 16) * (key_scale * query_scale)};
    }

    // A single row: little but the state passes through registers. Its output.
    template <bool PUTS> DEVICE float run_one(u32 base, u32 held, Faded sum) {
        const float *key = shared.k[0], *query = shared.q[0];
        const float size = softplus(shared.g[0][0] + shared.bias[0]), g = shared.rate * size, decay = expf(g);
        const float strength = IS_DELTA ? sigmoid(shared.strengths[0]) : size;
        if (!span.is_final() && first_row == 0 && threadIdx.x == 0) *ring_g(entry(0)) = g;
        const Lengths lengths = measure(0);
        const float(&scales)[2] = lengths.scales;
        if (has_keys())
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column < key_dim()) store_rounded(ring_k(entry(0)) + column, key[column] * scales[0]);
            }
        float answered[ANSWERS] = {}, passed = 1.0f;
        const auto multiply = [&](float factor, u32 i, bool is_there) {
            const float to_query = dot(shared.entry_k[i], query);
            const float product = IS_DELTA ? sum_2_over_8(dot(shared.entry_k[i], key), to_query) : warp_sum<8>(to_query);
            if ((lane_id() & 3) == 0 && is_there) shared.products[i][which] = product * ((which ? scales[1] : scales[0]) * factor);
        };
        const auto add = [&](u32 count) {
#pragma unroll 4
            for (u32 i = count; i-- > 0;) add_written(answered, to_float(shared.entry_u[i][row]), i);
        };
        if (WHOLE && held > 0) wait_for_entries();
        if (held > CHUNK) {
            const auto one = [&](Faded newer, Faded sum, u32 count) {
#pragma unroll
                for (u32 first = 0; first < CHUNK; first += GROUPS) {
                    const u32 i = min(first + group, count - 1);
                    multiply(later(newer, sum, i).factor(), i, first + group < count);
                }
            };
            through_ring(base, held, sum, true, one, add);
            passed = sum.factor();
        } else if (held > 0) {
            const u32 lane = lane_id() & 15;
            const float fade = sum_of_16(lane < held ? shared.entry_g[0][lane] : 0.0f);
            passed = expf(__shfl_sync(ALL_LANES, fade, 15, 16));
#pragma unroll
            for (u32 first = 0; first < CHUNK; first += GROUPS) {
                const u32 i = first + group;
                const float newer = __shfl_sync(ALL_LANES, fade, i > 0 ? i - 1 : 0, 16);
                multiply(i > 0 ? expf(newer) : 1.0f, min(i, held - 1), i < held);
            }
            __syncthreads();
            add(held);
        }
        if (!shared.is_zero) ask_state(answered, key, query, {scales[0] * passed, scales[1] * passed});
        const Given given = finish(places<PUTS>(), 0, answered, decay, strength, lengths.own);
        if (span.is_final()) {
            if (WHOLE && shared.is_zero) Base::clear_state();
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
            shared.entry_k[i][column] = to_f16(shared.k[t][column]);
            shared.entry_g[i][column] = shared.g[t][column];
        }
#pragma unroll 1
        for (u32 at = threadIdx.x; at < in_span * ROWS; at += THREADS)
            shared.entry_u[at / ROWS][at % ROWS] = to_f16(shared.u[from + count - 1 - at / ROWS - held][at % ROWS]);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
    }

    // Some of what was written before a row, with decays per channel, newest first: `of_span` of them rows of the span from `newest`
    // back, the others entries in shared memory from `first` on.
    struct Written {
        u32 count, of_span, newest, first;
    };

    // Keys of these, faded until row `t`. Once there are no more of them (`all`), how much the state gives its key and query is known as well.
    DEVICE void fade_written(const Written& some, bool all) {
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) {
            const u32 column = threadIdx.x + n * THREADS;
            if (column >= COLUMNS) continue;
            const auto fade = [&](u32 i, float key, float g) {
                shared.faded[i][column] = key * expf(carry[n]);
                carry[n] += g;
            };
#pragma unroll 1
            for (u32 i = 0; i < some.of_span; ++i) fade(i, shared.k[some.newest - i][column], shared.g[some.newest - i][column]);
#pragma unroll 4
            for (u32 i = some.of_span; i < some.count; ++i)
                fade(i, to_float(shared.entry_k[some.first + i][column]), shared.entry_g[some.first + i][column]);
            if (!all) continue;
            const float passed = expf(carry[n]);
            shared.own[2][column] = shared.own[0][column] * passed;
            shared.own[3][column] = shared.own[1][column] * passed;
        }
        __syncthreads();
    }

    // Row `t` of a few, with decays per channel: keys of entries fade column by column, so each row goes through all of
    // them. Here the newest come first. Its output. `places()`: those of a lane. A thread makes what is needed of a column, from the row's
    // own step size to the last key: nobody waits in between. `IS_ONE`: it is the only row.
    template <bool IS_ONE, typename Where> DEVICE float run_channels(Where places, u32 t, u32 base, u32 held) {
        static_assert(MOST >= 4, "keys and queries of a row, and what meets the state");
        clear_carry();
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) {
            const u32 column = threadIdx.x + n * THREADS;
            if (column >= COLUMNS) continue;
            const float g = column < key_dim() ? shared.rate * softplus(shared.g[t][column] + shared.bias[column]) : 0.0f;
            const float passed = expf(g);
            shared.g[t][column] = g;
            shared.passed[0][column] = passed;
            shared.own[0][column] = shared.k[t][column] * passed;
            shared.own[1][column] = shared.q[t][column] * passed;
            if (!span.is_final() && first_row == 0 && column < key_dim()) ring_g(entry(t))[column] = g;
        }
        const Lengths lengths = measure(t);
        const float(&scales)[2] = lengths.scales;
        float answered[ANSWERS] = {};
        const u32 all = held + t;
        const auto look = [&](const Written& some, bool are_all) {
            fade_written(some, are_all);
            const u32 count = some.count;
            const u32 j = min(group, count - 1);
            const float product = sum_2_over_8(dot(shared.faded[j], shared.own[0]), dot(shared.faded[j], shared.own[1]));
            if ((lane_id() & 3) == 0 && group < count) shared.products[j][which] = product * (which ? scales[1] : scales[0]);
            __syncthreads();
#pragma unroll 1
            for (u32 i = 0; i < some.of_span; ++i) add_written(answered, shared.u[some.newest - i][row], i);
#pragma unroll 4
            for (u32 i = some.of_span; i < count; ++i) add_written(answered, to_float(shared.entry_u[some.first + i][row]), i);
        };
        const bool is_here = held <= CHUNK; // the whole ring: nothing has to be brought
        if (IS_ONE && WHOLE && held > 0) wait_for_entries();
        if (IS_ONE && is_here) {
            if (held > 0) look({held, 0, 0, 0}, true);
        } else {
#pragma unroll 1
            for (u32 age = 0; age < all; age += CHUNK) {
                const u32 count = min(all - age, CHUNK);
                if (!is_here && t + age > 0) bring_any(base, held, all - age - count, count);
                const u32 of_span = is_here && age < t ? min(t - age, count) : 0;
                look({count, of_span, t - 1 - age, is_here ? age - t : 0}, age + count == all);
            }
        }
        if (all == 0) __syncthreads();
        const float strength = sigmoid(shared.strengths[t]);
        if (!shared.is_zero) ask_state(answered, shared.own[all > 0 ? 2 : 0], shared.own[all > 0 ? 3 : 1], scales);
        const Given given = finish(places(), t, answered, 1.0f, strength, lengths.own);
        if (span.is_final()) {
            if (WHOLE && shared.is_zero) Base::clear_state();
            step_state(given.u * scales[0], 1.0f);
            store_state();
            return given.y;
        }
        // It becomes an entry.
        __syncthreads();
        if (is_mine() && (ANSWERS == 2 || which == 0)) shared.u[t][row] = as_entry(given.u);
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) {
            const u32 column = threadIdx.x + n * THREADS;
            if (column >= COLUMNS) continue;
            const float k = as_entry(shared.k[t][column] * scales[0]);
            shared.k[t][column] = k;
            if (has_keys() && column < key_dim()) store_rounded(ring_k(entry(t)) + column, k);
        }
        return given.y;
    }

    // What rows of a span begin with: entries that answer for themselves, from row `base` of the ring on; how much all of these
    // have faded, where they are more than are looked at together. In shared memory, whether the checkpoint is zero.
    struct Start {
        u32 base, held;
        Faded sum;
    };

    // Everything is asked for before anything is waited for: what earlier steps have left, then, with `request`, what this one
    // has made. `folds`: the entries go into the state. `behind`: what is done before anything is there. `ROWS_FIRST`: there are so many
    // blocks that nothing is won by what can be asked for early, and the rows are asked for before the entries and waited for without them, see
    // `wait_for_entries`.
    template <bool ROWS_FIRST, typename Request, typename Behind> DEVICE Start start(bool folds, Request request, Behind behind) {
        const u32 base = span.flush() ? span.before_base : span.after_base;
        const u32 held = span.flush() ? span.before_held : span.after_held;
        const bool is_zero = span.is_fresh();
        const u32 first_entries = min(held, CHUNK);
        const auto request_ring = [&] { request_entries(base, folds || !PER_CHANNEL ? 0 : held - first_entries, first_entries); };
        Base::request_state(is_zero);
        if (!ROWS_FIRST) request_ring();
        Base::request_constants();
        const Faded sum = !PER_CHANNEL && !folds && held > CHUNK ? sum_of_ring(base, held) : Faded();
        request();
        copies_commit();
        if (ROWS_FIRST) {
            request_ring();
            copies_commit();
        }
        behind();
        if (threadIdx.x == 0) shared.is_zero = is_zero && !(folds && held > 0);
        if (ROWS_FIRST && !folds) {
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        if (!stays_packed<State>()) Base::open_state();
        if (!folds) return {base, held, sum};
        if (WHOLE && is_zero) Base::clear_state();
        Base::fold(base, held);
        if (span.flush()) store_state();
        return {base, 0, Faded()};
    }

    // Before the first entries are looked at.
    static DEVICE void wait_for_entries() {
        copies_wait<0>();
        __syncthreads();
    }

    // Threads that a multiprocessor has registers for.
    static constexpr u32 THREADS_AT_WORK = 512;

    // Has the state of a block that is to come brought to the second-level cache: of the one that comes when all have gone that are at
    // work. One row with a state in f32 has so little to compute that memory is at work anyway, and takes 5 % longer with it.
    DEVICE void fetch_ahead(const Span* spans) const {
#ifdef HAS_CLUSTERS
        if (!WHOLE || threadIdx.x != THREADS - 32) return;
        const u32 parts = gridDim.x * gridDim.y, at_work = THREADS_AT_WORK / THREADS * multiprocessors();
        const u32 next = blockIdx.x + gridDim.x * blockIdx.y + parts * blockIdx.z + at_work;
        const u32 number = next / parts, part = next - number * parts;
        if (number >= gridDim.z) return;
        const Span& there = spans[number];
        const u32 head = part / gridDim.x, first_row = part % gridDim.x * ROWS;
        const u64 of_head = u64(there.slot) * op.value_heads + head;
        if (!there.is_fresh())
            fetch(static_cast<const State*>(op.state) + (of_head * op.value_dim + first_row) * COLUMNS, ROWS * COLUMNS * sizeof(State));
#endif
    }

    // Rows of a span that are not several that stay in the ring; `spans` of the step.
    DEVICE void run(const Span* spans) {
        const auto [base, held, sum] = start<WHOLE>(span.flush() || (LONG && span.rows >= CHUNK), [&] {
            wait_for_inputs();
            Base::template request_rows<LONG ? MOST : 1>(0, min(span.rows, CHUNK));
        }, [&] {
            if (stays_packed<State>()) fetch_ahead(spans);
        });
        if (span.rows == 0) return;
        if constexpr (LONG)
            if (span.rows > 1) return Base::run_many(shared.is_zero);
        if constexpr (PER_CHANNEL) {
            run_channels<true>([&] { return places<true>(); }, 0, base, held);
        } else {
            run_one<true>(base, held, sum);
        }
    }
};
