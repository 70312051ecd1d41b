// Rows that go into the state and are no whole chunks of prompts, and the ring, if it is folded.
//
// A block has some rows of the state of one value head of one span, in registers: it is read once, before anything is
// computed, and written once, if at all. Rows go through in chunks: the state meets them at once, and a triangular solve
// gives what each of them writes. Rows that stay in the ring: recurrence_few.cuh.
#pragma once
#include "common/copy.cuh"
#include "common/recurrence_state.cuh"

// Most rows of a short span.
static constexpr u32 SHORT = 8;

// Whether a state stays packed.
template <typename State> DEVICE constexpr bool stays_packed() { return sizeof(State) == 2; }

// Parameters: see `StateRows`. Where nothing is known of rows, spans may also have more of them than are solved together.
template <u32 KIND, typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, Fit FIT>
struct Block : StateRows<State, QUADS, WARPS, LANE_ROWS, KIND != MAMBA2, stays_packed<State>(), FIT> {
    using Base = StateRows<State, QUADS, WARPS, LANE_ROWS, KIND != MAMBA2, stays_packed<State>(), FIT>;
    static constexpr u32 COLUMNS = Base::COLUMNS, ROWS = Base::ROWS, THREADS = Base::THREADS; // of the state, of a block
    static constexpr bool LONG = Base::LOOSE, WHOLE = Base::WHOLE;
    static constexpr u32 MOST = LONG ? CHUNK : SHORT; // rows that are solved together
    static constexpr bool IS_DELTA = KIND != MAMBA2, PER_CHANNEL = KIND == DELTA_PER_CHANNEL;
    static constexpr u32 OWN_COLUMNS = (COLUMNS + THREADS - 1) / THREADS; // of a thread, where each has some
    static constexpr u32 ENTRY_COLUMNS = COLUMNS + 32; // of neighbours, whose first ones are in different banks

    struct Shared {
        float k[MOST][COLUMNS], q[MOST][COLUMNS]; // decayed from the state on for decays per channel
        f16 entry_k[CHUNK + MOST][ENTRY_COLUMNS], entry_u[CHUNK][ROWS]; // behind those of entries keys of rows that become some
        float faded[PER_CHANNEL ? CHUNK : 1][PER_CHANNEL ? COLUMNS : 4]; // keys of entries, decayed to the end of them
        float own[PER_CHANNEL ? MOST : 1][PER_CHANNEL ? COLUMNS : 4]; // the same of rows
        float passed[1][PER_CHANNEL ? COLUMNS : 4]; // how much the state fades by a row
        float u[MOST][ROWS];                        // values, then what is written
        float read[2][MOST][LONG ? ROWS : 16]; // what the state gives the keys and the queries, of long spans
        float kk[MOST][MOST], qk[MOST][MOST];
        float products[CHUNK][2 * MOST]; // of entries with keys and queries
        float g[PER_CHANNEL ? MOST : 1][PER_CHANNEL ? COLUMNS : CHUNK];       // of rows
        float entry_g[PER_CHANNEL ? CHUNK : 1][PER_CHANNEL ? COLUMNS : CHUNK]; // of entries
        float strengths[CHUNK], decays[CHUNK], advancing[CHUNK], factors[CHUNK]; // the last one of entries
        float fades[MOST][CHUNK]; // of recurrence_few.cuh
        float bias[PER_CHANNEL ? COLUMNS : 2], rate, skip; // that are the same for all rows
        u32 is_zero;                                       // the checkpoint, which is not looked at, then
    };

    using Base::op, Base::span, Base::head, Base::first_row, Base::state, Base::lane_row;
    using Base::key_dim, Base::add_entries, Base::scale_columns, Base::state_times, Base::round_state, Base::store_state;
    Shared& shared;
    const ::Shared shared_at;
    const u32 key_head;
    float carry[OWN_COLUMNS]; // logarithm of how much the entries that were looked at fade what is before them

    DEVICE Block(const Recurrence& op, const Span& span, Shared& shared)
        : Base(op, span), shared(shared), shared_at(once(::Shared{shared_address(&shared)})), key_head(op.key_head(head)) {}

    DEVICE u32 decay_count() const { return PER_CHANNEL ? key_dim() : 1; }

    // `exp(carry)` of all columns in `read`, which is not in use yet, and large enough.
    DEVICE void share_fading() {
        static_assert(!PER_CHANNEL || sizeof(shared.read) >= 4 * COLUMNS, "there is room for all columns");
        __syncthreads();
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n)
            if (threadIdx.x + n * THREADS < COLUMNS) (&shared.read[0][0][0])[threadIdx.x + n * THREADS] = expf(carry[n]);
        __syncthreads();
    }

    // Lets the state fade by `exp(carry)`. Decays per channel pass through shared memory.
    DEVICE void fade_state() {
        if constexpr (PER_CHANNEL) {
            share_fading();
            scale_columns(shared.read[0][0]);
            __syncthreads();
        } else {
            const float factor = expf(carry[0]);
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) state[i][n][e] *= factor;
        }
    }

    // Entries of the ring: `held` committed ones from row `base` on.

    DEVICE u32 ring_row(u32 base, u32 entry) const { return (base + entry) & (op.ring - 1); }
    DEVICE float* ring_g(u32 row) const {
        return op.ring_g + ((u64(span.slot) * op.value_heads + head) * op.ring + row) * decay_count();
    }
    DEVICE f16* ring_k(u32 row) const {
        return op.ring_k + ((u64(span.slot) * op.key_heads + key_head) * op.ring + row) * key_dim();
    }
    DEVICE f16* ring_u(u32 row) const {
        return op.ring_u + ((u64(span.slot) * op.value_heads + head) * op.ring + row) * op.value_dim + first_row;
    }

    DEVICE void clear_carry() {
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) carry[n] = 0.0f;
    }

    // Where something of `shared` is. The address of that is found once: every use of a pointer would find it again.
    DEVICE ::Shared shared_place(const void* at) const {
        return shared_at + u32(static_cast<const u8*>(at) - reinterpret_cast<const u8*>(&shared));
    }

    // Copies `rows` rows of `len` numbers, at most `LIMIT`, to rows of `WIDTH`, the rest zeros, without waiting for them.
    // Row `i` begins at number `offset(i)` of `from`: at multiples of 16 bytes, unless `loose`.
    template <u32 WIDTH, u32 LIMIT, typename Offset>
    DEVICE void request(float* to, const float* from, u32 rows, u32 len, bool loose, Offset offset) const {
        if (loose) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < rows * WIDTH; at += THREADS) {
                const u32 row = at / WIDTH, column = at % WIDTH;
                copy_4_async(to + at, from + offset(row) + (column < len ? column : 0), column < len);
            }
            return;
        }
        constexpr u32 PIECES = WIDTH / 4;
        const ::Shared first = shared_place(to);
        const u8* bytes = reinterpret_cast<const u8*>(from);
#pragma unroll
        for (u32 n = 0; n < (LIMIT * PIECES + THREADS - 1) / THREADS; ++n) {
            const u32 at = n * THREADS + threadIdx.x, row = at / PIECES, column = at % PIECES * 4;
            const bool is_there = column < len;
            if (row < rows) copy_16_async(first + 16 * at, bytes + 4 * (offset(row) + (is_there ? column : 0)), is_there);
        }
    }

    // The same of entries, in rows of `STRIDE` of which `WIDTH` are made.
    template <u32 WIDTH, u32 STRIDE, typename Offset>
    DEVICE void request_halves(f16* to, const f16* from, u32 rows, u32 len, bool loose, Offset offset) const {
        if (loose) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < rows * WIDTH; at += THREADS) {
                const u32 row = at / WIDTH, column = at % WIDTH;
                to[row * STRIDE + column] = column < len ? from[offset(row) + column] : f16{0};
            }
            return;
        }
        constexpr u32 EACH = WHOLE ? 8 : 4, PIECES = WIDTH / EACH;
        const ::Shared first = shared_place(to);
        const u8* bytes = reinterpret_cast<const u8*>(from);
#pragma unroll
        for (u32 n = 0; n < (CHUNK * PIECES + THREADS - 1) / THREADS; ++n) {
            const u32 at = n * THREADS + threadIdx.x, row = at / PIECES, column = at % PIECES * EACH;
            const bool is_there = column < len;
            if (row >= rows) continue;
            const ::Shared place = first + 2 * (row * STRIDE + column);
            const u8* here = bytes + 2 * (offset(row) + (is_there ? column : 0));
            if constexpr (WHOLE) {
                copy_16_async(place, here, is_there);
            } else {
                copy_8_async(place, here, is_there);
            }
        }
    }

    DEVICE u32 rows_left() const { return WHOLE ? ROWS : op.value_dim > first_row ? op.value_dim - first_row : 0; }
    DEVICE bool is_loose() const {
        return LONG && ((op.columns | op.queries_at | op.keys_at | op.values_at | key_dim() | op.value_dim) & 3) != 0;
    }

    // Asks for entries `from..from + count`, newest first, behind `place` others.
    DEVICE void request_entries(u32 base, u32 from, u32 count, u32 place = 0) {
        const u32 newest = base + from + count - 1, mask = op.ring - 1;
        const bool loose = LONG && ((key_dim() | op.value_dim) & 3) != 0;
        request_halves<COLUMNS, ENTRY_COLUMNS>(shared.entry_k[place], ring_k(0), count, key_dim(), loose,
                                               [&](u32 i) { return ((newest - i) & mask) * key_dim(); });
        request_halves<ROWS, ROWS>(shared.entry_u[place], ring_u(0), count, rows_left(), loose,
                                   [&](u32 i) { return ((newest - i) & mask) * op.value_dim; });
        if constexpr (PER_CHANNEL) {
            request<COLUMNS, CHUNK>(shared.entry_g[place], ring_g(0), count, key_dim(), loose,
                                    [&](u32 i) { return ((newest - i) & mask) * key_dim(); });
        } else if (threadIdx.x < count) {
            copy_4_async(shared_place(&shared.entry_g[0][threadIdx.x]), ring_g(0) + ((newest - threadIdx.x) & mask));
        }
    }

    // Once they are there: how much each has faded until the newest of them, and before that by `carry`, which they are
    // added to. For decays per channel the keys have, otherwise the `factors` have to be applied.
    DEVICE void fade_entries(u32 count) {
        if constexpr (PER_CHANNEL) {
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column >= COLUMNS) continue;
#pragma unroll 4
                for (u32 i = 0; i < count; ++i) {
                    shared.faded[i][column] = to_float(shared.entry_k[i][column]) * expf(carry[n]);
                    carry[n] += shared.entry_g[i][column];
                }
            }
        } else {
            float before = carry[0];
#pragma unroll 4
            for (u32 i = 0; i < count; ++i) {
                if (i == threadIdx.x) before = carry[0];
                carry[0] += shared.entry_g[0][i];
            }
            if (threadIdx.x < count) shared.factors[threadIdx.x] = expf(before);
        }
        __syncthreads();
    }

    // Of a faded entry what a row of the state gets, and four columns.
    DEVICE float entry_written(u32 entry, u32 row) const {
        const float written = to_float(shared.entry_u[entry][row]);
        return PER_CHANNEL ? written : __fmul_rn(written, shared.factors[entry]);
    }
    DEVICE float4 entry_key(u32 entry, u32 column) const {
        if constexpr (PER_CHANNEL) return load_four(&shared.faded[entry][column]);
        return load_four(&shared.entry_k[entry][column]);
    }

    DEVICE void load_entries(u32 base, u32 from, u32 count, bool are_here) {
        if (!are_here) {
            __syncthreads(); // what is there may still be read
            request_entries(base, from, count);
            copies_commit();
            copies_wait<0>();
            __syncthreads();
        }
        fade_entries(count);
    }

    // Puts all entries into a packed state, as `fold` does: rows see them one after the other.
    DEVICE void fold_packed(u32 base, u32 held) {
        Base::change_rows([&](u32 i, float (&row)[QUADS][4]) {
#pragma unroll 1
            for (u32 from = 0; from < held; from += CHUNK) {
                const u32 count = min(held - from, CHUNK);
                if (i == 0 || held > CHUNK) {
                    clear_carry();
                    load_entries(base, from, count, i == 0 && from == 0);
                    if constexpr (PER_CHANNEL) share_fading();
                }
                const float factor = PER_CHANNEL ? 1.0f : expf(carry[0]);
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e)
                        row[n][e] *= PER_CHANNEL ? (&shared.read[0][0][0])[(n * 8 + (lane_id() & 7)) * 4 + e] : factor;
#pragma unroll 1
                for (u32 j = 0; j < count; ++j) {
                    const float u = entry_written(j, lane_row() + i);
#pragma unroll
                    for (u32 n = 0; n < QUADS; ++n) {
                        const float4 k = entry_key(j, (n * 8 + (lane_id() & 7)) * 4);
                        row[n][0] = fmaf(u, k.x, row[n][0]), row[n][1] = fmaf(u, k.y, row[n][1]);
                        row[n][2] = fmaf(u, k.z, row[n][2]), row[n][3] = fmaf(u, k.w, row[n][3]);
                    }
                }
            }
        });
        __syncthreads(); // factors are read until here
    }

    // Puts all entries into the state, the oldest first. The first ones are there.
    DEVICE void fold(u32 base, u32 held) {
        if constexpr (stays_packed<State>()) return fold_packed(base, held);
#pragma unroll 1
        for (u32 from = 0; from < held; from += CHUNK) {
            const u32 count = min(held - from, CHUNK);
            clear_carry();
            load_entries(base, from, count, from == 0);
            fade_state();
            add_entries(count, [&](u32 j, u32 row) { return entry_written(j, row); }, [&](u32 j, u32 column) { return entry_key(j, column); });
        }
        __syncthreads(); // factors are read until here
    }

    // A part of the product of two rows in shared memory, the second one as an entry if it is: 8 neighbouring lanes have all of it.
    template <typename Element> static DEVICE float dot(const Element* a, const float* b, bool is_entry = false) {
        float sum = 0.0f;
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            const u32 at = (n * 8 + (lane_id() & 7)) * 4;
            const float4 x = load_four(a + at), y = is_entry ? as_entry(load_four(b + at)) : load_four(b + at);
            sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
        }
        return sum;
    }

    // Asks for rows `first..first + rows` of the span: keys, queries, values, step sizes; at most `LIMIT`.
    template <u32 LIMIT = MOST> DEVICE void request_rows(u32 first, u32 rows) {
        const float* inputs = op.inputs + u64(span.first + first) * op.columns;
        const bool loose = is_loose();
        const u32 of_key = key_head * key_dim(), stride = op.columns;
        request<COLUMNS, LIMIT>(shared.k[0], inputs + op.keys_at + of_key, rows, key_dim(), loose,
                               [&](u32 t) { return t * stride; });
        request<COLUMNS, LIMIT>(shared.q[0], inputs + op.queries_at + of_key, rows, key_dim(), loose,
                               [&](u32 t) { return t * stride; });
        request<ROWS, LIMIT>(shared.u[0], inputs + op.values_at + head * op.value_dim + first_row, rows, rows_left(),
                            loose, [&](u32 t) { return t * stride; });
        request_steps(first, rows);
    }

    DEVICE void request_steps(u32 first, u32 rows) {
        const u32 decays = decay_count(), all_decays = op.value_heads * decays;
        const float* steps = op.steps + u64(span.first + first) * all_decays + head * decays;
        if constexpr (PER_CHANNEL) {
            request<COLUMNS, MOST>(shared.g[0], steps, rows, decays, LONG && (key_dim() & 3) != 0,
                                   [&](u32 t) { return t * all_decays; });
        } else if (threadIdx.x < rows) {
            copy_4_async(shared_place(&shared.g[0][threadIdx.x]), steps + threadIdx.x * all_decays);
        }
        if (IS_DELTA && threadIdx.x < rows) {
            const float* beta = op.beta + u64(span.first + first + threadIdx.x) * op.value_heads + head;
            copy_4_async(shared_place(&shared.strengths[threadIdx.x]), beta);
        }
    }

    // Asks for what is the same for all rows.
    DEVICE void request_constants() {
        const u32 decays = decay_count();
#pragma unroll
        for (u32 n = 0; n < (PER_CHANNEL ? OWN_COLUMNS : 1); ++n) {
            const u32 column = threadIdx.x + n * THREADS;
            if (column < decays) request_one(shared_place(&shared.bias[column]), op.bias, head * decays + column);
        }
        // `rate` and `skip` are neighbours.
        if (threadIdx.x < 2) request_one(shared_place(&shared.rate) + 4 * threadIdx.x, threadIdx.x == 0 ? op.a : op.skip, head);
    }

    // Number `at` of some, or 0 if there are none.
    DEVICE void request_one(::Shared to, const float* from, u32 at) const {
        copy_4_async(to, from != nullptr ? from + at : op.inputs, from != nullptr);
    }

    // Once they are there: normalises keys and queries, and makes gates of step sizes.
    DEVICE void open_rows(u32 rows) {
        if constexpr (IS_DELTA) {
#pragma unroll 1
            for (u32 at = warp_id(); at < 2 * rows; at += THREADS / 32) {
                const bool is_query = at >= rows;
                float* row = is_query ? shared.q[at - rows] : shared.k[at];
                float x[QUADS], sum = 0.0f;
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n) {
                    x[n] = row[n * 32 + lane_id()];
                    sum = fmaf(x[n], x[n], sum);
                }
                float scale = rsqrtf(warp_sum(sum) + op.norm_eps);
                if (is_query) scale *= op.query_scale;
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n) row[n * 32 + lane_id()] = x[n] * scale;
            }
        }
        if constexpr (PER_CHANNEL) {
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
#pragma unroll 1
                for (u32 t = 0; column < key_dim() && t < rows; ++t)
                    shared.g[t][column] = shared.rate * softplus(shared.g[t][column] + shared.bias[column]);
            }
        } else if (threadIdx.x < rows) {
            const float size = softplus(shared.g[0][threadIdx.x] + shared.bias[0]);
            shared.g[0][threadIdx.x] = shared.rate * size;
            if constexpr (!IS_DELTA) shared.strengths[threadIdx.x] = size;
        }
        if (IS_DELTA && threadIdx.x < rows) shared.strengths[threadIdx.x] = sigmoid(shared.strengths[threadIdx.x]);
#pragma unroll 1
        for (u32 at = threadIdx.x; at < 2 * rows * ROWS; at += THREADS) {
            const u32 t = at / ROWS;
            shared.read[t >= rows][t >= rows ? t - rows : t][at % ROWS] = 0.0f;
        }
        __syncthreads();
    }

    // Products of the rows with each other, decayed; `faded` for the entries they become; `decays` from the state to
    // each row, which for decays per channel go into keys and queries. Rows go to the ring if they are to stay there.
    DEVICE void relate(u32 first, u32 rows, bool in_ring) {
        const u32 at = span.after_base + span.after_held + first;
        const bool has_keys = in_ring && first_row == 0 && op.is_first_of_key_head(head);
        if constexpr (PER_CHANNEL) {
            relate_channels(rows, in_ring);
        } else {
            relate_heads(rows, in_ring);
        }
        if (in_ring) {
            const u32 decays = decay_count();
#pragma unroll 1
            for (u32 i = threadIdx.x; first_row == 0 && i < rows * decays; i += THREADS)
                ring_g(ring_row(at, i / decays))[i % decays] = PER_CHANNEL ? shared.g[i / decays][i % decays] : shared.g[0][i];
            if (has_keys && !PER_CHANNEL)
#pragma unroll 1
                for (u32 i = threadIdx.x; i < rows * key_dim(); i += THREADS)
                    store_rounded(ring_k(ring_row(at, i / key_dim())) + i % key_dim(), shared.k[i / key_dim()][i % key_dim()]);
        }
    }

    DEVICE float sum_g(u32 from, u32 to) const {
        float sum = 0.0f;
#pragma unroll 4
        for (u32 i = from; i < to; ++i) sum += shared.g[0][i];
        return sum;
    }

    DEVICE void relate_heads(u32 rows, bool in_ring) {
#pragma unroll 1
        for (u32 pair = threadIdx.x; pair < rows * rows; pair += THREADS) {
            const u32 t = pair / rows, j = pair % rows;
            if (j <= t) shared.qk[t][j] = expf(sum_g(j + 1, t + 1));
        }
        if (threadIdx.x < rows) {
            shared.decays[threadIdx.x] = expf(sum_g(0, threadIdx.x + 1));
            shared.advancing[threadIdx.x] = expf(sum_g(threadIdx.x + 1, rows));
        }
        __syncthreads();
#pragma unroll 2
        for (u32 first_pair = 0; first_pair < rows * rows; first_pair += THREADS / 8) {
            const u32 pair = first_pair + threadIdx.x / 8, t = min(pair / rows, rows - 1), j = pair % rows;
            const bool is_entry = in_ring && j < t;
            const float kk = IS_DELTA ? warp_sum<8>(dot(shared.k[t], shared.k[j], is_entry)) : 0.0f;
            const float qk = warp_sum<8>(dot(shared.q[t], shared.k[j], is_entry));
            if ((threadIdx.x & 7) == 0 && pair < rows * rows && j <= t) {
                const float factor = shared.qk[t][j];
                shared.kk[t][j] = shared.strengths[t] * kk * factor;
                shared.qk[t][j] = qk * factor;
            }
        }
    }

    DEVICE void relate_channels(u32 rows, bool in_ring) {
        // A column of all rows at a time, one row after the other: factors are products of those of single rows.
        float passed[OWN_COLUMNS];
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) passed[n] = 1.0f;
#pragma unroll 1
        for (u32 t = 0; t < rows; ++t) {
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column >= COLUMNS) continue;
                const float factor = column < key_dim() ? expf(shared.g[t][column]) : 0.0f;
#pragma unroll 1
                for (u32 j = 0; j < t; ++j) shared.own[j][column] *= factor;
                shared.own[t][column] = shared.k[t][column];
                passed[n] *= factor;
            }
            __syncthreads();
#pragma unroll 1
            for (u32 first = 0; first <= t; first += THREADS / 8) {
                const u32 j = min(first + threadIdx.x / 8, t);
                const float kk = warp_sum<8>(dot(shared.k[t], shared.own[j]));
                const float qk = warp_sum<8>(dot(shared.q[t], shared.own[j]));
                if ((threadIdx.x & 7) == 0) {
                    shared.kk[t][j] = shared.strengths[t] * kk;
                    shared.qk[t][j] = qk;
                }
            }
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column >= COLUMNS) continue;
                if (in_ring) shared.own[t][column] = as_entry(shared.own[t][column]);
                shared.k[t][column] *= passed[n];
                shared.q[t][column] *= passed[n];
            }
        }
        __syncthreads();
    }

    // What the state gives keys and queries is added to `read`.
    DEVICE void read_state(u32 rows) {
#pragma unroll(LONG ? 4 : 1)
        for (u32 t = 0; t < rows; ++t) {
            float sums[2][LANE_ROWS];
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i) sums[0][i] = sums[1][i] = 0.0f;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 at = (n * 8 + (lane_id() & 7)) * 4;
                const float4 q = *reinterpret_cast<const float4*>(&shared.q[t][at]);
                float4 k = q;
                if constexpr (IS_DELTA) k = *reinterpret_cast<const float4*>(&shared.k[t][at]);
#pragma unroll
                for (u32 i = 0; i < LANE_ROWS; ++i) {
                    const float(&s)[4] = state[i][n];
                    sums[1][i] = fmaf(s[0], q.x, fmaf(s[1], q.y, fmaf(s[2], q.z, fmaf(s[3], q.w, sums[1][i]))));
                    if constexpr (IS_DELTA)
                        sums[0][i] = fmaf(s[0], k.x, fmaf(s[1], k.y, fmaf(s[2], k.z, fmaf(s[3], k.w, sums[0][i]))));
                }
            }
            float eight[8];
#pragma unroll
            for (u32 i = 0; i < 8; ++i) eight[i] = i % 4 < LANE_ROWS ? sums[i / 4][i % 4 % LANE_ROWS] : 0.0f;
            const float sum = sum_8_over_8(eight);
            const u32 which = (lane_id() & 7) / 4, row = lane_id() & 3;
            if (row < LANE_ROWS && (IS_DELTA || which == 1)) shared.read[which][t][lane_row() + row] += sum;
        }
    }

    // What each row writes, and its output. A thread has a row of the state.
    DEVICE void solve(u32 first, u32 rows, bool in_ring) {
        const u32 row = threadIdx.x;
        if (row >= ROWS || first_row + row >= op.value_dim) return;
        float* out = op.out + (u64(span.first + first) * op.value_heads + head) * op.value_dim + first_row + row;
        const u32 at = span.after_base + span.after_held + first;
        const u64 stride = u64(op.value_heads) * op.value_dim;
#pragma unroll 1
        for (u32 t = 0; t < rows; ++t) {
            const float decay = PER_CHANNEL ? 1.0f : shared.decays[t];
            const float value = shared.u[t][row];
            float mine = shared.strengths[t] * value;
            if constexpr (IS_DELTA) mine = shared.strengths[t] * (value - decay * shared.read[0][t][row]);
            float y = fmaf(decay, shared.read[1][t][row], shared.skip * value);
#pragma unroll 4
            for (u32 j = 0; j < t; ++j) {
                const float before = shared.u[j][row];
                if constexpr (IS_DELTA) mine = fmaf(-shared.kk[t][j], before, mine);
                y = fmaf(shared.qk[t][j], before, y);
            }
            y = fmaf(shared.qk[t][t], mine, y);
            shared.u[t][row] = in_ring ? as_entry(mine) : mine;
            out[t * stride] = y;
            if (in_ring) store_rounded(ring_u(ring_row(at, t)) + row, mine);
        }
    }

    // Puts the rows of a chunk into the state.
    DEVICE void advance(u32 rows, bool in_ring) {
        clear_carry();
        if constexpr (PER_CHANNEL) {
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
#pragma unroll 1
                for (u32 t = rows; column < key_dim() && t-- > 0;) carry[n] += shared.g[t][column];
            }
        } else {
            carry[0] = sum_g(0, rows);
#pragma unroll 4
            for (u32 at = threadIdx.x; at < rows * COLUMNS; at += THREADS) {
                const float k = shared.k[0][at];
                shared.k[0][at] = (in_ring ? as_entry(k) : k) * shared.advancing[at / COLUMNS];
            }
        }
        __syncthreads();
        fade_state();
        add_entries(rows, [&](u32 j, u32 row) { return shared.u[j][row]; },
                    [&](u32 j, u32 column) { return load_four(PER_CHANNEL ? &shared.own[j][column] : &shared.k[j][column]); });
    }

    // Keys of decays per channel go to the ring before they are decayed.
    DEVICE void append_keys(u32 first, u32 rows) {
        if (!PER_CHANNEL || first_row != 0 || !op.is_first_of_key_head(head)) return;
        const u32 at = span.after_base + span.after_held + first;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < rows * key_dim(); i += THREADS)
            store_rounded(ring_k(ring_row(at, i / key_dim())) + i % key_dim(), shared.k[i / key_dim()][i % key_dim()]);
        __syncthreads();
    }

    // Rows of which some or all go into the state, and no entry is left.
    DEVICE void run_many(bool is_zero) {
        const bool is_final = span.is_final();
        if (stays_packed<State>()) Base::open_state();
#pragma unroll 1
        for (u32 first = 0;; first += CHUNK) {
            const u32 rows = min(CHUNK, span.rows - first);
            if (LONG && first > 0) {
                __syncthreads();
                request_rows(first, rows);
                copies_commit();
                copies_wait<0>();
                __syncthreads();
            }
            open_rows(rows);
            if (!is_final) append_keys(first, rows);
            relate(first, rows, !is_final);
            __syncthreads();
            if (!is_zero) read_state(rows);
            __syncthreads();
            solve(first, rows, !is_final);
            const bool is_last = !LONG || first + CHUNK >= span.rows;
            if (!is_final && is_last) return;
            __syncthreads();
            advance(rows, !is_final);
            is_zero = false;
            if (is_last) break;
            if (is_final) round_state();
        }
        store_state(true);
    }
};
