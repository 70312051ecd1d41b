// Several rows that stay in the ring, up to as many as are solved together: see recurrence_few.cuh; and the kernels of recurrences but
// those of whole chunks of prompts.
#pragma once
#include "common/recurrence_few.cuh"

template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, Fit FIT>
struct Several : Few<KIND, State, QUADS, WARPS, LANE_ROWS, FIT> {
    using Base = Few<KIND, State, QUADS, WARPS, LANE_ROWS, FIT>;
    using Base::op, Base::span, Base::head, Base::first_row, Base::shared, Base::which, Base::row, Base::entry, Base::has_keys;
    using Base::ring_g, Base::ring_k, Base::dot, Base::key_dim, Base::later, Base::finish, Base::group;
    static constexpr u32 COLUMNS = Base::COLUMNS, ROWS = Base::ROWS, MOST = Base::MOST;
    static constexpr u32 THREADS = Base::THREADS, GROUPS = Base::GROUPS;
    static constexpr bool IS_DELTA = Base::IS_DELTA, LONG = Base::LONG;
    using typename Base::Places;

    using Base::Base;

    // The products of an entry, four of whose columns a lane has of every 32, with the keys and queries of two rows of the
    // span from `first` on: one to every two of eight lanes, those of keys first.
    DEVICE float times_rows(const float4 (&x)[QUADS], u32 first) const {
        float sums[4] = {};
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 at = (n * 8 + (lane_id() & 7)) * 4;
                const float4 q = *reinterpret_cast<const float4*>(&shared.q[first + i][at]);
                sums[2 + i] = fmaf(x[n].x, q.x, fmaf(x[n].y, q.y, fmaf(x[n].z, q.z, fmaf(x[n].w, q.w, sums[2 + i]))));
                if constexpr (!IS_DELTA) continue;
                const float4 k = *reinterpret_cast<const float4*>(&shared.k[first + i][at]);
                sums[i] = fmaf(x[n].x, k.x, fmaf(x[n].y, k.y, fmaf(x[n].z, k.z, fmaf(x[n].w, k.w, sums[i]))));
            }
        }
        return sum_4_over_8(sums);
    }

    // Where the product of entry `j` of the span with the key or query of row `t` is.
    DEVICE float& pair(u32 j, u32 of, u32 t) const { return (&shared.read[0][0][0])[(2 * j + of) * MOST + t]; }

    // How long keys (`factors`) and queries (`advancing`) are, and their products (`kk`): a pair of rows to eight lanes, of as many rows
    // as there may be. Whoever has a key stores it as that of an entry, which is how rows behind find it. Warps without a pair do
    // something else meanwhile, see `fade_rows`.
    template <u32 WIDTH> DEVICE void measure_rows(u32 rows) {
        constexpr u32 PAIRS = (IS_DELTA ? 3 : 1) * WIDTH;
        const bool is_first = (lane_id() & 7) == 0;
#pragma unroll
        for (u32 first = 0; first < PAIRS; first += GROUPS) {
            if (first + 4 * warp_id() >= PAIRS) break;
            const u32 i = first + group, kind = i / WIDTH, t = i % WIDTH;
            const float *a = kind == 1 ? shared.k[t] : shared.q[t], *b = kind == 2 ? shared.q[t] : shared.k[t];
            const float sum = warp_sum<8>(dot(a, b));
            if (kind == 0 && is_first) shared.kk[0][t] = sum;
            if (kind == 2 && is_first) shared.advancing[t] = rsqrtf(sum + op.norm_eps) * op.query_scale;
            if (kind != (IS_DELTA ? 1 : 0) || t >= rows) continue;
            const float length = IS_DELTA ? rsqrtf(sum + op.norm_eps) : 1.0f;
            if (is_first) shared.factors[t] = length;
            if (!IS_DELTA && is_first) shared.advancing[t] = 1.0f;
            store_key(t, length);
        }
    }

    // The key of row `t` times its `length`, by eight lanes.
    DEVICE void store_key(u32 t, float length) {
        f16* to = ring_k(entry(t));
        const bool keeps = has_keys();
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            const u32 column = (n * 8 + (lane_id() & 7)) * 4;
            const float* key = &shared.k[t][column];
            f16* here = &shared.entry_k[CHUNK + t][column];
            store_four_rounded(here, make_float4(key[0] * length, key[1] * length, key[2] * length, key[3] * length));
            if (!LONG && keeps && column < key_dim()) *reinterpret_cast<uint2*>(to + column) = *reinterpret_cast<const uint2*>(here);
#pragma unroll
            for (u32 e = 0; LONG && e < 4; ++e)
                if (keeps && column + e < key_dim()) to[column + e] = here[e];
        }
    }

    // How much entries fade until each row, where they are no more than there are groups: `fades`, by how many others are
    // between, and `decays` for all. Lanes `t` of every 16 have the decay `g` of row `t`. Half a warp finds it for a row, the last one for
    // the first row: the first ones measure rows.
    template <u32 WIDTH> DEVICE void fade_rows(u32 held, float g) {
        const u32 p = lane_id() & 15;
#pragma unroll
        for (u32 t = THREADS / 16 - 1 - threadIdx.x / 16; t < WIDTH; t += THREADS / 16) {
            const float of_span = __shfl_sync(ALL_LANES, g, t - 1 - p, 16);
            const float fade = sum_of_16(p < t ? of_span : p < t + held ? shared.entry_g[0][p - t] : 0.0f);
            const float newer = __shfl_up_sync(ALL_LANES, fade, 1, 16);
            shared.fades[t][p] = p > 0 ? expf(newer) : 1.0f;
            if (p == 15) shared.decays[t] = expf(fade);
        }
    }

    // Up to `WIDTH` rows, with a decay per head. What does not depend on what other rows of the span write is found for
    // all of them at once; what is found for rows that are not there is anything, and nobody reads it.
    template <u32 WIDTH> DEVICE void run_some(u32 rows, u32 base, u32 held, Faded sum) {
        static_assert(2 * MOST * MOST <= sizeof(shared.read) / 4 && WIDTH <= MOST, "pairs are where `read` is");
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
        if (first_row == 0 && threadIdx.x < rows) *ring_g(entry(threadIdx.x)) = g;
        measure_rows<WIDTH>(rows);
        __syncthreads();
        // Entries of the ring, and with them the rows of the span, times rows: a warp has four of these and two of those at a time.
        bool has_span = true;
        const auto multiply = [&](Faded newer, Faded sum, u32 count) {
            const u32 of_ring = (count + 3) / 4;
            u32 four = warp_id();
#pragma unroll 1
            for (u32 first = 0; first < rows; first += 2) {
                const u32 t = first + ((lane & 2) >> 1), fours = of_ring + (has_span ? first / 4 + 1 : 0); // only rows behind ask
#pragma unroll 1
                for (; four < fours; four += WARPS) {
                    const bool is_own = four >= of_ring;
                    const u32 here = is_own ? rows : count, group = 4 * (is_own ? four - of_ring : four) + lane / 8;
                    const u32 i = min(group, here - 1);
                    const f16* key = shared.entry_k[is_own ? CHUNK + i : i];
                    float4 x[QUADS];
#pragma unroll
                    for (u32 n = 0; n < QUADS; ++n) x[n] = load_four(&key[(n * 8 + (lane & 7)) * 4]);
                    const float product = times_rows(x, first), scale = which ? shared.advancing[t] : shared.factors[t];
                    float faded = shared.fades[t][is_own ? (t > i ? t - 1 - i : 0) : min(i + t, CHUNK - 1)];
                    if (has_many) {
                        const Faded from = is_own ? Faded() - until.of(i) : later(newer, sum, i);
                        const float many = (from + before.of(t)).factor();
                        faded = held + t > CHUNK ? many : faded;
                    }
                    float* to = is_own ? &pair(i, which, 0) : &shared.products[i][which * MOST];
                    if (group < here && (lane & 1) == 0) to[t] = product * (scale * faded);
                }
                four -= fours;
            }
            has_span = false;
        };
        float answered[WIDTH], u[WIDTH];
#pragma unroll
        for (u32 t = 0; t < WIDTH; ++t) answered[t] = 0.0f;
        const auto add = [&](u32 count) {
#pragma unroll 2
            for (u32 i = count; i-- > 0;) {
                const float of_row = to_float(shared.entry_u[i][row]);
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
        Base::through_ring(base, held, sum, has_many, multiply, add);
        // What the state gives: two rows at a time, the last ones first, that move on by two. Code that is repeated is where instructions
        // come from.
        float given[WIDTH] = {};
#pragma unroll 1
        for (u32 t = (rows + 1) & ~1u; t > 0;) {
            t -= 2;
            float two[2];
            Base::state_times_rows(shared.k[t], shared.q[t], two);
#pragma unroll
            for (u32 i = WIDTH - 1; i > 1; --i) given[i] = given[i - 2];
            given[0] = two[0], given[1] = two[1];
        }
        const Places to = Base::template places<true>();
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
            if (!shared.is_zero) answered[t] = fmaf(by, given[t], answered[t]);
            float own = shared.kk[0][t];
            if constexpr (IS_DELTA) own *= shared.factors[t] * shared.advancing[t];
            const float of_row[2] = {__shfl_sync(ALL_LANES, decay, t), __shfl_sync(ALL_LANES, strength, t)};
            u[t] = as_entry(finish(to, t, t < rows, answered[t], of_row[0], of_row[1], own).u);
        }
    }

    DEVICE void run(const Span* spans) {
        const auto [base, held, sum] = Base::template start<false>(span.flush(), [&] {
            wait_for_inputs();
            Base::request_rows(0, span.rows);
        }, [&] { Base::fetch_ahead(spans); });
        if constexpr (Base::PER_CHANNEL) {
            const Places to = Base::template places<true>();
#pragma unroll 1
            for (u32 t = 0; t < span.rows; ++t) Base::template run_channels<false>([&] { return to; }, t, base, held);
        } else {
            if constexpr (LONG) return run_some<16>(span.rows, base, held, sum);
            if (span.rows <= 4) return run_some<4>(span.rows, base, held, sum);
            run_some<8>(span.rows, base, held, sum);
        }
    }
};

// What goes through rows, `SEVERAL` that stay in the ring or others.
template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, Fit FIT, bool SEVERAL> struct Rows {
    using Of = Few<KIND, State, QUADS, WARPS, LANE_ROWS, FIT>;
};
template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, Fit FIT>
struct Rows<KIND, State, QUADS, WARPS, LANE_ROWS, FIT, true> {
    using Of = Several<KIND, State, QUADS, WARPS, LANE_ROWS, FIT>;
};

// Whether rows of a span are left here, from `least` to `most`, `several` of which stay in the ring or not.
DEVICE bool is_taken(Span& span, u32 kind, u32 columns, u32 least, u32 most, bool several) {
    // Whole chunks have gone into the state in this step. Else nothing in it writes the memory of a layer but this.
    if (span.is_final()) wait_for_inputs();
    if (has_prompts(kind, columns) && span.is_final()) skip_chunks(span);
    const bool stays = !span.is_final() && span.rows > 1 && span.rows < CHUNK;
    return span.rows >= least && span.rows <= most && stays == several;
}

template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, Fit FIT, bool SEVERAL>
DEVICE void recur(const StepView& step, const Recurrence& op, const Fold& fold, u32 least, u32 most) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    Span span = {};
    if (fold.held > 0) {
        wait_for_inputs();
        span = fold.span();
    } else {
        span = step.spans[blockIdx.z];
        if (!is_taken(span, KIND, 32 * QUADS, least, most, SEVERAL)) return wait_for_inputs();
    }
    using Whole = typename Rows<KIND, State, QUADS, WARPS, LANE_ROWS, FIT, SEVERAL>::Of;
    Whole(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes)).run(step.spans);
}

// Blocks of so many warps that a multiprocessor has registers for: more of states in f16, unless their decays take that room.
template <u32 KIND, typename State, u32 WARPS, u32 LANE_ROWS> DEVICE constexpr u32 at_once() {
    return sizeof(State) == 2 && LANE_ROWS == 4 && KIND != DELTA_PER_CHANNEL ? 5 : 16 / WARPS;
}

// By most columns of a key: for many blocks, and for few or for spans of any length; all rows of which are whole.
#define RECURRENCE_OF(name, KIND, State, QUADS, WARPS, LANE_ROWS, FIT)                                                 \
    KERNEL __launch_bounds__(32 * WARPS, at_once<KIND, State, WARPS, LANE_ROWS>())                                     \
        name(StepView step, Recurrence op, Fold fold, u32 least, u32 most) {                                           \
        recur<KIND, State, QUADS, WARPS, LANE_ROWS, FIT, false>(step, op, fold, least, most);                          \
    }
#define RECURRENCE_BY(name, KIND, State, QUADS, LANE_ROWS, FIT) RECURRENCE_OF(name, KIND, State, QUADS, BLOCK_WARPS, LANE_ROWS, FIT)
#define RECURRENCES(name, KIND, State)                                                                                 \
    RECURRENCE_BY(name##_64_x4, KIND, State, 2, 4, ROWS_OF_FOUR)                                                       \
    RECURRENCE_BY(name##_64_x1, KIND, State, 2, 1, LOOSE_ROWS)                                                         \
    RECURRENCE_BY(name##_128_x4, KIND, State, 4, 4, ROWS_OF_FOUR)                                                      \
    RECURRENCE_BY(name##_128_x4_whole, KIND, State, 4, 4, WHOLE_ROWS)                                                  \
    RECURRENCE_BY(name##_128_x1, KIND, State, 4, 1, LOOSE_ROWS)                                                        \
    RECURRENCE_BY(name##_256_x1, KIND, State, 8, 1, LOOSE_ROWS)

// Of states that take half of the registers: eight rows to a lane, in blocks of so many warps.
#define RECURRENCE_OF_EIGHT(name, KIND, State, WARPS) RECURRENCE_OF(name##_128_x8_whole, KIND, State, 4, WARPS, 8, WHOLE_ROWS)

// Several rows that stay in the ring, by blocks of so many warps: all rows of most heads, so that what is found besides the
// state is found once.
#define SEVERAL_BY(name, KIND, State, QUADS, WARPS, LANE_ROWS, FIT)                                                    \
    KERNEL __launch_bounds__(32 * WARPS, 16 / WARPS)                                                                   \
        name(StepView step, Recurrence op, Fold fold, u32 least, u32 most) {                                           \
        recur<KIND, State, QUADS, WARPS, LANE_ROWS, FIT, true>(step, op, fold, least, most);                           \
    }

// All of these; for spans of any length those that are long.
#define SEVERAL(name, KIND, State)                                                                                     \
    SEVERAL_BY(name##_64_several_4, KIND, State, 2, 4, 4, ROWS_OF_FOUR)                                                \
    SEVERAL_BY(name##_128_several_4, KIND, State, 4, 4, 4, ROWS_OF_FOUR)                                               \
    SEVERAL_BY(name##_128_several_8, KIND, State, 4, 8, 4, ROWS_OF_FOUR)                                               \
    SEVERAL_BY(name##_128_several_4_whole, KIND, State, 4, 4, 4, WHOLE_ROWS)                                           \
    SEVERAL_BY(name##_128_several_8_whole, KIND, State, 4, 8, 4, WHOLE_ROWS)                                           \
    SEVERAL_BY(name##_256_several_8, KIND, State, 8, 8, 2, ROWS_OF_FOUR)                                               \
    SEVERAL_BY(name##_64_several_long, KIND, State, 2, 8, 4, LOOSE_ROWS)                                               \
    SEVERAL_BY(name##_128_several_long, KIND, State, 4, 8, 4, LOOSE_ROWS)                                              \
    SEVERAL_BY(name##_256_several_long, KIND, State, 8, 8, 2, LOOSE_ROWS)
