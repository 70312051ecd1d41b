// Some rows of the state of a value head, in the registers of a block: 8 lanes have a row, and a lane parts of some rows.
#pragma once
#include "common/recurrence.cuh"

// Warps of most blocks.
static constexpr u32 BLOCK_WARPS = 4;

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

// The same with 4 values: lanes `2c` and `2c + 1` get the sum of value `c`.
DEVICE float sum_4_over_8(const float (&x)[4]) {
    const u32 c = lane_id() & 7;
    float two[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const float mine = c & 4 ? x[i + 2] : x[i], theirs = c & 4 ? x[i] : x[i + 2];
        two[i] = mine + __shfl_xor_sync(ALL_LANES, theirs, 4);
    }
    const float mine = c & 2 ? two[1] : two[0], theirs = c & 2 ? two[0] : two[1];
    const float one = mine + __shfl_xor_sync(ALL_LANES, theirs, 2);
    return one + __shfl_xor_sync(ALL_LANES, one, 1);
}

// The same with 2 values: the first four lanes get the sum of the first one, the others that of the other.
DEVICE float sum_2_over_8(float x, float y) {
    const bool is_upper = lane_id() & 4;
    float sum = (is_upper ? y : x) + __shfl_xor_sync(ALL_LANES, is_upper ? x : y, 4);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}

// What is known of the rows of states and keys: nothing; that they are multiples of four columns; that keys have all columns and
// all rows of blocks are there.
enum Fit : u32 { LOOSE_ROWS, ROWS_OF_FOUR, WHOLE_ROWS };

// `State`: how checkpoints are stored. `QUADS`: a lane has `QUADS` times 4 of the columns of a row. `WARPS`: those of a block.
// `LANE_ROWS`: rows that a lane has a part of. `MEETS_KEYS`: keys are looked up in the state. `IS_PACKED`: a state in f16 stays as
// it is stored, in half of the registers, and is opened where it is looked at or changes.
template <typename State, u32 QUADS, u32 WARPS, u32 LANE_ROWS, bool MEETS_KEYS, bool IS_PACKED, Fit FIT> struct StateRows {
    static constexpr u32 COLUMNS = 32 * QUADS, ROWS = 4 * WARPS * LANE_ROWS, THREADS = 32 * WARPS;
    static constexpr bool LOOSE = FIT == LOOSE_ROWS, WHOLE = FIT == WHOLE_ROWS;
    static constexpr u32 RAW = sizeof(State) == 2 ? 2 : 4; // words of four elements

    const Recurrence& op;
    const Span& span;
    const u32 head;
    u32 first_row;
    static_assert(!IS_PACKED || RAW == 2, "f32 is as it is stored");
    u32 raw[LANE_ROWS][QUADS][2]; // a state in f16 as it came, and as it is if it stays packed
    float state[LANE_ROWS][QUADS][4];

    DEVICE StateRows(const Recurrence& op, const Span& span)
        : op(op), span(span), head(blockIdx.y), first_row(blockIdx.x * ROWS) {}

    DEVICE u32 lane_row() const { return warp_id() * 4 * LANE_ROWS + (lane_id() >> 3) * LANE_ROWS; }
    DEVICE u32 key_dim() const { return WHOLE ? COLUMNS : op.key_dim; }
    DEVICE State* state_at() const {
        return static_cast<State*>(op.state) +
               ((u64(span.slot) * op.value_heads + head) * op.value_dim + first_row) * key_dim();
    }

    // Asks for the state, which is waited for where it is first used; zeros if it need not be read. Rows beyond the last
    // one are that one: nobody asks what becomes of them. Loads have conditions, not branches, behind which registers would be
    // copied as soon as they are there. In place of whole rows that are not read is anything: see `clear_state`.
    DEVICE void request_state(bool is_zero) {
        const State* from = state_at() + (lane_id() & 7) * 4;
        if constexpr (WHOLE) {
            from += lane_row() * COLUMNS;
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n) {
                    if constexpr (RAW == 4) {
                        read_four_or_none(from + i * COLUMNS + n * 32, !is_zero, state[i][n]);
                    } else {
                        read_four_or_none(from + i * COLUMNS + n * 32, !is_zero, raw[i][n]);
                    }
                }
            return;
        }
        const u32 last = op.value_dim - 1;
        const bool is_whole = !LOOSE || (key_dim() & 3) == 0;
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const State* row = from + i32(min(first_row + lane_row() + i, last) - first_row) * i32(key_dim());
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const bool is_asked = !is_zero && is_whole && (n * 8 + (lane_id() & 7)) * 4 < key_dim();
                if constexpr (RAW == 4) {
                    read_four(row + n * 32, is_asked, state[i][n]);
                } else {
                    read_four(row + n * 32, is_asked, raw[i][n]);
                }
            }
        }
        if (!LOOSE || is_zero || is_whole) return;
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const State* row = from + i32(min(first_row + lane_row() + i, last) - first_row) * i32(key_dim());
#pragma unroll 1
            for (u32 n = 0; n < QUADS; ++n) {
                u32 words[RAW] = {};
                const u32 column = (n * 8 + (lane_id() & 7)) * 4;
#pragma unroll 1
                for (u32 e = 0; e < 4 && column + e < key_dim(); ++e) set(words, e, row[n * 32 + e]);
#pragma unroll
                for (u32 m = 0; m < QUADS; ++m)
#pragma unroll
                    for (u32 e = 0; m == n && e < RAW; ++e) {
                        if constexpr (RAW == 4) {
                            state[i][m][e] = __uint_as_float(words[e]);
                        } else {
                            raw[i][m][e] = words[e];
                        }
                    }
            }
        }
    }
    static DEVICE void set(u32 (&words)[RAW], u32 e, float x) {
#pragma unroll
        for (u32 i = 0; i < RAW; ++i) words[i] = i == e ? __float_as_uint(x) : words[i];
    }
    static DEVICE void set(u32 (&words)[RAW], u32 e, f16 x) {
#pragma unroll
        for (u32 i = 0; i < RAW; ++i) words[i] |= i == e / 2 ? u32(x.bits) << (16 * (e & 1)) : 0;
    }

    DEVICE float opened(u32 i, u32 n, u32 e) const {
        return e & 1 ? high_f16(raw[i][n][e / 2]) : low_f16(raw[i][n][e / 2]);
    }

    // Zeros instead of whole rows that were not read, where they are looked at.
    DEVICE void clear_state() {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    if constexpr (RAW == 4) {
                        state[i][n][e] = 0.0f;
                    } else {
                        raw[i][n][e / 2] = 0;
                    }
                }
    }

    // Once a state in f16 has come. One in f32 is waited for where it is first looked at.
    DEVICE void open_state() {
        if (RAW == 4) return;
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i)
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) state[i][n][e] = opened(i, n, e);
    }

    // Changes a packed state, a row at a time, so that no more than that is ever open: `change(i, row)`.
    template <typename Change> DEVICE void change_rows(Change change) {
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            float row[QUADS][4];
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) row[n][e] = opened(i, n, e);
            change(i, row);
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; e += 2) {
                    const State* type = nullptr;
                    raw[i][n][e / 2] = pack_f16(limited(row[n][e], type), limited(row[n][e + 1], type));
                }
        }
    }

    // Four elements if they are asked for, else zeros.
    static DEVICE void read_four(const float* from, bool is_asked, float (&x)[4]) {
        x[0] = x[1] = x[2] = x[3] = 0.0f;
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                     : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
                     : "l"(from), "r"(u32(is_asked)));
    }
    static DEVICE void read_four(const f16* from, bool is_asked, u32 (&x)[2]) {
        x[0] = x[1] = 0;
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.v2.u32 {%0, %1}, [%2]; }"
                     : "+r"(x[0]), "+r"(x[1])
                     : "l"(from), "r"(u32(is_asked)));
    }
    // The same, else anything.
    static DEVICE void read_four_or_none(const float* from, bool is_asked, float (&x)[4]) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "l"(from), "r"(u32(is_asked)));
    }
    static DEVICE void read_four_or_none(const f16* from, bool is_asked, u32 (&x)[2]) {
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.v2.u32 {%0, %1}, [%2]; }"
                     : "=r"(x[0]), "=r"(x[1])
                     : "l"(from), "r"(u32(is_asked)));
    }
    static DEVICE void write_four(float* to, float (&x)[4]) {
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
    static DEVICE void write_four(f16* to, float (&x)[4]) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]));
    }

    // What is stored is what is in the registers: a packed state as it is, unless it `is_open`.
    DEVICE void store_state(bool is_open = !IS_PACKED) {
        State* to = state_at() + (lane_id() & 7) * 4;
        const bool is_whole = !LOOSE || (key_dim() & 3) == 0;
        if (is_open) round_state();
#pragma unroll
        for (u32 i = 0; i < LANE_ROWS; ++i) {
            const u32 row = lane_row() + i;
            if (!WHOLE && first_row + row >= op.value_dim) continue;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const u32 column = (n * 8 + (lane_id() & 7)) * 4;
                State* at = to + row * key_dim() + n * 32;
                if (is_whole && column < key_dim()) {
                    if (is_open) {
                        write_four(at, state[i][n]);
                    } else {
                        *reinterpret_cast<uint2*>(at) = make_uint2(raw[i][n][0], raw[i][n][1]);
                    }
                }
#pragma unroll
                for (u32 e = 0; LOOSE && e < 4; ++e)
                    if (!is_whole && column + e < key_dim()) store_rounded(at + e, is_open ? state[i][n][e] : opened(i, n, e));
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

    // state += sum_j u_j k_j^T of `count` entries: `written(j, row)`, and four columns of `key(j, column)`.
    template <typename Written, typename Key> DEVICE void add_entries(u32 count, Written written, Key key) {
#pragma unroll 2
        for (u32 j = 0; j < count; ++j) {
            float rows[LANE_ROWS];
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i) rows[i] = written(j, lane_row() + i);
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                const float4 k = key(j, (n * 8 + (lane_id() & 7)) * 4);
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

    // The products of rows of the state with `COUNT` keys and queries: `sums`, of a lane's columns, of rows with keys and with queries.
    template <u32 COUNT>
    DEVICE void multiply_state(const float* keys, const float* queries, float (&sums)[COUNT][2][LANE_ROWS]) const {
#pragma unroll
        for (u32 i = 0; i < 2 * COUNT * LANE_ROWS; ++i) sums[i / LANE_ROWS / 2][i / LANE_ROWS % 2][i % LANE_ROWS] = 0.0f;
#pragma unroll
        for (u32 n = 0; n < QUADS; ++n) {
            const u32 at = (n * 8 + (lane_id() & 7)) * 4;
            float4 q[COUNT], k[COUNT];
#pragma unroll
            for (u32 t = 0; t < COUNT; ++t) {
                k[t] = q[t] = *reinterpret_cast<const float4*>(queries + t * COLUMNS + at);
                if constexpr (MEETS_KEYS) k[t] = *reinterpret_cast<const float4*>(keys + t * COLUMNS + at);
            }
#pragma unroll
            for (u32 i = 0; i < LANE_ROWS; ++i) {
                float s[4];
#pragma unroll
                for (u32 e = 0; e < 4; ++e) s[e] = IS_PACKED ? opened(i, n, e) : state[i][n][e];
#pragma unroll
                for (u32 t = 0; t < COUNT; ++t) {
                    float &to_key = sums[t][0][i], &to_query = sums[t][1][i];
                    to_query = fmaf(s[0], q[t].x, fmaf(s[1], q[t].y, fmaf(s[2], q[t].z, fmaf(s[3], q[t].w, to_query))));
                    if constexpr (MEETS_KEYS)
                        to_key = fmaf(s[0], k[t].x, fmaf(s[1], k[t].y, fmaf(s[2], k[t].z, fmaf(s[3], k[t].w, to_key))));
                }
            }
        }
    }

    // Adds up what eight lanes have of up to four rows with a key and a query: one to a lane, those with the key first.
    static DEVICE float sum_of_rows(const float (&sums)[2][LANE_ROWS]) {
        float eight[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) eight[i] = i % 4 < LANE_ROWS ? sums[i / 4][i % 4 % LANE_ROWS] : 0.0f;
        return sum_8_over_8(eight);
    }

    // The products of rows of the state with some keys and queries, one of each to a lane.
    template <u32 COUNT> DEVICE void state_times_rows(const float* keys, const float* queries, float (&given)[COUNT]) const {
        float sums[COUNT][2][LANE_ROWS];
        multiply_state(keys, queries, sums);
#pragma unroll
        for (u32 t = 0; t < COUNT; ++t) given[t] = sum_of_rows(sums[t]);
    }

    // The same of one key and query; where a lane has eight rows, both of one of them.
    DEVICE void state_times(const float* key, const float* query, float (&given)[LANE_ROWS == 8 ? 2 : 1]) const {
        float sums[1][2][LANE_ROWS];
        multiply_state(key, query, sums);
        if constexpr (LANE_ROWS == 8) {
            given[0] = MEETS_KEYS ? sum_8_over_8(sums[0][0]) : 0.0f;
            given[1] = sum_8_over_8(sums[0][1]);
        } else {
            given[0] = sum_of_rows(sums[0]);
        }
    }
};
