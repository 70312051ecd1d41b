// Blocks as files have them (gguf/src/quant): what is packed from. A struct per format says the bytes of a block, its
// columns, the code of a column, and what the scales of a packed unit are made of.
#pragma once
#include "common/types.cuh"

// Puts a code of 16 bits into scales.
DEVICE void put_16(u8* at, const u8* from) { at[0] = from[0], at[1] = from[1]; }

// What 256 columns share: nothing.
struct NoSuper {
    DEVICE static void super(const u8*, u8*, u32) {}
};

// Numbers of 16 bits.
struct Stored16 {
    static constexpr u32 COLUMNS = 1, BYTES = 2;
    DEVICE static u32 code(const u8* at, u32) { return *reinterpret_cast<const u16*>(at); }
};
typedef Stored16 StoredF16;
typedef Stored16 StoredBf16;

// Blocks of 32 columns that begin with a half, then `SKIP - 2` bytes, then nibbles.
template <u32 SKIP> struct Stored4 : NoSuper {
    static constexpr u32 COLUMNS = 32, BYTES = SKIP + 16;
    DEVICE static u32 code(const u8* block, u32 i) { return block[SKIP + i % 16] >> (i < 16 ? 0 : 4) & 15; }
};

// The same with fifth bits in the 4 bytes before the nibbles.
template <u32 SKIP> struct Stored5 : NoSuper {
    static constexpr u32 COLUMNS = 32, BYTES = SKIP + 16;
    DEVICE static u32 code(const u8* block, u32 i) {
        return Stored4<SKIP>::code(block, i) | (block[SKIP - 4 + i / 8] >> i % 8 & 1) << 4;
    }
};

// Scales of row `row` of a packed unit, from the blocks of its two chunks (`chunk`: which one).
struct ScaleOfHalf {
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk) {
        put_16(to + 8 * (row % 8) + 4 * chunk + 2 * (row / 8), block);
    }
};
struct ScaleOfHalves {
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk) {
        u8* at = to + 16 * (row % 8) + 8 * chunk + 2 * (row / 8);
        put_16(at, block), put_16(at + 4, block + 2);
    }
};

struct StoredQ4_0 : Stored4<2>, ScaleOfHalf {};
struct StoredQ4_1 : Stored4<4>, ScaleOfHalves {};
struct StoredQ5_0 : Stored5<6>, ScaleOfHalf {};
struct StoredQ5_1 : Stored5<8>, ScaleOfHalves {};
struct StoredIq4_Nl : Stored4<2>, ScaleOfHalf {};

struct StoredQ8_0 : NoSuper, ScaleOfHalf {
    static constexpr u32 COLUMNS = 32, BYTES = 34;
    DEVICE static u32 code(const u8* block, u32 i) { return (block[2 + i] + 128) & 255; }
};

struct StoredMxfp4 : NoSuper {
    static constexpr u32 COLUMNS = 32, BYTES = 17;
    DEVICE static u32 code(const u8* block, u32 i) { return block[1 + i % 16] >> (i < 16 ? 0 : 4) & 15; }
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk) {
        to[4 * (row % 8) + 2 * chunk + row / 8] = block[0];
    }
};

// In blocks of 256, `group` numbers their 32 columns.

template <u32 AT, u32 MIN_AT> struct TwoSupers {
    DEVICE static void super(const u8* block, u8* to, u32 row) {
        u8* at = to + 8 * (row % 8) + 2 * (row / 8);
        put_16(at, block + AT), put_16(at + 4, block + MIN_AT);
    }
};
template <u32 AT> struct OneSuper {
    DEVICE static void super(const u8* block, u8* to, u32 row) {
        put_16(to + 4 * (row % 8) + 2 * (row / 8), block + AT);
    }
};

DEVICE void put_sixteenth(u8* to, u32 row, u32 chunk, u32 which, u32 value) {
    to[8 * (row % 8) + 4 * chunk + 2 * which + row / 8] = u8(value);
}

struct StoredQ2_K : TwoSupers<80, 82> {
    static constexpr u32 COLUMNS = 256, BYTES = 84;
    DEVICE static u32 code(const u8* block, u32 i) { return block[16 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3; }
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk, u32 group) {
        for (u32 which = 0; which < 2; ++which) put_sixteenth(to, row, chunk, which, block[2 * group + which]);
    }
};

struct StoredQ3_K : OneSuper<108> {
    static constexpr u32 COLUMNS = 256, BYTES = 110;
    DEVICE static u32 code(const u8* block, u32 i) {
        return (block[32 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) | (block[i % 32] >> i / 32 & 1) << 2;
    }
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk, u32 group) {
        const u8* packed = block + 96;
        for (u32 which = 0; which < 2; ++which) {
            const u32 s = 2 * group + which;
            const u32 low = packed[s % 8] >> 4 * (s / 8) & 15, high = packed[8 + s % 4] >> 2 * (s / 4) & 3;
            put_sixteenth(to, row, chunk, which, low | high << 4);
        }
    }
};

// Scales and what is subtracted: 6 bits each for 32 columns, from byte 4 on.
struct SixBitPairs : TwoSupers<0, 2> {
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk, u32 group) {
        const u8* packed = block + 4;
        const u32 i = group % 4;
        const u32 scale = group < 4 ? packed[i] & 63 : (packed[i + 8] & 15) | packed[i] >> 6 << 4;
        const u32 min = group < 4 ? packed[i + 4] & 63 : packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
        *reinterpret_cast<u16*>(to + 8 * (row % 8) + 4 * chunk + 2 * (row / 8)) = u16((scale | min << 6) << Sub32Minus::AT);
    }
};

struct StoredQ4_K : SixBitPairs {
    static constexpr u32 COLUMNS = 256, BYTES = 144;
    DEVICE static u32 code(const u8* block, u32 i) { return block[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15; }
};

struct StoredQ5_K : SixBitPairs {
    static constexpr u32 COLUMNS = 256, BYTES = 176;
    DEVICE static u32 code(const u8* block, u32 i) {
        const u32 low = block[48 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
        return low | (block[16 + i % 32] >> i / 32 & 1) << 4;
    }
};

struct StoredQ6_K : OneSuper<208> {
    static constexpr u32 COLUMNS = 256, BYTES = 210;
    DEVICE static u32 code(const u8* block, u32 i) {
        const u32 half = i / 128, run = i / 32 % 4;
        const u32 low = block[64 * half + 32 * (run % 2) + i % 32] >> run / 2 * 4 & 15;
        return low | (block[128 + 32 * half + i % 32] >> 2 * run & 3) << 4;
    }
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk, u32 group) {
        for (u32 which = 0; which < 2; ++which) {
            put_sixteenth(to, row, chunk, which, block[192 + 2 * group + which] + 128);
        }
    }
};

struct StoredIq4_Xs : OneSuper<0> {
    static constexpr u32 COLUMNS = 256, BYTES = 136;
    DEVICE static u32 code(const u8* block, u32 i) { return block[8 + i / 32 * 16 + i % 16] >> (i % 32 < 16 ? 0 : 4) & 15; }
    DEVICE static void scales(const u8* block, u8* to, u32 row, u32 chunk, u32 group) {
        const u32 low = block[4 + group / 2] >> 4 * (group % 2) & 15;
        const u32 high = (block[2] | block[3] << 8) >> 2 * group & 3;
        to[4 * (row % 8) + 2 * chunk + row / 8] = u8(low | high << 4);
    }
};
