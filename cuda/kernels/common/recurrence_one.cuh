// Recurrences of spans of one row, as in decoding: little but the state passes through the registers.
#pragma once
#include "common/recurrence_tile.cuh"

static constexpr u32 THREADS = 128;

// Adds up 8 values over 8 neighbouring lanes: lane `c` gets the sum of value `c`.
DEVICE float sum_8_over_8(const float (&x)[8]) {
    const u32 c = lane_id() & 7;
    float four[4], two[2];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const float mine = c & 4 ? x[i + 4] : x[i], theirs = c & 4 ? x[i] : x[i + 4];
        four[i] = mine + __shfl_xor_sync(ALL_LANES, theirs, 4);
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const float mine = c & 2 ? four[i + 2] : four[i], theirs = c & 2 ? four[i] : four[i + 2];
        two[i] = mine + __shfl_xor_sync(ALL_LANES, theirs, 2);
    }
    const float mine = c & 1 ? two[1] : two[0], theirs = c & 1 ? two[0] : two[1];
    return mine + __shfl_xor_sync(ALL_LANES, theirs, 1);
}

// `QUADS`: a lane has `QUADS` times 4 of the columns of a row, 8 lanes have a row. `LANE_ROWS`: rows of the state a lane has
// a part of. `State`: how checkpoints and rings are stored. `LOOSE`: keys may have fewer columns than there is room for, and rows
// begin anywhere.
template <u32 KIND, typename State, u32 QUADS, u32 LANE_ROWS> struct One {
    static constexpr bool LOOSE = QUADS > 4;
    static constexpr u32 COLUMNS = 32 * QUADS, ROWS = 16 * LANE_ROWS;
    static constexpr bool IS_DELTA = KIND != MAMBA2, PER_CHANNEL = KIND == DELTA_PER_CHANNEL;
    static constexpr u32 OWN_COLUMNS = (COLUMNS + THREADS - 1) / THREADS; // of a thread, where each has some
    static constexpr u32 RAW = sizeof(State); // words of four elements

    struct Shared {
        State keys[CHUNK][COLUMNS], u[CHUNK][ROWS]; // entries, the newest first
        float k[COLUMNS], q[COLUMNS], value[ROWS];
        float products[CHUNK][2]; // of entries with key and query
        float g[PER_CHANNEL ? COLUMNS : 4], entry_g[PER_CHANNEL ? CHUNK : 1][PER_CHANNEL ? COLUMNS : CHUNK];
        float faded[PER_CHANNEL ? CHUNK : 1][PER_CHANNEL ? COLUMNS : 4]; // keys of entries, until the newest of them
        float passed[PER_CHANNEL ? COLUMNS : 4], fade[PER_CHANNEL ? COLUMNS : 4];
        float decayed[2][PER_CHANNEL ? COLUMNS : 4]; // key and query, as they meet the state
        float factors[CHUNK], strength[4];
    };

    const Recurrence& op;
    const Span& span;
    Shared& shared;
    u32 head, key_head, first_row;
    u32 raw[LANE_ROWS][QUADS][RAW]; // the state on its way
    float state[LANE_ROWS][QUADS][4];
    float carry[OWN_COLUMNS];       // logarithm of how much the entries that were looked at fade what is before them
    float bias[OWN_COLUMNS], rate, skip;

    DEVICE One(const Recurrence& op, const Span& span, Shared& shared)
        : op(op), span(span), shared(shared), head(blockIdx.y), first_row(blockIdx.x * ROWS) {
        key_head = op.key_head(head);
    }

    DEVICE u32 lane_row() const { return warp_id() * 4 * LANE_ROWS + (lane_id() >> 3) * LANE_ROWS; }
    DEVICE u32 column_of(u32 n) const { return (n * 8 + (lane_id() & 7)) * 4; }
    DEVICE u32 decay_count() const { return PER_CHANNEL ? op.key_dim : 1; }
    DEVICE State* state_at() const {
        return static_cast<State*>(op.state) + ((u64(span.slot) * op.value_heads + head) * op.value_dim + first_row) * op.key_dim;
    }
    DEVICE State* ring_u() const {
        return static_cast<State*>(op.ring_u) + (u64(span.slot) * op.value_heads + head) * op.ring * op.value_dim + first_row;
    }
    DEVICE State* ring_k() const {
        return static_cast<State*>(op.ring_k) + (u64(span.slot) * op.key_heads + key_head) * op.ring * op.key_dim;
    }
    DEVICE float* ring_g() const { return op.ring_g + (u64(span.slot) * op.value_heads + head) * op.ring * decay_count(); }

    // Asks for the state, which is waited for where it is first used; zeros if it need not be read. Rows beyond the last
    // one are that one: nobody asks what becomes of them.
    DEVICE void request_state() {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const State* row = state_at() + i32(min(first_row + lane_row() + i, op.value_dim - 1) - first_row) * i32(op.key_dim);
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                if constexpr (!LOOSE) {
                    read_four(row + column_of(n), !span.is_fresh(), raw[i][n]);
                } else {
#pragma unroll
                    for (u32 e = 0; e < RAW; ++e) raw[i][n][e] = 0;
#pragma unroll
                    for (u32 e = 0; e < 4; ++e)
                        if (!span.is_fresh() && column_of(n) + e < op.key_dim)
                            Tile<State, COLUMNS, COLUMNS>::set(raw[i][n], e, row[column_of(n) + e]);
                }
            }
        }
    }
    static DEVICE void write_four(float* to, const float (&x)[4]) {
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
    static DEVICE void write_four(f16* to, const float (&x)[4]) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]));
    }

    DEVICE void open_state() {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) open_four(raw[i][n], state[i][n]);
    }

    // What is stored is what is in the registers.
    DEVICE void store_state() {
        const bool is_whole = !LOOSE || (op.key_dim & 3) == 0;
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            State* to = state_at() + (lane_row() + i) * op.key_dim;
            const bool is_row = first_row + lane_row() + i < op.value_dim;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 column = column_of(n);
#pragma unroll
                for (u32 e = 0; e < 4; ++e) state[i][n][e] = rounded(state[i][n][e], static_cast<State*>(nullptr));
                if (!is_row || (LOOSE && column >= op.key_dim)) continue;
                if (is_whole) {
                    write_four(to + column, state[i][n]);
                } else {
#pragma unroll
                    for (u32 e = 0; e < 4; ++e)
                        if (column + e < op.key_dim) store_rounded(to + column + e, state[i][n][e]);
                }
            }
        }
    }

    // Copies entries `newest, newest - 1, ..` of a ring, of `len` elements, to rows of `WIDTH`, the rest zeros, without waiting.
    template <u32 WIDTH, typename T>
    DEVICE void request(T* to, const T* from, u32 newest, u32 count, u32 stride, u32 len) {
        constexpr u32 EACH = 16 / sizeof(T), PIECES = WIDTH / EACH;
        const u32 mask = op.ring - 1;
        if (LOOSE && stride % EACH != 0) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < count * WIDTH; at += THREADS) {
                const u32 row = at / WIDTH, column = at % WIDTH;
                to[at] = column < len ? from[((newest - row) & mask) * stride + column] : T{};
            }
            return;
        }
#pragma unroll
        for (u32 n = 0; n < (CHUNK * PIECES + THREADS - 1) / THREADS; ++n) {
            const u32 at = n * THREADS + threadIdx.x, row = at / PIECES, column = at % PIECES * EACH;
            const bool is_there = column < len;
            if (row < count) copy_16_async(to + EACH * at, from + ((newest - row) & mask) * stride + (is_there ? column : 0), is_there);
        }
    }

    // Asks for entries `from..from + count`, newest first.
    DEVICE void request_entries(u32 base, u32 from, u32 count) {
        const u32 newest = base + from + count - 1;
        request<COLUMNS>(shared.keys[0], ring_k(), newest, count, op.key_dim, op.key_dim);
        request<ROWS>(shared.u[0], ring_u(), newest, count, op.value_dim, op.value_dim > first_row ? op.value_dim - first_row : 0);
        if constexpr (PER_CHANNEL) {
            request<COLUMNS>(shared.entry_g[0], ring_g(), newest, count, op.key_dim, op.key_dim);
        } else if (threadIdx.x < count) {
            copy_4_async(&shared.entry_g[0][threadIdx.x], ring_g() + ((newest - threadIdx.x) & (op.ring - 1)));
        }
    }

    template <u32 WIDTH> static DEVICE void request_row(float* to, const float* from, u32 thread, u32 len, bool is_whole) {
        if (LOOSE && !is_whole) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < WIDTH; at += THREADS) copy_4_async(to + at, from + (at < len ? at : 0), at < len);
            return;
        }
        if (thread < WIDTH / 4) copy_16_async(to + 4 * thread, from + (4 * thread < len ? 4 * thread : 0), 4 * thread < len);
    }

    // Asks for the row: key, query, value, step size.
    DEVICE void request_inputs() {
        const float* inputs = op.inputs + u64(span.first) * op.columns;
        const bool is_whole = !LOOSE || ((op.columns | op.queries_at | op.keys_at | op.values_at | op.key_dim | op.value_dim) & 3) == 0;
        const u32 left = op.value_dim > first_row ? op.value_dim - first_row : 0, thread = threadIdx.x;
        request_row<COLUMNS>(shared.k, inputs + op.keys_at + key_head * op.key_dim, thread, op.key_dim, is_whole);
        request_row<COLUMNS>(shared.q, inputs + op.queries_at + key_head * op.key_dim, thread ^ 64, op.key_dim, is_whole);
        request_row<ROWS>(shared.value, inputs + op.values_at + head * op.value_dim + first_row, thread ^ 32, left, is_whole);
        const u32 decays = decay_count();
        const float* steps = op.steps + (u64(span.first) * op.value_heads + head) * decays;
        if constexpr (PER_CHANNEL) {
            request_row<COLUMNS>(shared.g, steps, thread ^ 96, decays, !LOOSE || (op.key_dim & 3) == 0);
        } else if (thread == 96) {
            copy_4_async(shared.g, steps);
        }
        if (IS_DELTA && thread == 127) copy_4_async(shared.strength, op.beta + u64(span.first) * op.value_heads + head);
    }

    DEVICE void load_constants() {
        const u32 decays = decay_count();
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) {
            const u32 column = PER_CHANNEL ? threadIdx.x + n * THREADS : 0;
            bias[n] = op.bias != nullptr && column < decays ? op.bias[head * decays + column] : 0.0f;
        }
        rate = op.a != nullptr ? op.a[head] : 0.0f;
        skip = op.skip != nullptr ? op.skip[head] : 0.0f;
    }

    template <typename Each> DEVICE void for_columns(Each each) {
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n)
            if (threadIdx.x + n * THREADS < COLUMNS) each(threadIdx.x + n * THREADS, n);
    }

    DEVICE void clear_carry() {
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) carry[n] = 0.0f;
    }

    // How much each entry has faded until the newest of them, and before that by `carry`, which they are added to: in the
    // keys for decays per channel, otherwise in `factors`.
    DEVICE void fade_entries(u32 count) {
        if constexpr (PER_CHANNEL) {
            for_columns([&](u32 column, u32 n) {
#pragma unroll 4
                for (u32 i = 0; i < count; ++i) {
                    shared.faded[i][column] = to_float(shared.keys[i][column]) * expf(carry[n]);
                    carry[n] += shared.entry_g[i][column];
                }
            });
        } else {
            const u32 lane = lane_id() & 15;
            float sum = lane < count ? shared.entry_g[0][lane] : 0.0f;
#pragma unroll
            for (u32 offset = 1; offset < 16; offset *= 2) {
                const float before = __shfl_up_sync(ALL_LANES, sum, offset, 16);
                sum += lane >= offset ? before : 0.0f;
            }
            const float newer = __shfl_up_sync(ALL_LANES, sum, 1, 16);
            if (threadIdx.x < count) shared.factors[threadIdx.x] = expf(carry[0] + (lane > 0 ? newer : 0.0f));
            carry[0] += __shfl_sync(ALL_LANES, sum, 15, 16);
        }
        __syncthreads();
    }

    // The same of entry `thread / 8`, which needs nobody else.
    DEVICE float factor_of_group(u32 count) {
        const u32 lane = lane_id() & 15;
        float sum = lane < count ? shared.entry_g[0][lane] : 0.0f;
#pragma unroll
        for (u32 offset = 1; offset < 16; offset *= 2) {
            const float before = __shfl_up_sync(ALL_LANES, sum, offset, 16);
            sum += lane >= offset ? before : 0.0f;
        }
        const u32 group = threadIdx.x / 8;
        const float newer = __shfl_sync(ALL_LANES, sum, group > 0 ? group - 1 : 0, 16);
        const float factor = expf(carry[0] + (group > 0 ? newer : 0.0f));
        carry[0] += __shfl_sync(ALL_LANES, sum, 15, 16);
        return factor;
    }

    // Four elements of the key of an entry.
    DEVICE void entry_key(u32 j, u32 n, float (&x)[4]) const {
        if constexpr (PER_CHANNEL) {
            const float4 four = *reinterpret_cast<const float4*>(&shared.faded[j][column_of(n)]);
            x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        } else {
            u32 words[RAW];
#pragma unroll
            for (u32 e = 0; e < RAW; ++e) words[e] = reinterpret_cast<const u32*>(&shared.keys[j][column_of(n)])[e];
            open_four(words, x);
        }
    }

    // Puts all entries into the state, the oldest first, and stores it. The first ones are there.
    DEVICE void fold(u32 base, u32 held) {
#pragma unroll 1
        for (u32 from = 0; from < held; from += CHUNK) {
            const u32 count = min(held - from, CHUNK);
            if (from > 0) {
                __syncthreads();
                request_entries(base, from, count);
                copies_commit();
                copies_wait<0>();
                __syncthreads();
            }
            clear_carry();
            fade_entries(count);
            if constexpr (PER_CHANNEL) {
                for_columns([&](u32 column, u32 n) { shared.fade[column] = expf(carry[n]); });
                __syncthreads();
            }
            const float faded = expf(carry[0]);
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const float by = PER_CHANNEL ? shared.fade[column_of(n) + e] : faded;
#pragma unroll
                    for (u32 i = 0; i < LANE_ROWS; ++i) state[i][n][e] *= by;
                }
#pragma unroll 2
            for (u32 j = 0; j < count; ++j) {
                float u[LANE_ROWS];
#pragma unroll
                for (u32 i = 0; i < LANE_ROWS; ++i)
                    u[i] = to_float(shared.u[j][lane_row() + i]) * (PER_CHANNEL ? 1.0f : shared.factors[j]);
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n) {
                    float key[4];
                    entry_key(j, n, key);
#pragma unroll
                    for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
                        for (u32 e = 0; e < 4; ++e) state[i][n][e] = fmaf(u[i], key[e], state[i][n][e]);
                }
            }
        }
        store_state();
    }

    // What entries give the key or the query of the lane's row of the state; `carry` is what they fade the state by.
    DEVICE float answer(u32 base, u32 held, const float* key, const float* query) {
        const u32 c = lane_id() & 7, which = c >> 2, row = lane_row() + (c & 3) % LANE_ROWS, j = threadIdx.x / 8;
        float answered = 0.0f;
#pragma unroll 1
        for (u32 end = held; end > 0;) {
            const u32 count = min(end, CHUNK);
            if (end < held) {
                __syncthreads();
                request_entries(base, end - count, count);
                copies_commit();
                copies_wait<0>();
                __syncthreads();
            }
            float to_key = 0.0f, to_query = 0.0f, factor = 1.0f;
            if constexpr (PER_CHANNEL) {
                fade_entries(count);
            } else {
                factor = factor_of_group(count);
            }
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                float x[4];
                entry_key(min(j, count - 1), n, x);
                const float4 q = *reinterpret_cast<const float4*>(query + column_of(n));
                to_query = fmaf(x[0], q.x, fmaf(x[1], q.y, fmaf(x[2], q.z, fmaf(x[3], q.w, to_query))));
                if constexpr (IS_DELTA) {
                    const float4 k = *reinterpret_cast<const float4*>(key + column_of(n));
                    to_key = fmaf(x[0], k.x, fmaf(x[1], k.y, fmaf(x[2], k.z, fmaf(x[3], k.w, to_key))));
                }
            }
            to_query = warp_sum<8>(to_query);
            if constexpr (IS_DELTA) to_key = warp_sum<8>(to_key);
            if (c == 0 && j < count)
                *reinterpret_cast<float2*>(shared.products[j]) = make_float2(to_key * factor, to_query * factor);
            __syncthreads();
#pragma unroll 4
            for (u32 i = 0; i < count; ++i) answered = fmaf(to_float(shared.u[i][row]), shared.products[i][which], answered);
            end -= count;
        }
        return answered;
    }

    // The products of rows of the state with a key and a query, one to a lane.
    DEVICE float state_times(const float* key, const float* query) const {
        float sums[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sums[i] = 0.0f;
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            const float4 q = *reinterpret_cast<const float4*>(query + column_of(n));
            float4 k = q;
            if constexpr (IS_DELTA) k = *reinterpret_cast<const float4*>(key + column_of(n));
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i) {
                const float(&s)[4] = state[i][n];
                sums[4 + i] = fmaf(s[0], q.x, fmaf(s[1], q.y, fmaf(s[2], q.z, fmaf(s[3], q.w, sums[4 + i]))));
                if constexpr (IS_DELTA)
                    sums[i] = fmaf(s[0], k.x, fmaf(s[1], k.y, fmaf(s[2], k.z, fmaf(s[3], k.w, sums[i]))));
            }
        }
        return sum_8_over_8(sums);
    }

    // state = state faded + u k^T, with the `u` of a row of the state in lane `row` of its eight.
    DEVICE void step_state(float u, float decay) {
        float written[LANE_ROWS];
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) written[i] = __shfl_sync(ALL_LANES, u, (lane_id() & 24) | i);
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 column = column_of(n) + e;
                const float k = shared.k[column], fade = PER_CHANNEL ? shared.passed[column] : decay;
#pragma unroll
                for (u32 i = 0; i < LANE_ROWS; ++i) state[i][n][e] = fmaf(fade, state[i][n][e], written[i] * k);
            }
        store_state();
    }

    DEVICE void run_row(u32 base, u32 held) {
        const u32 c = lane_id() & 7, which = c >> 2, row = lane_row() + (c & 3);
        const bool is_final = span.is_final(), is_mine = (c & 3) < LANE_ROWS && first_row + row < op.value_dim;
        const u32 entry = (span.after_base + span.after_held) & (op.ring - 1);
        const bool has_gates = !is_final && blockIdx.x == 0;
        const bool has_keys = has_gates && op.is_first_of_key_head(head);
        float decay = 1.0f, strength = IS_DELTA ? sigmoid(shared.strength[0]) : 0.0f;
        clear_carry();
        const float *key = shared.k, *query = shared.q;
        if constexpr (PER_CHANNEL) {
            key = shared.decayed[0], query = shared.decayed[1];
            for_columns([&](u32 column, u32 n) {
                const float g = column < op.key_dim ? rate * softplus(shared.g[column] + bias[n]) : 0.0f, passed = expf(g);
                shared.passed[column] = passed;
                shared.decayed[0][column] = shared.k[column] * passed;
                shared.decayed[1][column] = shared.q[column] * passed;
                if (has_gates && column < op.key_dim) ring_g()[entry * op.key_dim + column] = g;
            });
            __syncthreads();
        } else {
            const float size = softplus(shared.g[0] + bias[0]), g = rate * size;
            decay = expf(g);
            if constexpr (!IS_DELTA) strength = size;
            if (has_gates && threadIdx.x == 0) ring_g()[entry] = g;
        }
        float scales[2] = {1.0f, 1.0f}, own = 0.0f, kk = 0.0f, qq = 0.0f;
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            const float4 k = *reinterpret_cast<const float4*>(shared.k + column_of(n)), q = *reinterpret_cast<const float4*>(shared.q + column_of(n));
            own = fmaf(k.x, q.x, fmaf(k.y, q.y, fmaf(k.z, q.z, fmaf(k.w, q.w, own))));
            if constexpr (IS_DELTA) {
                kk = fmaf(k.x, k.x, fmaf(k.y, k.y, fmaf(k.z, k.z, fmaf(k.w, k.w, kk))));
                qq = fmaf(q.x, q.x, fmaf(q.y, q.y, fmaf(q.z, q.z, fmaf(q.w, q.w, qq))));
            }
        }
        own = warp_sum<8>(own);
        if constexpr (IS_DELTA) {
            scales[0] = rsqrtf(warp_sum<8>(kk) + op.norm_eps);
            scales[1] = rsqrtf(warp_sum<8>(qq) + op.norm_eps) * op.query_scale;
            own *= scales[0] * scales[1];
        }
        if (has_keys)
            for_columns([&](u32 column, u32) {
                float x = shared.k[column] * scales[0];
                if (column < op.key_dim) store_rounded(ring_k() + entry * op.key_dim + column, x);
            });
        float answered = answer(base, held, key, query);
        float by = 1.0f;
        if constexpr (PER_CHANNEL) {
            if (held > 0) {
                for_columns([&](u32 column, u32 n) {
                    const float passed = expf(carry[n]);
                    shared.decayed[0][column] *= passed;
                    shared.decayed[1][column] *= passed;
                });
                __syncthreads();
            }
        } else {
            by = expf(carry[0]);
        }
        answered = scales[which] * fmaf(by, state_times(key, query), answered);
        const float other = __shfl_xor_sync(ALL_LANES, answered, 4);
        const float to_key = which ? other : answered, to_query = which ? answered : other;
        const float value = is_mine ? shared.value[row] : 0.0f;
        float u = IS_DELTA ? strength * (value - decay * to_key) : strength * value;
        const float y = fmaf(own, u, fmaf(decay, to_query, skip * value));
        if (is_mine && which == 1) op.out[(u64(span.first) * op.value_heads + head) * op.value_dim + first_row + row] = y;
        if (is_final) {
            step_state(u * scales[0], decay);
        } else if (is_mine && which == 0) {
            store_rounded(ring_u() + entry * op.value_dim + row, u);
        }
    }

    DEVICE void run() {
        const u32 base = span.flush() ? span.before_base : span.after_base;
        const u32 held = span.flush() ? span.before_held : span.after_held;
        // Everything is asked for before anything is waited for, what is needed first at first.
        const u32 first_entries = min(held, CHUNK);
        if (span.rows > 0) request_inputs();
        request_entries(base, span.flush() ? 0 : held - first_entries, first_entries);
        copies_commit();
        load_constants();
        request_state();
        copies_wait<0>();
        __syncthreads();
        open_state();
        if (span.flush()) fold(base, held);
        if (span.rows > 0) run_row(base, span.flush() ? 0 : held);
    }
};

template <u32 KIND, typename State, u32 QUADS, u32 LANE_ROWS>
DEVICE void recur_one(const StepView& step, const Recurrence& op, const Fold& fold) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    wait_for_inputs();
    Span span = fold.held > 0 ? fold.span() : step.spans[blockIdx.z];
    if (fold.held == 0) {
        if (KIND != DELTA_PER_CHANNEL && span.is_final()) skip_chunks(span);
        if (span.rows != 1) return;
    }
    using Whole = One<KIND, State, QUADS, LANE_ROWS>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.run();
}

// By most columns of a key: for many blocks, and for few.
#define RECURRENCE_ONE(name, KIND, State, QUADS, LANE_ROWS)                                                           \
    KERNEL __launch_bounds__(THREADS, 4) name##_one_x##LANE_ROWS(StepView step, Recurrence op, Fold fold) {           \
        recur_one<KIND, State, QUADS, LANE_ROWS>(step, op, fold);                                                     \
    }
