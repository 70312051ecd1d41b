// Some rows of the state of a value head, in the registers of a block: 8 lanes have a row, and a lane parts of some rows.
#pragma once
#include "common/recurrence.cuh"

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

// `State`: how checkpoints are stored. `QUADS`: a lane has `QUADS` times 4 of the columns of a row. `LANE_ROWS`: rows that a
// lane has a part of. `MEETS_KEYS`: keys are looked up in the state. `IS_PACKED`: a state in f16 stays as it is stored, in half of
// the registers, and is opened where it is looked at or changes.
template <typename State, u32 QUADS, u32 LANE_ROWS, bool MEETS_KEYS, bool IS_PACKED> struct StateRows {
    static constexpr u32 COLUMNS = 32 * QUADS, ROWS = 16 * LANE_ROWS;
    static constexpr u32 RAW = sizeof(State) == 2 ? 2 : 4; // words of four elements

    const Recurrence& op;
    const Span& span;
    const u32 head;
    u32 first_row;
    static_assert(!IS_PACKED || RAW == 2, "f32 is as it is stored");
    u32 raw[LANE_ROWS][QUADS][RAW]; // the state as it came, and as it is if it stays packed
    float state[LANE_ROWS][QUADS][4];

    DEVICE StateRows(const Recurrence& op, const Span& span)
        : op(op), span(span), head(blockIdx.y), first_row(blockIdx.x * ROWS) {}

    DEVICE u32 lane_row() const { return warp_id() * 4 * LANE_ROWS + (lane_id() >> 3) * LANE_ROWS; }
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

    DEVICE float opened(u32 i, u32 n, u32 e) const {
        if constexpr (RAW == 4) {
            return __uint_as_float(raw[i][n][e]);
        } else {
            return e & 1 ? high_f16(raw[i][n][e / 2]) : low_f16(raw[i][n][e / 2]);
        }
    }

    DEVICE void open_state() {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) state[i][n][e] = opened(i, n, e);
    }

    // Before and after a packed state changes, and before `state` is looked at.
    DEVICE void begin_change() {
        if constexpr (IS_PACKED) open_state();
    }
    DEVICE void end_change() {
        if constexpr (IS_PACKED) {
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                    for (u32 e = 0; e < 4; e += 2) {
                        const State* type = nullptr;
                        raw[i][n][e / 2] = pack_f16(limited(state[i][n][e], type), limited(state[i][n][e + 1], type));
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
            if constexpr (MEETS_KEYS) k = *reinterpret_cast<const float4*>(key + at);
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i) {
                float s[4];
#pragma unroll
                for (u32 e = 0; e < 4; ++e) s[e] = IS_PACKED ? opened(i, n, e) : state[i][n][e];
                sums[4 + i] = fmaf(s[0], q.x, fmaf(s[1], q.y, fmaf(s[2], q.z, fmaf(s[3], q.w, sums[4 + i]))));
                if constexpr (MEETS_KEYS)
                    sums[i] = fmaf(s[0], k.x, fmaf(s[1], k.y, fmaf(s[2], k.z, fmaf(s[3], k.w, sums[i]))));
            }
        }
        return sum_8_over_8(sums);
    }
};
