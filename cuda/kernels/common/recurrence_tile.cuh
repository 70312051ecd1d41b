// 16 rows of the state of a recurrence, in the registers of a warp, where matrix instructions add to them. Laid out so, sums
// are also what a next matrix instruction takes on its left: the state meets keys and queries, and what that gives meets
// further matrices, without leaving the registers. Each factor is the sum of two bf16, 16 bits in all.
#pragma once
#include "common/mma.cuh"
#include "common/recurrence.cuh"

// Four neighbouring elements, or zeros: nothing waits for them before they are used.
DEVICE void read_four(const float* from, bool is_there, u32 (&x)[4]) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.u32 there, %5, 0;\n"
                 "mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
                 "@there ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3])
                 : "l"(from), "r"(u32(is_there)));
}
DEVICE void read_four(const f16* from, bool is_there, u32 (&x)[2]) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.u32 there, %3, 0;\n"
                 "mov.u32 %0, 0; mov.u32 %1, 0;\n"
                 "@there ld.global.v2.u32 {%0, %1}, [%2];\n"
                 "}"
                 : "=&r"(x[0]), "=&r"(x[1])
                 : "l"(from), "r"(u32(is_there)));
}
DEVICE void open_four(const u32 (&x)[4], float (&y)[4]) {
#pragma unroll
    for (u32 e = 0; e < 4; ++e) y[e] = __uint_as_float(x[e]);
}
DEVICE void open_four(const u32 (&x)[2], float (&y)[4]) {
#pragma unroll
    for (u32 e = 0; e < 4; ++e) y[e] = e & 1 ? high_f16(x[e / 2]) : low_f16(x[e / 2]);
}

// Two numbers as bf16, and what those lack.
DEVICE void split(float x, float y, u32& high, u32& low) {
    high = pack_bf16(x, y);
    low = pack_bf16(x - low_bf16(high), y - high_bf16(high));
}

// Sums as the left side of a matrix instruction: its first 8 columns, and the other 8.
DEVICE void split_left(const float (&first)[4], const float (&second)[4], u32 (&high)[4], u32 (&low)[4]) {
    split(first[0], first[1], high[0], low[0]);
    split(first[2], first[3], high[1], low[1]);
    split(second[0], second[1], high[2], low[2]);
    split(second[2], second[3], high[3], low[3]);
}

// sums += (high + low) (b + lacking), but for the product of what both lack.
DEVICE void multiply_split(float (&sums)[4], const u32 (&high)[4], const u32 (&low)[4], const u32 (&b)[2],
                           const u32 (&lacking)[2]) {
    float terms[2][4] = {};
    mma_bf16(terms[0], low, b);
    mma_bf16(terms[1], high, lacking);
    mma_bf16(sums, high, b);
#pragma unroll
    for (u32 e = 0; e < 4; ++e) sums[e] += terms[0][e] + terms[1][e];
}

// Where the even column of a key and its neighbour are in rows that meet the state: a lane has four neighbouring columns of
// 16 in two tiles of 8.
DEVICE u32 place_of(u32 column) { return (column & ~15u) + 8 * (column >> 1 & 1) + 2 * (column >> 2 & 3); }

// Of rows in shared memory, so that neighbours are in different banks.
DEVICE constexpr u32 row_stride(u32 columns) { return columns + 8; }

// `COLUMNS` columns of 16 rows. `STRIDE`: of rows in shared memory.
template <typename State, u32 COLUMNS, u32 STRIDE> struct Tile {
    static constexpr u32 TILES = COLUMNS / 8;
    static constexpr u32 RAW = sizeof(State); // words of four elements
    float state[TILES][4];

    // The row of an element of the lane, and the first of four columns in tiles `n` and `n + 1`.
    static DEVICE u32 row_of(u32 e) { return (lane_id() >> 2) + 8 * (e >> 1); }
    static DEVICE u32 column_of(u32 n) { return 8 * n + 4 * (lane_id() & 3); }

    // What is on its way to the lane.
    struct Raw {
        u32 words[TILES / 2][2][RAW];
    };

    // Asks for the 16 rows that begin at `from`, of which there are `rows`, and which have `columns` columns from there on:
    // all of them, unless `LOOSE`.
    template <bool LOOSE> static DEVICE void request(Raw& raw, const State* from, u32 rows, u32 columns, u32 key_dim) {
#pragma unroll
        for (u32 n = 0; n < TILES; n += 2)
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                u32(&words)[RAW] = raw.words[n / 2][half];
                const u32 row = row_of(2 * half), column = column_of(n);
                const State* at = from + row * key_dim + column;
                if constexpr (!LOOSE) {
                    read_four(at, row < rows, words);
                } else {
#pragma unroll
                    for (u32 e = 0; e < RAW; ++e) words[e] = 0;
#pragma unroll
                    for (u32 e = 0; e < 4; ++e)
                        if (row < rows && column + e < columns) set(words, e, at[e]);
                }
            }
    }
    static DEVICE void set(u32 (&words)[RAW], u32 e, float x) { words[e % RAW] = __float_as_uint(x); }
    static DEVICE void set(u32 (&words)[RAW], u32 e, f16 x) { words[e / 2 % RAW] |= u32(x.bits) << (16 * (e & 1)); }
    DEVICE void open(const Raw& raw) {
#pragma unroll
        for (u32 n = 0; n < TILES; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                const u32 at = 2 * (n & 1) + (e & 1);
                const u32(&words)[RAW] = raw.words[n / 2][e >> 1];
                if constexpr (RAW == 4) {
                    state[n][e] = __uint_as_float(words[at]);
                } else {
                    state[n][e] = at & 1 ? high_f16(words[at / 2]) : low_f16(words[at / 2]);
                }
            }
    }

    // What is stored is what is in the registers.
    DEVICE void store(State* to, u32 rows, u32 columns, u32 key_dim) {
        round();
        const bool is_whole = (key_dim & 3) == 0;
#pragma unroll
        for (u32 n = 0; n < TILES; n += 2)
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = row_of(2 * half), column = column_of(n);
                State* at = to + row * key_dim + column;
                if (row >= rows || column >= columns) continue;
                float four[4] = {state[n][2 * half], state[n][2 * half + 1], state[n + 1][2 * half], state[n + 1][2 * half + 1]};
                if (is_whole) {
                    write_four(at, four);
                } else {
#pragma unroll
                    for (u32 e = 0; e < 4; ++e)
                        if (column + e < columns) store_rounded(at + e, four[e]);
                }
            }
    }
    static DEVICE void write_four(float* to, const float (&x)[4]) {
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
    static DEVICE void write_four(f16* to, const float (&x)[4]) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]));
    }

    DEVICE void round() {
#pragma unroll
        for (u32 n = 0; n < TILES; ++n)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) state[n][e] = rounded(state[n][e], static_cast<State*>(nullptr));
    }

    // Columns by `factors[COLUMNS]` in shared memory.
    DEVICE void scale_columns(const float* factors) {
#pragma unroll
        for (u32 n = 0; n < TILES; n += 2) {
            const float4 by = *reinterpret_cast<const float4*>(factors + column_of(n));
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                state[n][2 * half] *= by.x, state[n][2 * half + 1] *= by.y;
                state[n + 1][2 * half] *= by.z, state[n + 1][2 * half + 1] *= by.w;
            }
        }
    }

    // Where a lane reads `[rows][STRIDE]` for `meet` and for `add`.
    static DEVICE u32 meeting_place() { return ((lane_id() >> 4) * 8 + (lane_id() & 7)) * STRIDE + (lane_id() >> 3 & 1) * 8; }
    static DEVICE u32 adding_place() { return ((lane_id() >> 3 & 1) * 8 + (lane_id() & 7)) * STRIDE + (lane_id() >> 4) * 8; }

    // What tiles `n` and `n + 1` of the state, on the left in `high` and `low`, give 16 rows at `at`; what those lack is
    // `lacking` further on.
    static DEVICE void meet(float (&sums)[3][2][4], const u32 (&high)[4], const u32 (&low)[4], const u16* at, u32 lacking) {
        u32 x[4], y[4];
        load_matrices(x, at);
        load_matrices(y, at + lacking);
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
            const u32 b[2] = {x[2 * n], x[2 * n + 1]};
            mma_bf16(sums[0][n], high, b);
        }
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
            const u32 b[2] = {x[2 * n], x[2 * n + 1]}, rest[2] = {y[2 * n], y[2 * n + 1]};
            mma_bf16(sums[1][n], low, b);
            mma_bf16(sums[2][n], high, rest);
        }
    }

    // state = by state + u rows^T, where `high` and `low` are what 16 rows at `at` are taken times. The sum is rounded to
    // the nearest, as matrix instructions do not.
    DEVICE void add(const u32 (&high)[4], const u32 (&low)[4], const u16* at, u32 lacking, float by) {
#pragma unroll
        for (u32 n = 0; n < TILES; n += 4) {
            u32 x[2][4], y[2][4];
#pragma unroll
            for (u32 m = 0; m < 2; ++m) {
                load_matrices_transposed(x[m], at + 8 * (n + 2 * m));
                load_matrices_transposed(y[m], at + lacking + 8 * (n + 2 * m));
            }
            float sums[4][4] = {};
#pragma unroll
            for (u32 term = 0; term < 3; ++term)
#pragma unroll
                for (u32 m = 0; m < 4; ++m) {
                    const auto& from = term == 1 ? y[m / 2] : x[m / 2];
                    const u32 b[2] = {from[m % 2 * 2], from[m % 2 * 2 + 1]};
                    mma_bf16(sums[m], term == 0 ? low : high, b);
                }
#pragma unroll
            for (u32 m = 0; m < 4; ++m)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) state[n + m][e] = fmaf(by, state[n + m][e], sums[m][e]);
        }
    }
};
