// Recurrences over a matrix per head, with a checkpoint and a replay ring (ALGORITHMS 2.2, 2.4, 2.5):
//   S = S diag(exp(g)), u = beta (v - S k) or u = size v, S += u k^T, out = S q + skip v.
//
// A block has some rows of the state of one value head of one span, in registers: it is read once, before anything is
// computed, and written once, if at all. What was written since (the ring) is not put into it unless the ring is folded
// or many rows follow, but answers for itself: `S x = S0 x' + sum_j u_j (k_j' . x)`, all factors at most 1. Rows go
// through in chunks: the state meets them at once, and a triangular solve gives what each of them writes.
#pragma once
#include "common/copy.cuh"
#include "common/order.cuh"
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
    u32 group;         // value heads of a key head
    float query_scale; // 1 / sqrt(key_dim)
    u32 padding;
};

static_assert(sizeof(Recurrence) == 144, "as in src/ops/recurrence.rs");

// Rows that are solved together: `CHUNK` of backend/src/step.rs; also entries of the ring that are looked at together.
static constexpr u32 CHUNK = 16;
static constexpr u32 THREADS = 128;
// Most rows of a short span.
static constexpr u32 SHORT = 8;

// Prompts, in whole chunks: what does not depend on the state is made for all chunks of some rows at once.
struct Prompt {
    float* keys;  // [chunks][key_heads][keys, queries][CHUNK][columns], normalised
    float* heads; // [chunks][value_heads][HEAD_FLOATS]
    u32 begin, end; // rows of the step
    u32 first_span, padding;
};

// Of a chunk and a value head: the inverse of what rows take from each other, what they give to later queries, decays from
// the chunk's begin and to its end, strengths, and the decay of the whole chunk.
struct ChunkHead {
    float inverse[CHUNK][CHUNK], qk[CHUNK][CHUNK];
    float decays[CHUNK], advancing[CHUNK], strengths[CHUNK], whole[CHUNK];
};
static constexpr u32 HEAD_FLOATS = sizeof(ChunkHead) / 4;
static_assert(sizeof(Prompt) == 32 && HEAD_FLOATS == 576, "as in src/ops/recurrence.rs");

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

// `LONG`: spans may have more rows than are solved together. `QUADS`: a lane has `QUADS` times 4 of the columns of a row, 8 lanes have a row. `LANE_ROWS`: rows of the state a lane
// has a part of. `State`: how checkpoints are stored.
template <u32 KIND, typename State, u32 QUADS, u32 LANE_ROWS, bool LONG> struct Block {
    static constexpr u32 COLUMNS = 32 * QUADS;
    static constexpr u32 ROWS = 16 * LANE_ROWS; // of the state
    static constexpr u32 MOST = LONG ? CHUNK : SHORT; // rows that are solved together
    static constexpr bool IS_DELTA = KIND != MAMBA2, PER_CHANNEL = KIND == DELTA_PER_CHANNEL;
    static constexpr u32 OWN_COLUMNS = (COLUMNS + THREADS - 1) / THREADS; // of a thread, where each has some

    struct Shared {
        float k[MOST][COLUMNS], q[MOST][COLUMNS]; // decayed from the state on for decays per channel
        float faded[CHUNK][COLUMNS];              // keys of entries, decayed to the end of them
        float own[PER_CHANNEL ? MOST : 1][PER_CHANNEL ? COLUMNS : 4]; // the same of rows
        float passed[1][PER_CHANNEL ? COLUMNS : 4]; // how much the state fades by a row
        float u[MOST][ROWS];                        // values, then what is written
        float ring_u[CHUNK][ROWS];
        float read[2][MOST][ROWS]; // what the state gives the keys and the queries
        float kk[MOST][MOST], qk[MOST][MOST];
        float products[CHUNK][2 * MOST]; // of entries with keys and queries
        float g[PER_CHANNEL ? MOST : 1][PER_CHANNEL ? COLUMNS : CHUNK];       // of rows
        float entry_g[PER_CHANNEL ? CHUNK : 1][PER_CHANNEL ? COLUMNS : CHUNK]; // of entries
        float strengths[CHUNK], decays[CHUNK], advancing[CHUNK], factors[CHUNK]; // the last one of entries
    };

    const Recurrence& op;
    const Span& span;
    Shared& shared;
    u32 head, key_head, first_row;
    float state[LANE_ROWS][QUADS][4];
    static constexpr u32 RAW = sizeof(State) == 2 ? 2 : 4;
    u32 raw[LANE_ROWS][QUADS][RAW]; // the state on its way
    float carry[OWN_COLUMNS]; // logarithm of how much the entries that were looked at fade what is before them

    DEVICE Block(const Recurrence& op, const Span& span, Shared& shared)
        : op(op), span(span), shared(shared), head(blockIdx.y), first_row(blockIdx.x * ROWS) {
        key_head = op.tiled ? head % op.key_heads : head / op.group;
    }

    DEVICE u32 lane_row() const { return warp_id() * 4 * LANE_ROWS + (lane_id() >> 3) * LANE_ROWS; }
    DEVICE u32 decay_count() const { return PER_CHANNEL ? op.key_dim : 1; }
    DEVICE State* state_at() const {
        return static_cast<State*>(op.state) +
               ((u64(span.slot) * op.value_heads + head) * op.value_dim + first_row) * op.key_dim;
    }

    // Asks for the state, which is waited for where it is first used; zeros if it need not be read. Rows beyond the last
    // one are that one: nobody asks what becomes of them.
    DEVICE void request_state(bool is_zero) {
        const State* from = state_at() + (lane_id() & 7) * 4;
        if (is_zero || op.key_dim != COLUMNS) {
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                    for (u32 e = 0; e < RAW; ++e) raw[i][n][e] = 0;
        }
        if (is_zero) return;
        const u32 last = op.value_dim - 1;
        const bool is_whole = (op.key_dim & 3) == 0;
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const State* row = from + i32(min(first_row + lane_row() + i, last) - first_row) * i32(op.key_dim);
            if (op.key_dim == COLUMNS) {
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n) read_four(row + n * 32, raw[i][n]);
                continue;
            }
#pragma unroll 1
            for (u32 n = 0; n < QUADS; ++n) {
                u32 words[RAW] = {};
                const u32 column = (n * 8 + (lane_id() & 7)) * 4;
                if (is_whole && column < op.key_dim) read_four(row + n * 32, words);
                for (u32 e = 0; !is_whole && e < 4 && column + e < op.key_dim; ++e) set(words, e, row[n * 32 + e]);
#pragma unroll
                for (u32 m = 0; m < QUADS; ++m)
#pragma unroll
                    for (u32 e = 0; e < RAW; ++e) raw[i][m][e] = m == n ? words[e] : raw[i][m][e];
            }
        }
    }

    DEVICE void open_state() {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    if constexpr (RAW == 4) {
                        state[i][n][e] = __uint_as_float(raw[i][n][e]);
                    } else {
                        state[i][n][e] = e & 1 ? high_f16(raw[i][n][e / 2]) : low_f16(raw[i][n][e / 2]);
                    }
                }
    }

    static DEVICE void set(u32 (&words)[RAW], u32 e, float x) { words[e % RAW] = __float_as_uint(x); }
    static DEVICE void set(u32 (&words)[RAW], u32 e, f16 x) { words[e / 2 % RAW] |= u32(x.bits) << (16 * (e & 1)); }
    static DEVICE void read_four(const float* from, u32 (&x)[RAW]) {
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2 % RAW]), "=r"(x[3 % RAW])
                     : "l"(from));
    }
    static DEVICE void read_four(const f16* from, u32 (&x)[RAW]) {
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(from));
    }
    static DEVICE void write_four(float* to, float (&x)[4]) {
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
    static DEVICE void write_four(f16* to, float (&x)[4]) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]));
    }

    // What is stored is what is in the registers.
    DEVICE void store_state() {
        State* to = state_at() + (lane_id() & 7) * 4;
        const bool is_whole = (op.key_dim & 3) == 0;
        round_state();
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const u32 row = lane_row() + i;
            if (first_row + row >= op.value_dim) continue;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 column = (n * 8 + (lane_id() & 7)) * 4;
                State* at = to + row * op.key_dim + n * 32;
                if (is_whole) {
                    if (column < op.key_dim) write_four(at, state[i][n]);
                    continue;
                }
#pragma unroll
                for (u32 e = 0; e < 4; ++e)
                    if (column + e < op.key_dim) store_rounded(at + e, state[i][n][e]);
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

    // state += sum_j u_j keys_j^T of `count` entries.
    DEVICE void add_entries(const float (*u)[ROWS], const float (*keys)[COLUMNS], u32 count) {
#pragma unroll 2
        for (u32 j = 0; j < count; ++j) {
            float rows[LANE_ROWS];
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i) rows[i] = u[j][lane_row() + i];
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const float4 k = *reinterpret_cast<const float4*>(&keys[j][(n * 8 + (lane_id() & 7)) * 4]);
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

    // Copies `rows` rows of `len` numbers, at most `LIMIT`, to rows of `WIDTH`, the rest zeros, without waiting for them.
    // Row `i` begins at number `offset(i)` of `from`: at multiples of 16 bytes, unless `loose`.
    template <u32 WIDTH, u32 LIMIT, typename Offset>
    static DEVICE void request(float* to, const float* from, u32 rows, u32 len, bool loose, Offset offset) {
        if (loose) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < rows * WIDTH; at += THREADS) {
                const u32 row = at / WIDTH, column = at % WIDTH;
                copy_4_async(to + at, from + offset(row) + (column < len ? column : 0), column < len);
            }
            return;
        }
        constexpr u32 PIECES = WIDTH / 4;
#pragma unroll
        for (u32 n = 0; n < (LIMIT * PIECES + THREADS - 1) / THREADS; ++n) {
            const u32 at = n * THREADS + threadIdx.x, row = at / PIECES, column = at % PIECES * 4;
            if (row < rows) copy_16_async(to + 4 * at, from + offset(row) + (column < len ? column : 0), column < len);
        }
    }

    DEVICE u32 rows_left() const { return op.value_dim > first_row ? op.value_dim - first_row : 0; }
    DEVICE bool is_loose() const {
        return ((op.columns | op.queries_at | op.keys_at | op.values_at | op.key_dim | op.value_dim) & 3) != 0;
    }

    // Asks for entries `from..from + count`, newest first.
    DEVICE void request_entries(u32 base, u32 from, u32 count) {
        const u32 newest = base + from + count - 1, mask = op.ring - 1;
        const bool loose = ((op.key_dim | op.value_dim) & 3) != 0;
        request<COLUMNS, CHUNK>(shared.faded[0], ring_k(0), count, op.key_dim, loose,
                                [&](u32 i) { return ((newest - i) & mask) * op.key_dim; });
        request<ROWS, CHUNK>(shared.ring_u[0], ring_u(0), count, rows_left(), loose,
                             [&](u32 i) { return ((newest - i) & mask) * op.value_dim; });
        if constexpr (PER_CHANNEL) {
            request<COLUMNS, CHUNK>(shared.entry_g[0], ring_g(0), count, op.key_dim, loose,
                                    [&](u32 i) { return ((newest - i) & mask) * op.key_dim; });
        } else if (threadIdx.x < count) {
            copy_4_async(&shared.entry_g[0][threadIdx.x], ring_g(0) + ((newest - threadIdx.x) & mask));
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
                    shared.faded[i][column] *= expf(carry[n]);
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

    // Puts all entries into the state, the oldest first. The first ones are there.
    DEVICE void fold(u32 base, u32 held) {
#pragma unroll 1
        for (u32 from = 0; from < held; from += CHUNK) {
            const u32 count = min(held - from, CHUNK);
            clear_carry();
            load_entries(base, from, count, from == 0);
            if constexpr (!PER_CHANNEL) {
#pragma unroll 4
                for (u32 at = threadIdx.x; at < count * ROWS; at += THREADS)
                    shared.ring_u[at / ROWS][at % ROWS] *= shared.factors[at / ROWS];
                __syncthreads();
            }
            fade_state();
            add_entries(shared.ring_u, shared.faded, count);
        }
    }

    // Lets all entries answer the keys and queries of a chunk, into `read`, the newest first, and the state fade. The
    // first ones are there.
    DEVICE void answer(u32 base, u32 held, u32 rows) {
        clear_carry();
#pragma unroll 1
        for (u32 end = held; end > 0;) {
            const u32 count = min(end, CHUNK);
            load_entries(base, end - count, count, end == held);
            const u32 pairs = count * 2 * rows;
#pragma unroll 1
            for (u32 first = 0; first < pairs; first += THREADS / 8) {
                const u32 pair = first + threadIdx.x / 8, j = min(pair / (2 * rows), count - 1), x = pair % (2 * rows);
                const float* row = x < rows ? shared.k[x] : shared.q[x - rows];
                const float sum = warp_sum<8>(dot(shared.faded[j], row));
                if (pair < pairs && (threadIdx.x & 7) == 0)
                    shared.products[j][x] = PER_CHANNEL ? sum : sum * shared.factors[j];
            }
            __syncthreads();
#pragma unroll 1
            for (u32 at = threadIdx.x; at < 2 * ROWS; at += THREADS) {
                const u32 which = at / ROWS, row = at % ROWS;
                if (which == 0 && !IS_DELTA) continue;
#pragma unroll 1
                for (u32 t = 0; t < rows; ++t) {
                    float sum = 0.0f;
#pragma unroll 4
                    for (u32 j = 0; j < count; ++j)
                        sum = fmaf(shared.ring_u[j][row], shared.products[j][which * rows + t], sum);
                    shared.read[which][t][row] += sum;
                }
            }
            end -= count;
        }
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

    // Asks for rows `first..first + rows` of the span: keys, queries, values, step sizes.
    DEVICE void request_rows(u32 first, u32 rows) {
        const float* inputs = op.inputs + u64(span.first + first) * op.columns;
        const bool loose = is_loose();
        const u32 of_key = key_head * op.key_dim, stride = op.columns;
        request<COLUMNS, MOST>(shared.k[0], inputs + op.keys_at + of_key, rows, op.key_dim, loose,
                               [&](u32 t) { return t * stride; });
        request<COLUMNS, MOST>(shared.q[0], inputs + op.queries_at + of_key, rows, op.key_dim, loose,
                               [&](u32 t) { return t * stride; });
        request<ROWS, MOST>(shared.u[0], inputs + op.values_at + head * op.value_dim + first_row, rows, rows_left(),
                            loose, [&](u32 t) { return t * stride; });
        const u32 decays = decay_count(), all_decays = op.value_heads * decays;
        const float* steps = op.steps + u64(span.first + first) * all_decays + head * decays;
        if constexpr (PER_CHANNEL) {
            request<COLUMNS, MOST>(shared.g[0], steps, rows, decays, (op.key_dim & 3) != 0,
                                   [&](u32 t) { return t * all_decays; });
        } else if (threadIdx.x < rows) {
            copy_4_async(&shared.g[0][threadIdx.x], steps + threadIdx.x * all_decays);
        }
        if (IS_DELTA && threadIdx.x < rows) {
            const float* beta = op.beta + u64(span.first + first + threadIdx.x) * op.value_heads + head;
            copy_4_async(&shared.strengths[threadIdx.x], beta);
        }
    }

    // Small numbers that are the same for all rows: asked for early.
    float bias[OWN_COLUMNS], rate, skip;

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
                for (u32 t = 0; column < op.key_dim && t < rows; ++t)
                    shared.g[t][column] = rate * softplus(shared.g[t][column] + bias[n]);
            }
        } else if (threadIdx.x < rows) {
            const float size = softplus(shared.g[0][threadIdx.x] + bias[0]);
            shared.g[0][threadIdx.x] = rate * size;
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
        const bool has_keys = in_ring && blockIdx.x == 0 && is_first_of_key_head();
        if constexpr (PER_CHANNEL) {
            relate_channels(rows);
        } else {
            relate_heads(rows);
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

    DEVICE float sum_g(u32 from, u32 to) const {
        float sum = 0.0f;
#pragma unroll 4
        for (u32 i = from; i < to; ++i) sum += shared.g[0][i];
        return sum;
    }

    DEVICE void relate_heads(u32 rows) {
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
            const float kk = IS_DELTA ? warp_sum<8>(dot(shared.k[t], shared.k[j])) : 0.0f;
            const float qk = warp_sum<8>(dot(shared.q[t], shared.k[j]));
            if ((threadIdx.x & 7) == 0 && pair < rows * rows && j <= t) {
                const float factor = shared.qk[t][j];
                shared.kk[t][j] = shared.strengths[t] * kk * factor;
                shared.qk[t][j] = qk * factor;
            }
        }
    }

    DEVICE bool is_first_of_key_head() const {
        return op.tiled ? head < op.key_heads : head == key_head * op.group;
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
            float y = fmaf(decay, shared.read[1][t][row], skip * value);
#pragma unroll 4
            for (u32 j = 0; j < t; ++j) {
                const float before = shared.u[j][row];
                if constexpr (IS_DELTA) mine = fmaf(-shared.kk[t][j], before, mine);
                y = fmaf(shared.qk[t][j], before, y);
            }
            y = fmaf(shared.qk[t][t], mine, y);
            shared.u[t][row] = mine;
            out[t * stride] = y;
            if (in_ring) const_cast<float*>(ring_u(ring_row(at, t)))[row] = mine;
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
            carry[0] = sum_g(0, rows);
#pragma unroll 4
            for (u32 at = threadIdx.x; at < rows * COLUMNS; at += THREADS)
                shared.faded[0][at] = shared.k[0][at] * shared.advancing[at / COLUMNS];
        }
        __syncthreads();
        fade_state();
        if constexpr (PER_CHANNEL) {
            add_entries(shared.u, shared.own, rows);
        } else {
            add_entries(shared.u, shared.faded, rows);
        }
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

    // A span of one row: little but the state passes through registers. A lane has a part of some rows of the state, and
    // ends up with what one row gives the key or the query.
    DEVICE void run_one(u32 base, u32 held, bool is_zero) {
        const u32 c = lane_id() & 7, which = c >> 2, row = lane_row() + (c & 3);
        const bool is_final = span.is_final(), is_mine = (c & 3) < LANE_ROWS && first_row + row < op.value_dim;
        const u32 entry = ring_row(span.after_base + span.after_held, 0);
        float decay = 1.0f, strength = IS_DELTA ? sigmoid(shared.strengths[0]) : 0.0f;
        clear_carry();
        // Key and query as they meet the state and the entries, but for their lengths.
        const float *key = shared.k[0], *query = shared.q[0];
        if constexpr (PER_CHANNEL) {
            key = shared.own[0], query = shared.own[1];
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column >= COLUMNS) continue;
                const float g = column < op.key_dim ? rate * softplus(shared.g[0][column] + bias[n]) : 0.0f;
                const float passed = expf(g);
                shared.passed[0][column] = passed;
                shared.own[0][column] = shared.k[0][column] * passed;
                shared.own[1][column] = shared.q[0][column] * passed;
                if (!is_final && blockIdx.x == 0 && column < op.key_dim)
                    const_cast<float*>(ring_g(entry))[column] = g;
            }
            __syncthreads();
        } else {
            const float size = softplus(shared.g[0][0] + bias[0]), g = rate * size;
            decay = expf(g);
            if constexpr (!IS_DELTA) strength = size;
            if (!is_final && blockIdx.x == 0 && threadIdx.x == 0) *const_cast<float*>(ring_g(entry)) = g;
        }
        float scales[2] = {1.0f, 1.0f}, own = warp_sum<8>(dot(shared.q[0], shared.k[0]));
        if constexpr (IS_DELTA) {
            scales[0] = rsqrtf(warp_sum<8>(dot(shared.k[0], shared.k[0])) + op.norm_eps);
            scales[1] = rsqrtf(warp_sum<8>(dot(shared.q[0], shared.q[0])) + op.norm_eps) * op.query_scale;
            own *= scales[0] * scales[1];
        }
        if (!is_final && blockIdx.x == 0 && is_first_of_key_head())
#pragma unroll
            for (u32 n = 0; n < OWN_COLUMNS; ++n) {
                const u32 column = threadIdx.x + n * THREADS;
                if (column < op.key_dim) const_cast<float*>(ring_k(entry))[column] = shared.k[0][column] * scales[0];
            }
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
            float factor = 1.0f;
            if constexpr (PER_CHANNEL) {
                fade_entries(count);
            } else {
                factor = factor_of_group(count);
            }
            const u32 j = threadIdx.x / 8;
            const float* faded = shared.faded[min(j, count - 1)];
            const float to_key = warp_sum<8>(dot(faded, key)), to_query = warp_sum<8>(dot(faded, query));
            if (c == 0 && j < count) {
                shared.products[j][0] = to_key * (scales[0] * factor);
                shared.products[j][1] = to_query * (scales[1] * factor);
            }
            __syncthreads();
            if (is_mine) {
#pragma unroll 4
                for (u32 i = 0; i < count; ++i)
                    answered = fmaf(shared.ring_u[i][row], shared.products[i][which], answered);
            }
            end -= count;
        }
        float by = scales[which];
        if constexpr (PER_CHANNEL) {
            if (held > 0) {
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
        } else {
            by *= expf(carry[0]);
        }
        if (!is_zero) answered = fmaf(by, state_times(key, query), answered);
        const float other = __shfl_xor_sync(ALL_LANES, answered, 4);
        const float to_key = which ? other : answered, to_query = which ? answered : other;
        const float value = is_mine ? shared.u[0][row] : 0.0f;
        const float u = IS_DELTA ? strength * (value - decay * to_key) : strength * value;
        const float y = fmaf(own, u, fmaf(decay, to_query, skip * value));
        if (is_mine && which == 1) op.out[(u64(span.first) * op.value_heads + head) * op.value_dim + first_row + row] = y;
        if (is_final) {
            step_state(u * scales[0], decay);
            store_state();
        } else if (is_mine && which == 0) {
            const_cast<float*>(ring_u(entry))[row] = u;
        }
    }

    // The products of rows of the state with a key and a query, one to a lane.
    DEVICE float state_times(const float* key, const float* query) const {
        float sums[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sums[i] = 0.0f;
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            const u32 at = (n * 8 + (lane_id() & 7)) * 4;
            const float4 q = *reinterpret_cast<const float4*>(query + at);
            float4 k = q;
            if constexpr (IS_DELTA) k = *reinterpret_cast<const float4*>(key + at);
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

    // state = state faded + u k^T of a single row, with the `u` of a row of the state in lane `row` of its eight.
    DEVICE void step_state(float u, float decay) {
        float written[LANE_ROWS];
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) written[i] = __shfl_sync(ALL_LANES, u, (lane_id() & 24) | i);
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

    // How much entry `thread / 8` has faded until the newest; all of them are added to `carry`.
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

    // What a block of a prompt has in shared memory besides: two chunks, one that is on its way.
    struct PromptShared {
        float k[2][CHUNK][COLUMNS], q[2][CHUNK][COLUMNS];
        float values[2][CHUNK][ROWS];
        ChunkHead heads[2];
        float wanted[CHUNK][ROWS], written[CHUNK][ROWS];
    };

    static DEVICE float* keys_of(const Recurrence& op, const Prompt& prompt, u32 row, u32 key_head) {
        return prompt.keys + (u64((row - prompt.begin) / CHUNK) * op.key_heads + key_head) * 2 * CHUNK * COLUMNS;
    }
    static DEVICE float* head_of(const Recurrence& op, const Prompt& prompt, u32 row, u32 head) {
        return prompt.heads + (u64((row - prompt.begin) / CHUNK) * op.value_heads + head) * HEAD_FLOATS;
    }

    // Makes what does not depend on the state, for the chunk that begins with row `first` of the span.
    DEVICE void prepare(const Prompt& prompt, u32 first) {
        first_row = 0;
        request_rows(first, CHUNK);
        copies_commit();
        load_constants();
        copies_wait<0>();
        __syncthreads();
        open_rows(CHUNK);
        relate_heads(CHUNK);
        __syncthreads();
        ChunkHead& head_here = *reinterpret_cast<ChunkHead*>(head_of(op, prompt, span.first + first, head));
        if (IS_DELTA && threadIdx.x < CHUNK) {
            // A column of the inverse, from above.
            const u32 j = threadIdx.x;
#pragma unroll 1
            for (u32 t = 0; t < CHUNK; ++t) {
                float x = t == j ? 1.0f : 0.0f;
#pragma unroll 4
                for (u32 i = 0; i < t; ++i) x = fmaf(-shared.kk[t][i], shared.products[i][j], x);
                shared.products[t][j] = x;
            }
        }
        __syncthreads();
#pragma unroll 1
        for (u32 at = threadIdx.x; at < CHUNK * CHUNK; at += THREADS) {
            const u32 t = at / CHUNK, j = at % CHUNK;
            head_here.inverse[t][j] = IS_DELTA && j <= t ? shared.products[t][j] : 0.0f;
            head_here.qk[t][j] = j <= t ? shared.qk[t][j] : 0.0f;
        }
        if (threadIdx.x < CHUNK) {
            head_here.decays[threadIdx.x] = shared.decays[threadIdx.x];
            head_here.advancing[threadIdx.x] = shared.advancing[threadIdx.x];
            head_here.strengths[threadIdx.x] = shared.strengths[threadIdx.x];
            head_here.whole[threadIdx.x] = shared.decays[CHUNK - 1];
        }
        if (!is_first_of_key_head()) return;
        float* keys = keys_of(op, prompt, span.first + first, key_head);
#pragma unroll 4
        for (u32 at = threadIdx.x; at < CHUNK * COLUMNS; at += THREADS) {
            keys[at] = shared.k[0][at];
            keys[CHUNK * COLUMNS + at] = shared.q[0][at];
        }
    }

    // Asks for what was made for a chunk, and for its values.
    DEVICE void request_chunk(const Prompt& prompt, PromptShared& two, u32 buffer, u32 first) {
        const float* keys = keys_of(op, prompt, span.first + first, key_head);
        const float* head_there = head_of(op, prompt, span.first + first, head);
        request<COLUMNS, CHUNK>(two.k[buffer][0], keys, CHUNK, COLUMNS, false, [&](u32 t) { return t * COLUMNS; });
        request<COLUMNS, CHUNK>(two.q[buffer][0], keys + CHUNK * COLUMNS, CHUNK, COLUMNS, false,
                                [&](u32 t) { return t * COLUMNS; });
        request<HEAD_FLOATS, 1>(reinterpret_cast<float*>(&two.heads[buffer]), head_there, 1, HEAD_FLOATS, false,
                                [&](u32) { return 0; });
        const float* values = op.inputs + u64(span.first + first) * op.columns + op.values_at + head * op.value_dim + first_row;
        request<ROWS, CHUNK>(two.values[buffer][0], values, CHUNK, rows_left(), is_loose(),
                             [&](u32 t) { return t * op.columns; });
        copies_commit();
    }

    // Chunks from row `first` of the span to row `end`, whose states follow each other.
    DEVICE void run_prompt(const Prompt& prompt, PromptShared& two, u32 first, u32 end) {
        const bool is_first = first == 0, folds = is_first && span.flush();
        request_chunk(prompt, two, 0, first);
        if (folds) request_entries(span.before_base, 0, min(span.before_held, CHUNK));
        copies_commit();
        load_constants();
        request_state(is_first && span.is_fresh());
        open_state();
        if (folds) {
            copies_wait<0>();
            __syncthreads();
            fold(span.before_base, span.before_held);
            round_state();
        }
        float* out = op.out + (u64(span.first) * op.value_heads + head) * op.value_dim + first_row;
        const u64 stride = u64(op.value_heads) * op.value_dim;
        const u32 c = lane_id() & 7, which = c >> 2;
#pragma unroll 1
        for (u32 buffer = 0; first < end; first += CHUNK, buffer ^= 1) {
            copies_wait<0>();
            __syncthreads(); // this chunk is there, and nobody reads the last one any more
            if (first + CHUNK < end) request_chunk(prompt, two, buffer ^ 1, first + CHUNK);
            const ChunkHead& given = two.heads[buffer];
#pragma unroll 4
            for (u32 t = 0; t < CHUNK; ++t) {
                const float sum = state_times(two.k[buffer][t], two.q[buffer][t]);
                if ((c & 3) < LANE_ROWS) shared.read[which][t][lane_row() + (c & 3)] = sum;
            }
            __syncthreads();
#pragma unroll
            for (u32 at = threadIdx.x; at < CHUNK * ROWS; at += THREADS) {
                const u32 t = at / ROWS, row = at % ROWS;
                float x = two.values[buffer][t][row];
                if constexpr (IS_DELTA) x = fmaf(-given.decays[t], shared.read[0][t][row], x);
                two.wanted[t][row] = given.strengths[t] * x;
            }
            __syncthreads();
#pragma unroll
            for (u32 at = threadIdx.x; at < CHUNK * ROWS; at += THREADS) {
                const u32 t = at / ROWS, row = at % ROWS;
                float u = two.wanted[t][row];
                if constexpr (IS_DELTA) u = combined(given.inverse[t], two.wanted, row);
                two.written[t][row] = u;
                shared.u[t][row] = u * given.advancing[t];
            }
            __syncthreads();
#pragma unroll
            for (u32 at = threadIdx.x; at < CHUNK * ROWS; at += THREADS) {
                const u32 t = at / ROWS, row = at % ROWS;
                const float passed = fmaf(given.decays[t], shared.read[1][t][row], skip * two.values[buffer][t][row]);
                const float y = passed + combined(given.qk[t], two.written, row);
                if (first_row + row < op.value_dim) out[(first + t) * stride + row] = y;
            }
            const float whole = given.whole[0];
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) state[i][n][e] *= whole;
            add_entries(shared.u, two.k[buffer], CHUNK);
            round_state();
        }
        store_state();
    }

    // sum_j factors[j] rows[j][row]
    static DEVICE float combined(const float* factors, const float (*rows)[ROWS], u32 row) {
        float sum = 0.0f;
#pragma unroll
        for (u32 j = 0; j < CHUNK; j += 4) {
            const float4 by = *reinterpret_cast<const float4*>(factors + j);
            sum = fmaf(by.x, rows[j][row], fmaf(by.y, rows[j + 1][row], sum));
            sum = fmaf(by.z, rows[j + 2][row], fmaf(by.w, rows[j + 3][row], sum));
        }
        return sum;
    }

    DEVICE void run() {
        const bool is_final = span.is_final(), folds = span.flush() || (LONG && span.rows > CHUNK);
        const u32 base = span.flush() ? span.before_base : span.after_base;
        const u32 held = span.flush() ? span.before_held : span.after_held;
        bool is_zero = span.is_fresh();
        // Everything is asked for before anything is waited for, what is needed first at first.
        const u32 first_entries = min(held, CHUNK), first_rows = min(span.rows, CHUNK);
        request_rows(0, first_rows);
        request_entries(base, folds ? 0 : held - first_entries, first_entries);
        copies_commit();
        load_constants();
        request_state(is_zero);
        copies_wait<0>();
        __syncthreads();
        open_state();
        if (folds) {
            fold(base, held);
            if (span.flush()) store_state();
            is_zero = is_zero && held == 0;
        }
        if (span.rows == 0) return;
        if (span.rows == 1) return run_one(base, folds ? 0 : held, is_zero);
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
            if (!folds) answer(base, held, rows);
            __syncthreads();
            if (!is_zero) read_state(rows);
            __syncthreads();
            solve(first, rows, !is_final);
            const bool is_last = !LONG || first + CHUNK >= span.rows;
            if (!is_final && is_last) return;
            __syncthreads();
            advance(rows);
            is_zero = false;
            if (is_last) break;
            if (is_final) round_state();
        }
        store_state();
    }
};

// Whole chunks of a prompt have been read before: only the rest is left.
DEVICE void skip_chunks(Span& span) {
    const u32 whole = span.rows & ~(CHUNK - 1);
    if (whole == 0) return;
    span.first += whole;
    span.context += whole;
    span.rows -= whole;
    span.flags = 2;
    span.after_held = 0;
}

// The ring of a slot that is folded besides any step; nothing is if it holds nothing.
struct Fold {
    u32 slot;
    u32 base, held;
    u32 padding;
};

template <u32 KIND, typename State, u32 QUADS, u32 LANE_ROWS, bool LONG>
DEVICE void recur(const StepView& step, const Recurrence& op, const Fold& fold, u32 least, u32 most) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    wait_for_inputs();
    Span span = {};
    if (fold.held > 0) {
        span.slot = fold.slot;
        span.before_base = fold.base;
        span.before_held = fold.held;
        span.flags = 1;
    } else {
        span = step.spans[blockIdx.z];
        if (KIND != DELTA_PER_CHANNEL && span.is_final()) skip_chunks(span);
        if (span.rows < least || span.rows > most) return;
    }
    using Whole = Block<KIND, State, QUADS, LANE_ROWS, LONG>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.run();
}

// Which chunks of a span begin in the rows of a prompt: `first..end`, rows of the span. Whether there are any.
DEVICE bool find_chunks(const Span& span, const Prompt& prompt, u32& first, u32& end) {
    const u32 whole = span.is_final() ? span.rows & ~(CHUNK - 1) : 0;
    first = prompt.begin > span.first ? ceil_div(prompt.begin - span.first, CHUNK) * CHUNK : 0;
    end = prompt.end > span.first ? min(ceil_div(prompt.end - span.first, CHUNK) * CHUNK, whole) : 0;
    return first < end;
}

template <u32 KIND, typename State, u32 QUADS>
DEVICE void prepare_chunks(const StepView& step, const Recurrence& op, const Prompt& prompt) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    wait_for_inputs();
    const Span span = step.spans[prompt.first_span + blockIdx.z];
    u32 first, end;
    if (!find_chunks(span, prompt, first, end)) return;
    first += blockIdx.x * CHUNK;
    if (first >= end) return;
    using Whole = Block<KIND, State, QUADS, 1, true>;
    Whole block(op, span, *reinterpret_cast<typename Whole::Shared*>(bytes));
    block.prepare(prompt, first);
}

template <u32 KIND, typename State, u32 QUADS>
DEVICE void run_chunks(const StepView& step, const Recurrence& op, const Prompt& prompt) {
    extern __shared__ __align__(16) u8 bytes[];
    let_next_begin();
    wait_for_inputs();
    const Span span = step.spans[prompt.first_span + blockIdx.z];
    u32 first, end;
    if (!find_chunks(span, prompt, first, end)) return;
    using Whole = Block<KIND, State, QUADS, 1, true>;
    auto& shared = *reinterpret_cast<typename Whole::Shared*>(bytes);
    Whole block(op, span, shared);
    block.run_prompt(prompt, *reinterpret_cast<typename Whole::PromptShared*>(bytes + sizeof(shared)), first, end);
}

#define PROMPT(name, KIND, State, QUADS)                                                                              \
    KERNEL __launch_bounds__(THREADS) name##_prepare(StepView step, Recurrence op, Prompt prompt) {                   \
        prepare_chunks<KIND, State, QUADS>(step, op, prompt);                                                         \
    }                                                                                                                 \
    KERNEL __launch_bounds__(THREADS) name##_prompt(StepView step, Recurrence op, Prompt prompt) {                    \
        run_chunks<KIND, State, QUADS>(step, op, prompt);                                                             \
    }

// By most columns of a key: for many blocks, and for few or for spans of any length.
#define RECURRENCE(name, KIND, State, QUADS, LANE_ROWS, LONG)                                                         \
    KERNEL __launch_bounds__(THREADS, 4)                                                                              \
        name##_x##LANE_ROWS(StepView step, Recurrence op, Fold fold, u32 least, u32 most) {                           \
        recur<KIND, State, QUADS, LANE_ROWS, LONG>(step, op, fold, least, most);                                      \
    }
