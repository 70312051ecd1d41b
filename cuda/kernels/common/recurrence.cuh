// Recurrences over a matrix per head, with a checkpoint and a replay ring (ALGORITHMS 2.2, 2.4, 2.5):
//   S = S diag(exp(g)), u = beta (v - S k) or u = size v, S += u k^T, out = S q + skip v.
//
// A block has some rows of the state of one value head of one span, in registers: it is read once, before anything is
// computed, and written once, if at all. What was written since (the ring) is not put into it unless the ring is folded
// or many rows follow, but answers for itself: `S x = S0 x' + sum_j u_j (k_j' . x)`, all factors at most 1. Rows go
// through in chunks: the state meets them at once, and a triangular solve gives what each of them writes.
#pragma once
#include "common/copy.cuh"
#include "common/step.cuh"
#include "common/warp.cuh"

enum Kind : u32 { DELTA, DELTA_PER_CHANNEL, MAMBA2 };

struct Recurrence {
    const float* inputs; // [rows][columns]
    u32 columns;
    u32 queries_at, keys_at, values_at;
    const float* steps; // [rows][value_heads * decays]: alpha or dt
    const float* beta;  // [rows][value_heads]
    const float* bias;  // [value_heads * decays]
    const float* a;     // [value_heads]
    const float* skip;  // [value_heads]
    float* out;         // [rows][value_heads * value_dim]
    void* state;        // [slots][value_heads][value_dim][key_dim]
    float* ring_u;      // [slots][value_heads][ring][value_dim]
    float* ring_k;      // [slots][key_heads][ring][key_dim]
    float* ring_g;      // [slots][value_heads][ring][decays]
    u32 ring;
    u32 key_heads, value_heads, key_dim, value_dim;
    u32 tiled; // value head `h` reads key head `h % key_heads`, otherwise `h / (value_heads / key_heads)`
    float norm_eps;
    u32 padding;
};

// Rows that are solved together: `CHUNK` of backend/src/step.rs; also entries of the ring that are looked at together.
static constexpr u32 CHUNK = 16;
static constexpr u32 THREADS = 128;

DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// A state is stored as f32 or f16: to the nearest, what is too large as the largest.
DEVICE void store_rounded(float* at, float& x) { *at = x; }
DEVICE void store_rounded(f16* at, float& x) {
    *at = to_f16(fminf(fmaxf(x, -65504.0f), 65504.0f));
    x = to_float(*at);
}
DEVICE float rounded(float x, const float*) { return x; }
DEVICE float rounded(float x, const f16*) { return to_float(to_f16(fminf(fmaxf(x, -65504.0f), 65504.0f))); }

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

// `QUADS`: a lane has `QUADS` times 4 of the columns of a row, 8 lanes have a row. `LANE_ROWS`: rows of the state a lane
// has a part of. `State`: how checkpoints are stored.
template <u32 KIND, typename State, u32 QUADS, u32 LANE_ROWS> struct Block {
    static constexpr u32 COLUMNS = 32 * QUADS;
    static constexpr u32 ROWS = 16 * LANE_ROWS; // of the state
    static constexpr bool IS_DELTA = KIND != MAMBA2, PER_CHANNEL = KIND == DELTA_PER_CHANNEL;
    static constexpr u32 OWN_COLUMNS = (COLUMNS + THREADS - 1) / THREADS; // of a thread, where each has some

    struct Shared {
        float k[CHUNK][COLUMNS], q[CHUNK][COLUMNS]; // decayed from the state on for decays per channel
        float faded[CHUNK][COLUMNS];                // keys of entries, decayed to the end of them
        float u[CHUNK][ROWS];                       // values, then what is written
        float ring_u[CHUNK][ROWS];
        float read[2][CHUNK][ROWS]; // what the state gives the keys and the queries
        float kk[CHUNK][CHUNK], qk[CHUNK][CHUNK];
        float products[CHUNK][2 * CHUNK]; // of entries with keys and queries
        float g[PER_CHANNEL ? CHUNK : 1][PER_CHANNEL ? COLUMNS : CHUNK];
        float strengths[CHUNK], decays[CHUNK];
    };

    const Recurrence& op;
    const Span& span;
    Shared& shared;
    u32 head, key_head, first_row;
    float state[LANE_ROWS][QUADS][4];
    float carry[OWN_COLUMNS]; // logarithm of how much the entries that were looked at fade what is before them

    DEVICE Block(const Recurrence& op, const Span& span, Shared& shared)
        : op(op), span(span), shared(shared), head(blockIdx.y), first_row(blockIdx.x * ROWS) {
        key_head = op.tiled ? head % op.key_heads : head / (op.value_heads / op.key_heads);
    }

    DEVICE u32 lane_row() const { return warp_id() * 4 * LANE_ROWS + (lane_id() >> 3) * LANE_ROWS; }
    DEVICE u32 decay_count() const { return PER_CHANNEL ? op.key_dim : 1; }
    DEVICE State* state_at() const {
        return static_cast<State*>(op.state) +
               ((u64(span.slot) * op.value_heads + head) * op.value_dim + first_row) * op.key_dim;
    }

    DEVICE void zero_state() {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) state[i][n][e] = 0.0f;
    }

    DEVICE void load_state() {
        const State* from = state_at();
        const bool whole = (op.key_dim & 3) == 0;
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const u32 row = lane_row() + i;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 column = (n * 8 + (lane_id() & 7)) * 4;
                const bool inside = first_row + row < op.value_dim;
                float(&x)[4] = state[i][n];
                if (whole) {
                    x[0] = x[1] = x[2] = x[3] = 0.0f;
                    if (inside && column < op.key_dim) read_four(from + u64(row) * op.key_dim + column, x);
                    continue;
                }
#pragma unroll
                for (u32 e = 0; e < 4; ++e)
                    x[e] = inside && column + e < op.key_dim ? to_float(from[u64(row) * op.key_dim + column + e]) : 0.0f;
            }
        }
    }

    static DEVICE void read_four(const float* from, float (&x)[4]) {
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "l"(from));
    }
    static DEVICE void read_four(const f16* from, float (&x)[4]) {
        u32 low, high;
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "l"(from));
        x[0] = low_f16(low), x[1] = high_f16(low), x[2] = low_f16(high), x[3] = high_f16(high);
    }
    static DEVICE void write_four(float* to, float (&x)[4]) {
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
    static DEVICE void write_four(f16* to, float (&x)[4]) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]));
    }

    // What is stored is what is in the registers.
    DEVICE void store_state() {
        State* to = state_at();
        const bool whole = (op.key_dim & 3) == 0;
        round_state();
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const u32 row = lane_row() + i;
            if (first_row + row >= op.value_dim) continue;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 column = (n * 8 + (lane_id() & 7)) * 4;
                if (whole) {
                    if (column < op.key_dim) write_four(to + u64(row) * op.key_dim + column, state[i][n]);
                    continue;
                }
#pragma unroll
                for (u32 e = 0; e < 4; ++e)
                    if (column + e < op.key_dim) store_rounded(to + u64(row) * op.key_dim + column + e, state[i][n][e]);
            }
        }
    }

    DEVICE void round_state() {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) state[i][n][e] = rounded(state[i][n][e], static_cast<State*>(nullptr));
    }

    // Lets the state fade by `exp(carry)`. Decays per channel pass through shared memory.
    DEVICE void fade_state() {
        if constexpr (PER_CHANNEL) {
            float* factors = shared.read[0][0]; // not in use yet, and large enough
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n)
                if (threadIdx.x + n * THREADS < COLUMNS) factors[threadIdx.x + n * THREADS] = expf(carry[n]);
            __syncthreads();
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const float factor = factors[(n * 8 + (lane_id() & 7)) * 4 + e];
#pragma unroll
                    for (u32 i = 0; i < LANE_ROWS; ++i) state[i][n][e] *= factor;
                }
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

    // state += sum_j u_j faded_j^T of `count` entries.
    DEVICE void add_entries(const float (*u)[ROWS], u32 count) {
#pragma unroll 2
        for (u32 j = 0; j < count; ++j) {
            float rows[LANE_ROWS];
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i) rows[i] = u[j][lane_row() + i];
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const float4 k = *reinterpret_cast<const float4*>(&shared.faded[j][(n * 8 + (lane_id() & 7)) * 4]);
#pragma unroll
                for (u32 i = 0; i < LANE_ROWS; ++i) {
                    state[i][n][0] = fmaf(rows[i], k.x, state[i][n][0]);
                    state[i][n][1] = fmaf(rows[i], k.y, state[i][n][1]);
                    state[i][n][2] = fmaf(rows[i], k.z, state[i][n][2]);
                    state[i][n][3] = fmaf(rows[i], k.w, state[i][n][3]);
                }
            }
        }
    }

    // Entries of the ring: `held` committed ones from row `base` on.

    DEVICE u32 ring_row(u32 base, u32 entry) const { return (base + entry) & (op.ring - 1); }
    DEVICE const float* ring_g(u32 row) const {
        return op.ring_g + ((u64(span.slot) * op.value_heads + head) * op.ring + row) * decay_count();
    }
    DEVICE const float* ring_k(u32 row) const {
        return op.ring_k + ((u64(span.slot) * op.key_heads + key_head) * op.ring + row) * op.key_dim;
    }
    DEVICE const float* ring_u(u32 row) const {
        return op.ring_u + ((u64(span.slot) * op.value_heads + head) * op.ring + row) * op.value_dim + first_row;
    }

    DEVICE void clear_carry() {
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) carry[n] = 0.0f;
    }

    // `carry` of all entries.
    DEVICE void sum_entries(u32 base, u32 held) {
        clear_carry();
#pragma unroll 1
        for (u32 j = held; j-- > 0;) {
            const float* g = ring_g(ring_row(base, j));
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (!PER_CHANNEL || column < op.key_dim) carry[n] += g[PER_CHANNEL ? column : 0];
            }
        }
    }

    // Brings entries `from..from + count`, newest first, into `faded` and `ring_u`, and adds them to `carry`.
    DEVICE void load_entries(u32 base, u32 from, u32 count) {
        __syncthreads(); // what is there may still be read
        float g[CHUNK];
#pragma unroll
        for (u32 n = 0; n < OWN_COLUMNS; ++n) {
            const u32 column = threadIdx.x + n * THREADS;
            const bool inside = column < op.key_dim;
            float k[CHUNK];
#pragma unroll
            for (u32 i = 0; i < CHUNK; ++i) {
                const u32 row = ring_row(base, from + count - 1 - i);
                k[i] = i < count && inside ? ring_k(row)[column] : 0.0f;
                g[i] = i < count && (!PER_CHANNEL || inside) ? ring_g(row)[PER_CHANNEL ? column : 0] : 0.0f;
            }
#pragma unroll
            for (u32 i = 0; i < CHUNK; ++i) {
                if (column < COLUMNS && i < count) shared.faded[i][column] = k[i] * expf(carry[n]);
                carry[n] += g[i];
            }
        }
        // All loads first, then what waits for them.
        constexpr u32 EACH = CHUNK * ROWS / THREADS;
        float u[EACH];
#pragma unroll
        for (u32 n = 0; n < EACH; ++n) {
            const u32 i = (n * THREADS + threadIdx.x) / ROWS, row = threadIdx.x % ROWS;
            const bool inside = i < count && first_row + row < op.value_dim;
            u[n] = inside ? ring_u(ring_row(base, from + count - 1 - i))[row] : 0.0f;
        }
#pragma unroll
        for (u32 n = 0; n < EACH; ++n) {
            const u32 i = (n * THREADS + threadIdx.x) / ROWS, row = threadIdx.x % ROWS;
            if (i < count) shared.ring_u[i][row] = u[n];
        }
        __syncthreads();
    }

    // Puts all entries into the state.
    DEVICE void fold(u32 base, u32 held) {
        if (held == 0) return;
        sum_entries(base, held);
        fade_state();
        clear_carry();
#pragma unroll 1
        for (u32 end = held; end > 0;) {
            const u32 count = min(end, CHUNK);
            load_entries(base, end - count, count);
            add_entries(shared.ring_u, count);
            end -= count;
        }
    }

    // Lets all entries answer the keys and queries of a chunk, into `read`, and the state fade.
    DEVICE void answer(u32 base, u32 held, u32 rows) {
        clear_carry();
#pragma unroll 1
        for (u32 end = held; end > 0;) {
            const u32 count = min(end, CHUNK);
            load_entries(base, end - count, count);
            const u32 pairs = count * 2 * rows;
#pragma unroll 1
            for (u32 first = 0; first < pairs; first += THREADS / 8) {
                const u32 pair = first + threadIdx.x / 8, j = min(pair / (2 * rows), count - 1), x = pair % (2 * rows);
                const float* row = x < rows ? shared.k[x] : shared.q[x - rows];
                const float sum = warp_sum<8>(dot(shared.faded[j], row));
                if (pair < pairs && (threadIdx.x & 7) == 0) shared.products[j][x] = sum;
            }
            __syncthreads();
#pragma unroll 1
            for (u32 at = threadIdx.x; at < 2 * ROWS; at += THREADS) {
                const u32 which = at / ROWS, row = at % ROWS;
                if (which == 0 && !IS_DELTA) continue;
#pragma unroll 1
                for (u32 t = 0; t < rows; ++t) {
                    float sum = 0.0f;
#pragma unroll 1
                    for (u32 j = 0; j < count; ++j)
                        sum = fmaf(shared.ring_u[j][row], shared.products[j][which * rows + t], sum);
                    shared.read[which][t][row] += sum;
                }
            }
            end -= count;
        }
        // The first part of `read` is room for factors there: not now.
        if (held > 0) fade_after_answer();
    }

    DEVICE void fade_after_answer() {
        if constexpr (PER_CHANNEL) {
            __syncthreads();
            float* factors = shared.faded[0];
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n)
                if (threadIdx.x + n * THREADS < COLUMNS) factors[threadIdx.x + n * THREADS] = expf(carry[n]);
            __syncthreads();
            scale_columns(factors);
        } else {
            fade_state();
        }
    }

    DEVICE void scale_columns(const float* factors) {
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const float factor = factors[(n * 8 + (lane_id() & 7)) * 4 + e];
#pragma unroll
                for (u32 i = 0; i < LANE_ROWS; ++i) state[i][n][e] *= factor;
            }
    }

    // A part of the product of two rows in shared memory: 8 neighbouring lanes have all of it.
    static DEVICE float dot(const float* a, const float* b) {
        float sum = 0.0f;
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            const u32 at = (n * 8 + (lane_id() & 7)) * 4;
            const float4 x = *reinterpret_cast<const float4*>(a + at), y = *reinterpret_cast<const float4*>(b + at);
            sum = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, sum))));
        }
        return sum;
    }

    // Rows `first..first + rows` of the span: keys, queries, values, gates.
    DEVICE void load_rows(u32 first, u32 rows) {
        __syncthreads();
#pragma unroll 1
        for (u32 at = warp_id(); at < 2 * rows; at += THREADS / 32) {
            const bool is_query = at >= rows;
            const u32 t = is_query ? at - rows : at;
            const float* from = op.inputs + u64(span.first + first + t) * op.columns +
                                (is_query ? op.queries_at : op.keys_at) + key_head * op.key_dim;
            float* to = is_query ? shared.q[t] : shared.k[t];
            float x[QUADS], sum = 0.0f;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 column = n * 32 + lane_id();
                x[n] = column < op.key_dim ? from[column] : 0.0f;
                sum = fmaf(x[n], x[n], sum);
            }
            float scale = 1.0f;
            if (IS_DELTA) {
                scale = 1.0f / sqrtf(warp_sum(sum) + op.norm_eps);
                if (is_query) scale *= 1.0f / sqrtf(float(op.key_dim));
            }
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) to[n * 32 + lane_id()] = IS_DELTA ? x[n] * scale : x[n];
        }
#pragma unroll 4
        for (u32 at = threadIdx.x; at < rows * ROWS; at += THREADS) {
            const u32 t = at / ROWS, row = at % ROWS;
            const float* from = op.inputs + u64(span.first + first + t) * op.columns + op.values_at;
            shared.u[t][row] = first_row + row < op.value_dim ? from[u64(head) * op.value_dim + first_row + row] : 0.0f;
        }
        load_gates(first, rows);
#pragma unroll 1
        for (u32 at = threadIdx.x; at < 2 * rows * ROWS; at += THREADS) {
            const u32 t = at / ROWS;
            shared.read[t >= rows][t >= rows ? t - rows : t][at % ROWS] = 0.0f;
        }
        __syncthreads();
    }

    DEVICE void load_gates(u32 first, u32 rows) {
        const u32 decays = decay_count();
#pragma unroll 1
        for (u32 at = threadIdx.x; at < rows * decays; at += THREADS) {
            const u32 t = at / decays, i = head * decays + at % decays;
            const float size = softplus(op.steps[u64(span.first + first + t) * op.value_heads * decays + i] + op.bias[i]);
            const float g = op.a[head] * size;
            if constexpr (PER_CHANNEL) {
                shared.g[t][at % decays] = g;
            } else {
                shared.g[0][t] = g;
                if constexpr (!IS_DELTA) shared.strengths[t] = size;
            }
        }
        if constexpr (IS_DELTA) {
#pragma unroll 1
            for (u32 t = threadIdx.x; t < rows; t += THREADS)
                shared.strengths[t] = sigmoid(op.beta[u64(span.first + first + t) * op.value_heads + head]);
        }
    }

    // Products of the rows with each other, decayed; `faded` for the entries they become; `decays` from the state to
    // each row, which for decays per channel go into keys and queries. Rows go to the ring if they are to stay there.
    DEVICE void relate(u32 first, u32 rows, bool in_ring) {
        const u32 at = span.after_base + span.after_held + first;
        const bool has_keys = in_ring && blockIdx.x == 0 && is_first_of_key_head();
        if constexpr (PER_CHANNEL) {
            relate_channels(rows);
        } else {
#pragma unroll 1
            for (u32 first_pair = 0; first_pair < rows * rows; first_pair += THREADS / 8) {
                const u32 pair = min(first_pair + threadIdx.x / 8, rows * rows - 1), t = pair / rows, j = pair % rows;
                float sum = 0.0f;
#pragma unroll 1
                for (u32 i = j + 1; i <= t; ++i) sum += shared.g[0][i];
                const float factor = expf(sum);
                const float kk = warp_sum<8>(dot(shared.k[t], shared.k[j]));
                const float qk = warp_sum<8>(dot(shared.q[t], shared.k[j]));
                if ((threadIdx.x & 7) == 0 && j <= t) {
                    shared.kk[t][j] = shared.strengths[t] * kk * factor;
                    shared.qk[t][j] = qk * factor;
                }
            }
            if (threadIdx.x < rows) {
                float sum = 0.0f;
#pragma unroll 1
                for (u32 i = 0; i <= threadIdx.x; ++i) sum += shared.g[0][i];
                shared.decays[threadIdx.x] = expf(sum);
            }
        }
        if (in_ring) {
            const u32 decays = decay_count();
#pragma unroll 1
            for (u32 i = threadIdx.x; blockIdx.x == 0 && i < rows * decays; i += THREADS)
                const_cast<float*>(ring_g(ring_row(at, i / decays)))[i % decays] =
                    PER_CHANNEL ? shared.g[i / decays][i % decays] : shared.g[0][i];
            if (has_keys && !PER_CHANNEL)
#pragma unroll 1
                for (u32 i = threadIdx.x; i < rows * op.key_dim; i += THREADS)
                    const_cast<float*>(ring_k(ring_row(at, i / op.key_dim)))[i % op.key_dim] =
                        shared.k[i / op.key_dim][i % op.key_dim];
        }
    }

    DEVICE bool is_first_of_key_head() const {
        return op.tiled ? head < op.key_heads : head % (op.value_heads / op.key_heads) == 0;
    }

    DEVICE void relate_channels(u32 rows) {
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
                const float factor = column < op.key_dim ? expf(shared.g[t][column]) : 0.0f;
#pragma unroll 1
                for (u32 j = 0; j < t; ++j) shared.faded[j][column] *= factor;
                shared.faded[t][column] = shared.k[t][column];
                passed[n] *= factor;
            }
            __syncthreads();
#pragma unroll 1
            for (u32 first = 0; first <= t; first += THREADS / 8) {
                const u32 j = min(first + threadIdx.x / 8, t);
                const float kk = warp_sum<8>(dot(shared.k[t], shared.faded[j]));
                const float qk = warp_sum<8>(dot(shared.q[t], shared.faded[j]));
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
                shared.k[t][column] *= passed[n];
                shared.q[t][column] *= passed[n];
            }
        }
        __syncthreads();
    }

    // What the state gives keys and queries is added to `read`.
    DEVICE void read_state(u32 rows) {
#pragma unroll 1
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
        const float skip = IS_DELTA ? 0.0f : op.skip[head];
        float* out = op.out + (u64(span.first + first) * op.value_heads + head) * op.value_dim + first_row + row;
        const u32 at = span.after_base + span.after_held + first;
#pragma unroll 1
        for (u32 t = 0; t < rows; ++t) {
            const float decay = PER_CHANNEL ? 1.0f : shared.decays[t];
            const float value = shared.u[t][row];
            float u = shared.strengths[t] * value;
            if constexpr (IS_DELTA) {
                u = shared.strengths[t] * (value - decay * shared.read[0][t][row]);
#pragma unroll 4
                for (u32 j = 0; j < t; ++j) u = fmaf(-shared.kk[t][j], shared.u[j][row], u);
            }
            shared.u[t][row] = u;
            float y = fmaf(decay, shared.read[1][t][row], skip * value);
#pragma unroll 4
            for (u32 j = 0; j < t; ++j) y = fmaf(shared.qk[t][j], shared.u[j][row], y);
            y = fmaf(shared.qk[t][t], u, y);
            out[u64(t) * op.value_heads * op.value_dim] = y;
            if (in_ring) const_cast<float*>(ring_u(ring_row(at, t)))[row] = u;
        }
    }

    // Puts the rows of a chunk into the state.
    DEVICE void advance(u32 rows) {
        clear_carry();
        if constexpr (PER_CHANNEL) {
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
#pragma unroll 1
                for (u32 t = rows; column < op.key_dim && t-- > 0;) carry[n] += shared.g[t][column];
            }
        } else {
#pragma unroll 1
            for (u32 t = rows; t-- > 0;) carry[0] += shared.g[0][t];
#pragma unroll 1
            for (u32 at = threadIdx.x; at < rows * COLUMNS; at += THREADS) {
                const u32 t = at / COLUMNS;
                float sum = 0.0f;
#pragma unroll 1
                for (u32 i = rows - 1; i > t; --i) sum += shared.g[0][i];
                shared.faded[t][at % COLUMNS] = shared.k[t][at % COLUMNS] * expf(sum);
            }
        }
        __syncthreads();
        fade_state();
        add_entries(shared.u, rows);
    }

    // Keys of decays per channel go to the ring before they are decayed.
    DEVICE void append_keys(u32 first, u32 rows) {
        if (!PER_CHANNEL || blockIdx.x != 0 || !is_first_of_key_head()) return;
        const u32 at = span.after_base + span.after_held + first;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < rows * op.key_dim; i += THREADS)
            const_cast<float*>(ring_k(ring_row(at, i / op.key_dim)))[i % op.key_dim] =
                shared.k[i / op.key_dim][i % op.key_dim];
        __syncthreads();
    }

    DEVICE void run() {
        const bool is_final = span.is_final(), folds = span.flush() || span.rows > CHUNK;
        const u32 base = span.flush() ? span.before_base : span.after_base;
        const u32 held = span.flush() ? span.before_held : span.after_held;
        bool is_zero = span.is_fresh();
        if (is_zero) {
            zero_state();
        } else {
            load_state();
        }
        if (folds) {
            fold(base, held);
            if (span.flush()) store_state();
            is_zero = is_zero && held == 0;
        }
#pragma unroll 1
        for (u32 first = 0; first < span.rows; first += CHUNK) {
            const u32 rows = min(CHUNK, span.rows - first);
            load_rows(first, rows);
            if (!is_final) append_keys(first, rows);
            relate(first, rows, !is_final);
            if (!folds) answer(base, held, rows);
            __syncthreads();
            if (!is_zero) read_state(rows);
            __syncthreads();
            solve(first, rows, !is_final);
            if (!is_final && first + CHUNK >= span.rows) break;
            __syncthreads();
            advance(rows);
            is_zero = false;
            if (is_final) round_state();
        }
        if (is_final && span.rows > 0) store_state();
    }
};

template <u32 KIND, typename State, u32 QUADS, u32 LANE_ROWS>
DEVICE void recur(const Recurrence& op, const Span& span) {
    extern __shared__ __align__(16) u8 bytes[];
    using Whole = Block<KIND, State, QUADS, LANE_ROWS>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.run();
}

// The ring of a slot that is folded besides any step; nothing is if it holds nothing.
struct Fold {
    u32 slot;
    u32 base, held;
    u32 padding;
};

template <u32 KIND, typename State, u32 QUADS, u32 LANE_ROWS>
DEVICE void recur(const StepView& step, const Recurrence& op, const Fold& fold, u32 least, u32 most) {
    extern __shared__ __align__(16) u8 bytes[];
    Span span = {};
    if (fold.held > 0) {
        span.slot = fold.slot;
        span.before_base = fold.base;
        span.before_held = fold.held;
        span.flags = 1;
    } else {
        span = step.spans[blockIdx.z];
        if (span.rows < least || span.rows > most) return;
    }
    using Whole = Block<KIND, State, QUADS, LANE_ROWS>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.run();
}

// By most columns of a key, and by rows of the state a lane has: few if there are few blocks.
#define RECURRENCE(name, KIND, State, QUADS, LANE_ROWS)                                                               \
    KERNEL __launch_bounds__(THREADS, 4)                                                                              \
        name##_x##LANE_ROWS(StepView step, Recurrence op, Fold fold, u32 least, u32 most) {                           \
        recur<KIND, State, QUADS, LANE_ROWS>(step, op, fold, least, most);                                            \
    }
