// Products of queries with keys and of values with their weights, for a warp and the tokens of a turn, which are in shared
// memory: q8_0 as integers, fp8 as f16. A lane has the scores of the query `group_lane` and the tokens `4 pair..` of every 16,
// whose weights are what the second product wants of it. Keys are the columns of the first product, so that they need not be
// moved either, and its 16 rows are terms of eight queries.
#pragma once
#include "common/tiles.cuh"

// Rows of a turn in shared memory, in units of 16 bytes that are dealt out so that all lanes are served at once.
template <u32 DIM> struct Staged {
    static constexpr u32 GROUPS = DIM == 64 ? 4 : DIM == 128 ? 2 : 1; // of 16 tokens

    // What is exclusive-ored to the place of a byte of 16 rows: for a row, that of its bits exclusive-ored.
    static DEVICE constexpr u32 swizzle(u32 row) { return (row >> 2 & 3) << 5 ^ (DIM == 64 ? 0 : (row & 1) << 6); }

    // Of 16 tokens, the one in column `group_lane` of the first or the second 8 has the columns from `16 pair` of these 64.
    static DEVICE uint4 key(const u8* rows, u32 group, u32 eight, u32 c) {
        const u32 group_lane = lane_id() >> 2, pair = lane_id() & 3, row = (group_lane & ~1u) * 2 + (group_lane & 1);
        const u32 at = row * DIM ^ 16 * pair ^ swizzle(row);
        const u32 turned = c & 1 ? at ^ 64 : at;
        return *reinterpret_cast<const uint4*>(rows + turned + ((group * 16 + 2 * eight) * DIM + c / 2 * 128));
    }

    // The token `4 pair + r` of 16 has the columns from `8 group_lane` of these 64.
    static DEVICE uint2 value(const u8* rows, u32 group, u32 r, u32 c) {
        const u32 group_lane = lane_id() >> 2, pair = lane_id() & 3;
        const u32 at = 4 * pair * DIM + (8 * group_lane ^ swizzle(4 * pair));
        const u32 turned = (r ^ c) & 1 ? at ^ 64 : at;
        const u32 ahead = group * 16 * DIM + (DIM == 64 ? r / 2 * 128 : r * DIM + c / 2 * 128);
        return *reinterpret_cast<const uint2*>(rows + turned + ahead);
    }
};

// What a lane has of the terms of queries, for every chunk of columns and all products with it.
template <u32 CHUNKS, u32 PRODUCTS> struct StagedQueries {
    uint4 words[CHUNKS][PRODUCTS][32];

    DEVICE uint4 of_lane(u32 chunk, u32 product) const { return words[chunk][product][lane_id()]; }
    // `second`: of the rows from 8 and of the columns of the second half of a chunk.
    DEVICE u8* place(u32 chunk, u32 product, u32 query, u32 pair, u32 second_rows, u32 second_half) {
        return reinterpret_cast<u8*>(&words[chunk][product][query % 8 * 4 + pair]) + (2 * second_half + second_rows) * 4;
    }
};

template <u32 KV, u32 DIM, u32 TILES> struct Products;

template <u32 DIM, u32 TILES> struct Products<KV_Q8_0, DIM, TILES> : Staged<DIM> {
    using Rows = Staged<DIM>;
    static constexpr u32 GROUPS = Rows::GROUPS, TERMS = 3; // bytes of a query and of a weight, the highest first
    // Queries are less than 2, and so their integers are at most 2^22 in magnitude. Sums are in units of the middle byte.
    static constexpr float QUERIES_BY = 2097152.0f, KEY_FACTOR = 256.0f / QUERIES_BY;
    // Weights are integers of 23 bits, even if the largest is divided by a little less than itself.
    static constexpr float WEIGHTS = 8388600.0f, VALUE_FACTOR = 256.0f / WEIGHTS;
    // Half of what is cut off.
    static constexpr i32 HALF = 128;

    // A product for the two high bytes of each tile of queries, and one for the lowest of all.
    struct Queries : StagedQueries<DIM / 32, TILES + 1> {
        DEVICE void put(u32 query, u32 column, float low, float high) {
            i32 x = __float2int_rn(low * QUERIES_BY), y = __float2int_rn(high * QUERIES_BY);
            const u32 tile = query / 8, chunk = column / 64 * 2 + column % 16 / 8, half = column % 8 / 4;
            const auto put_byte = [&](u32 product, u32 second_rows) {
                u8* to = this->place(chunk, product, query, column % 64 / 16, second_rows, half) + column % 4;
                *reinterpret_cast<u16*>(to) = u16(u8(x)) | u16(u8(y)) << 8;
                x = (x - i8(x)) >> 8, y = (y - i8(y)) >> 8;
            };
            put_byte(TILES, tile), put_byte(tile, 1), put_byte(tile, 0);
            if (TILES == 1) x = y = 0, put_byte(TILES, 1);
        }
    };

    struct Weights {
        u32 bytes[GROUPS][TILES][TERMS];

        DEVICE void put(u32 g, u32 n, const float (&w)[4], float inverse) {
            u32 x[4];
#pragma unroll
            for (u32 e = 0; e < 4; ++e) x[e] = __float_as_uint(fmaf(w[e], inverse, 8388608.0f));
            const u32 low[2] = {permute(x[0], x[1], 0x5140), permute(x[2], x[3], 0x5140)};
            const u32 high[2] = {permute(x[0], x[1], 0x6262), permute(x[2], x[3], 0x6262)};
            bytes[g][n][2] = permute(low[0], low[1], 0x5410);
            bytes[g][n][1] = permute(low[0], low[1], 0x7632);
            bytes[g][n][0] = permute(high[0], high[1], 0x5410);
        }
    };

    // Scores, over a factor of the query and the scale of the key.
    static DEVICE void multiply_keys(const u8* keys, const Queries& queries, float (&scores)[GROUPS][TILES][4]) {
        i32 sums[GROUPS][2][TILES + 1][4];
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
            for (u32 eight = 0; eight < 2; ++eight)
#pragma unroll
                for (u32 i = 0; i <= TILES; ++i) start(sums[g][eight][i], i == TILES ? HALF : 0);
#pragma unroll
        for (u32 c = 0; c < DIM / 64; ++c) {
            uint4 q[2][TILES + 1];
#pragma unroll
            for (u32 half = 0; half < 2; ++half)
#pragma unroll
                for (u32 i = 0; i <= TILES; ++i) q[half][i] = queries.of_lane(2 * c + half, i);
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                for (u32 eight = 0; eight < 2; ++eight) {
                    const uint4 key = Rows::key(keys, g, eight, c);
                    const u32 b[2][2] = {{key.x, key.y}, {key.z, key.w}};
#pragma unroll
                    for (u32 half = 0; half < 2; ++half)
#pragma unroll
                        for (u32 i = 0; i <= TILES; ++i) {
                            const u32 a[4] = {q[half][i].x, q[half][i].y, q[half][i].z, q[half][i].w};
                            mma_s8(sums[g][eight][i], a, b[half]);
                        }
                }
        }
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
            for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const auto& of = sums[g][e / 2];
                    scores[g][n][e] = total(of[n][e % 2], of[n][e % 2 + 2], of[TILES][e % 2 + 2 * n]);
                }
    }

    // Fades what is mixed and adds these values, whose weights are over `worth`.
    static DEVICE void mix_values(const u8* values, const Weights& weights, const float (&worth)[TILES][2],
                                  const float (&fade)[TILES][2], float (&mixed)[TILES][DIM / 16][4]) {
#pragma unroll
        for (u32 c = 0; c < DIM / 64; ++c) {
            uint2 rows[GROUPS][4];
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                for (u32 r = 0; r < 4; ++r) rows[g][r] = Rows::value(values, g, r, c);
#pragma unroll
            for (u32 word = 0; word < 2; ++word) {
                u32 columns[GROUPS][4]; // four tokens of a column each
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g) {
                    u32 r[4];
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) r[i] = word == 0 ? rows[g][i].x : rows[g][i].y;
                    const u32 low[2] = {permute(r[0], r[1], 0x5140), permute(r[2], r[3], 0x5140)};
                    const u32 high[2] = {permute(r[0], r[1], 0x7362), permute(r[2], r[3], 0x7362)};
                    columns[g][0] = permute(low[0], low[1], 0x5410), columns[g][1] = permute(low[0], low[1], 0x7632);
                    columns[g][2] = permute(high[0], high[1], 0x5410), columns[g][3] = permute(high[0], high[1], 0x7632);
                }
#pragma unroll
                for (u32 h = 0; h < 2; ++h)
#pragma unroll
                    for (u32 n = 0; n < TILES; ++n) {
                        i32 sums[TERMS][4];
#pragma unroll
                        for (u32 t = 0; t < TERMS; ++t) {
                            start(sums[t], t == TERMS - 1 ? HALF : 0);
                            if constexpr (GROUPS == 1) {
                                const u32 a[2] = {columns[0][2 * h], columns[0][2 * h + 1]};
                                mma_s8_u8(sums[t], a, weights.bytes[0][n][t]);
                            } else {
#pragma unroll
                                for (u32 g = 0; g < GROUPS; g += 2) {
                                    const u32 a[4] = {columns[g][2 * h], columns[g][2 * h + 1], columns[g + 1][2 * h],
                                                      columns[g + 1][2 * h + 1]};
                                    const u32 b[2] = {weights.bytes[g][n][t], weights.bytes[g + 1][n][t]};
                                    mma_s8_u8(sums[t], a, b);
                                }
                            }
                        }
                        float(&to)[4] = mixed[n][4 * c + 2 * word + h];
#pragma unroll
                        for (u32 e = 0; e < 4; ++e)
                            to[e] = fmaf(total(sums[0][e], sums[1][e], sums[2][e]), worth[n][e & 1], to[e] * fade[n][e & 1]);
                    }
            }
        }
    }

private:
    static DEVICE void start(i32 (&sum)[4], i32 with) { sum[0] = sum[1] = sum[2] = sum[3] = with; }

    // The sum of the products of three bytes in units of the middle one, rounded. At most 127 * 127 * 256 of the highest and
    // half as much again are added up, so it has room.
    static DEVICE float total(i32 high, i32 middle, i32 low) { return float(high * 256 + middle + (low >> 8)); }
};

template <u32 DIM, u32 TILES> struct Products<KV_F8, DIM, TILES> : Staged<DIM> {
    using Rows = Staged<DIM>;
    static constexpr u32 GROUPS = Rows::GROUPS, TERMS = terms<KV_F8>();
    static constexpr float KEY_FACTOR = 1.0f, WEIGHTS = 1.0f, VALUE_FACTOR = 1.0f;

    struct Queries : StagedQueries<DIM / 16, TILES> {
        DEVICE void put(u32 query, u32 column, float low, float high) {
            const u32 chunk = column / 64 * 4 + column % 16 / 4, half = column % 4 / 2;
#pragma unroll
            for (u32 t = 0; t < TERMS; ++t) {
                u8* to = this->place(chunk, query / 8, query, column % 64 / 16, t, half);
                *reinterpret_cast<u32*>(to) = take_pair<KV_F8>(low, high);
            }
        }
    };

    struct Weights {
        u32 halves[GROUPS][TILES][TERMS][2];

        DEVICE void put(u32 g, u32 n, const float (&w)[4], float inverse) {
            float x[4];
#pragma unroll
            for (u32 e = 0; e < 4; ++e) x[e] = w[e] * inverse;
#pragma unroll
            for (u32 t = 0; t < TERMS; ++t) {
                halves[g][n][t][0] = take_pair<KV_F8>(x[0], x[1]);
                halves[g][n][t][1] = take_pair<KV_F8>(x[2], x[3]);
            }
        }
    };

    static DEVICE void multiply_keys(const u8* keys, const Queries& queries, float (&scores)[GROUPS][TILES][4]) {
        float sums[GROUPS][2][TILES][4] = {};
#pragma unroll
        for (u32 c = 0; c < DIM / 64; ++c) {
            uint4 q[4][TILES];
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
#pragma unroll
                for (u32 n = 0; n < TILES; ++n) q[i][n] = queries.of_lane(4 * c + i, n);
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                for (u32 eight = 0; eight < 2; ++eight) {
                    const uint4 key = Rows::key(keys, g, eight, c);
                    const u32 words[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        const u32 b[2] = {f8_to_f16x2(words[i]), f8_to_f16x2_high(words[i])};
#pragma unroll
                        for (u32 n = 0; n < TILES; ++n) {
                            const u32 a[4] = {q[i][n].x, q[i][n].y, q[i][n].z, q[i][n].w};
                            mma_f16(sums[g][eight][n], a, b);
                        }
                    }
                }
        }
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
            for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                for (u32 e = 0; e < 4; ++e) scores[g][n][e] = sums[g][e / 2][n][e % 2 + 2] + sums[g][e / 2][n][e % 2];
    }

    static DEVICE void mix_values(const u8* values, const Weights& weights, const float (&worth)[TILES][2],
                                  const float (&fade)[TILES][2], float (&mixed)[TILES][DIM / 16][4]) {
#pragma unroll
        for (u32 c = 0; c < DIM / 64; ++c) {
            uint2 rows[GROUPS][4];
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g)
#pragma unroll
                for (u32 r = 0; r < 4; ++r) rows[g][r] = Rows::value(values, g, r, c);
#pragma unroll
            for (u32 word = 0; word < 2; ++word) {
                float sums[2][TILES][4] = {};
#pragma unroll
                for (u32 g = 0; g < GROUPS; ++g) {
                    u32 r[4];
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) r[i] = word == 0 ? rows[g][i].x : rows[g][i].y;
#pragma unroll
                    for (u32 h = 0; h < 2; ++h) {
                        // Two tokens of a column become neighbours before they are unpacked.
                        const u32 selector = h == 0 ? 0x5140 : 0x7362;
                        const u32 first = permute(r[0], r[1], selector), second = permute(r[2], r[3], selector);
                        const u32 a[4] = {f8_to_f16x2(first), f8_to_f16x2_high(first), f8_to_f16x2(second),
                                          f8_to_f16x2_high(second)};
#pragma unroll
                        for (u32 n = 0; n < TILES; ++n)
#pragma unroll
                            for (u32 t = 0; t < TERMS; ++t) mma_f16(sums[h][n], a, weights.halves[g][n][t]);
                    }
                }
#pragma unroll
                for (u32 h = 0; h < 2; ++h)
#pragma unroll
                    for (u32 n = 0; n < TILES; ++n) {
                        float(&to)[4] = mixed[n][4 * c + 2 * word + h];
#pragma unroll
                        for (u32 e = 0; e < 4; ++e) to[e] = fmaf(sums[h][n][e], worth[n][e & 1], to[e] * fade[n][e & 1]);
                    }
            }
        }
    }
};
