// Weights as matrix instructions want them, format by format.
//
// A tile is 16 rows of a matrix. Of every 32 columns (a chunk), lane `4 g + t` of a warp holds columns `8 t..8 t + 8` of
// rows `g` and `g + 8` (half 0 and 1), as four words each: word `p` is columns `8 t + 2 p` and `8 t + 2 p + 1`. Two matrix
// instructions use them: step `s` words `2 s` and `2 s + 1`. Activations are held in the same order, so that the order of
// columns within a chunk, which is not that of the instruction's documentation, does not matter.
//
// Weights are packed when they are uploaded (pack.cu): tile after tile, in it unit after unit of 64 columns, in it the
// codes by lane and the scales by row, and after the units the scales that 256 columns share. Nothing is lost: `value`
// gives what the stored block says, to the bit.
#pragma once
#include "common/copy.cuh"
#include "common/mma.cuh"

static constexpr u32 MAGIC = 0x64006400u; // two halves of 1024, whose last bits count ones

DEVICE u32 neg_f16x2(u32 a) {
    u32 d;
    asm("neg.f16x2 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// The half of a word that belongs to row `g` (HALF 0) or `g + 8` (HALF 1), twice. Written so that it costs no instruction.
template <u32 HALF> DEVICE u32 both_halves(u32 pair) {
    u32 d;
    if constexpr (HALF == 0) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(pair));
    if constexpr (HALF == 1) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(pair));
    return d;
}

// (x & MASK) | with, in one instruction.
template <u32 MASK> DEVICE u32 masked_or(u32 x, u32 with) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "n"(MASK), "r"(with));
    return d;
}

// Two halves of `1024 + z`.
template <u32 Z> DEVICE u32 centre() { return MAGIC + Z * 0x10001u; }

// Keeps the compiler from computing something again and again.
DEVICE void keep(const u8*& at) { asm volatile("" : "+l"(at)); }
DEVICE void keep(u32& x) { asm volatile("" : "+r"(x)); }

// A place in a tile: what `value` is asked for.
struct Place {
    const u8* tile;
    u32 units;
    u32 row;    // 0..16
    u32 column; // of the whole row

    DEVICE u32 chunk() const { return column / 32 % 2; }
    DEVICE u32 half() const { return row / 8; }
    DEVICE u32 lane() const { return row % 8 * 4 + column % 32 / 8; }
    DEVICE u32 word() const { return column % 8 / 2; }
    DEVICE u32 high() const { return 16 * (column % 2); } // bits to the code in its word
};

// Words of a chunk by step, in the order of the instruction's operand.
typedef u32 Words[2][4];

// Where word `p` of a half is among them.
DEVICE u32& word_of(Words& w, u32 half, u32 p) { return w[p / 2][p % 2 * 2 + half]; }

// Codes. `unpack` gives what is left of a code when its zero is taken away, as halves, exactly.

// 4 bits.
template <u32 ZERO> struct Nibbles {
    static constexpr u32 BYTES = 512;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 low;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) { raw.low = load_16_once(unit + 16 * lane()); }
    DEVICE static u32 lane() { return threadIdx.x & 31; }
    DEVICE static u32 word(const uint4& raw, u32 at) { return at < 2 ? (at ? raw.y : raw.x) : (at == 2 ? raw.z : raw.w); }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        const u32 minus = 0xd400d400u + ZERO * 0x100010u; // -(64 + ZERO)
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 low = word(raw.low, 2 * chunk + half), high = low >> 8;
            word_of(w, half, 0) = sub_f16x2(masked_or<0x000f000fu>(low, MAGIC), centre<ZERO>());
            word_of(w, half, 1) = fma_f16x2(masked_or<0x00f000f0u>(low, MAGIC), 0x2c002c00u, minus);
            word_of(w, half, 2) = sub_f16x2(masked_or<0x000f000fu>(high, MAGIC), centre<ZERO>());
            word_of(w, half, 3) = fma_f16x2(masked_or<0x00f000f0u>(high, MAGIC), 0x2c002c00u, minus);
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32* words = reinterpret_cast<const u32*>(unit + 16 * at.lane());
        return words[2 * at.chunk() + at.half()] >> (4 * at.word() + at.high()) & 15;
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 4 bits and a fifth one from words of their own.
template <u32 ZERO> struct Fives {
    static constexpr u32 BYTES = 512 + 128;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 low;
        u32 high;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.low = load_16_once(unit + 16 * Nibbles<0>::lane());
        raw.high = load_4(unit + 512 + 4 * Nibbles<0>::lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 low = Nibbles<0>::word(raw.low, 2 * chunk + half);
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                const u32 at = 8 * chunk + 4 * half + p;
                const u32 fifth = masked_or<0x00100010u>(at < 4 ? raw.high << (4 - at) : raw.high >> (at - 4), MAGIC);
                word_of(w, half, p) = sub_f16x2(masked_or<0x000f000fu>(low >> 4 * p, fifth), centre<ZERO>());
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 high = reinterpret_cast<const u32*>(unit + 512)[at.lane()];
        const u32 bit = high >> (8 * at.chunk() + 4 * at.half() + at.word() + at.high()) & 1;
        return Nibbles<0>::code(unit, at) | bit << 4;
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 4 bits and two more.
template <u32 ZERO> struct Sixes {
    static constexpr u32 BYTES = 512 + 256;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 low;
        uint2 high;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.low = load_16_once(unit + 16 * Nibbles<0>::lane());
        raw.high = load_8(unit + 512 + 8 * Nibbles<0>::lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        const u32 upper = chunk ? raw.high.y : raw.high.x;
        const u32 minus = 0xd400d400u + ZERO * 0x100010u; // -(64 + ZERO)
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 pair = 0; pair < 2; ++pair) {
                const u32 low = Nibbles<0>::word(raw.low, 2 * chunk + half) >> 8 * pair, at = upper_at(half, 2 * pair);
                const u32 high = at < 4 ? upper << (4 - at) : upper >> (at - 4);
                const u32 even = masked_or<0x000f000fu>(low, masked_or<0x00300030u>(high, MAGIC));
                const u32 odd = masked_or<0x00f000f0u>(low, masked_or<0x03000300u>(high, MAGIC));
                word_of(w, half, 2 * pair) = sub_f16x2(even, centre<ZERO>());
                word_of(w, half, 2 * pair + 1) = fma_f16x2(odd, 0x2c002c00u, minus);
            }
        }
    }
    // Where the upper bits of word `p` are: those of two words that are unpacked with one shift are 4 apart, as their lower bits
    // are.
    DEVICE static u32 upper_at(u32 half, u32 p) { return 8 * half + 2 * (p / 2) + 4 * (p % 2); }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 high = reinterpret_cast<const u32*>(unit + 512 + 8 * at.lane())[at.chunk()];
        return Nibbles<0>::code(unit, at) | (high >> (upper_at(at.half(), at.word()) + at.high()) & 3) << 4;
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 2 bits.
struct Twos {
    static constexpr u32 BYTES = 256;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint2 low;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) { raw.low = load_8(unit + 8 * Nibbles<0>::lane()); }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        const u32 word = chunk ? raw.low.y : raw.low.x;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                word_of(w, half, p) = sub_f16x2(masked_or<0x00030003u>(word >> (8 * half + 2 * p), MAGIC), MAGIC);
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 word = reinterpret_cast<const u32*>(unit + 8 * at.lane())[at.chunk()];
        return word >> (8 * at.half() + 2 * at.word() + at.high()) & 3;
    }
    DEVICE static float value(u32 code) { return float(code); }
};

// 2 bits and a third one.
template <u32 ZERO> struct Threes {
    static constexpr u32 BYTES = 256 + 128;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint2 low;
        u32 high;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.low = load_8(unit + 8 * Nibbles<0>::lane());
        raw.high = load_4(unit + 256 + 4 * Nibbles<0>::lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        const u32 word = chunk ? raw.low.y : raw.low.x;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                const u32 at = 8 * chunk + 4 * half + p;
                const u32 third = masked_or<0x00040004u>(at < 2 ? raw.high << (2 - at) : raw.high >> (at - 2), MAGIC);
                word_of(w, half, p) = sub_f16x2(masked_or<0x00030003u>(word >> (8 * half + 2 * p), third), centre<ZERO>());
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 high = reinterpret_cast<const u32*>(unit + 256)[at.lane()];
        const u32 bit = high >> (8 * at.chunk() + 4 * at.half() + at.word() + at.high()) & 1;
        return Twos::code(unit, at) | bit << 2;
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 8 bits, signed; kept with 128 added.
struct Bytes {
    static constexpr u32 BYTES = 1024;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 chunks[2];
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.chunks[0] = load_16_once(unit + 16 * Nibbles<0>::lane());
        raw.chunks[1] = load_16_once(unit + 512 + 16 * Nibbles<0>::lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                const u32 word = Nibbles<0>::word(raw.chunks[chunk], 2 * half + p / 2);
                word_of(w, half, p) = sub_f16x2(__byte_perm(word, MAGIC, p % 2 ? 0x5352 : 0x5150), centre<128>());
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        return unit[512 * at.chunk() + 16 * at.lane() + 8 * at.half() + at.column % 8];
    }
    DEVICE static float value(u32 code) { return float(i32(code) - 128); }
};

// 4 bits that stand for the levels of IQ4_NL (gguf/src/quant/iq4_nl.rs), kept with 128 added.
struct Levels {
    static constexpr u32 BYTES = 512;
    static constexpr bool IS_BF16 = false;
    typedef Nibbles<0>::Raw Raw;
    static constexpr u32 TABLE[4] = {0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u};
    template <class AT> DEVICE static void load(Raw& raw, AT unit) { Nibbles<0>::load(raw, unit); }
    // The levels of four codes, one in each byte.
    DEVICE static u32 four(u32 codes) {
        const u32 small = codes & 0x7777u;
        const u32 first = __byte_perm(TABLE[0], TABLE[1], small), second = __byte_perm(TABLE[2], TABLE[3], small);
        return __byte_perm(first, second, 0x3210u | (codes >> 1 & 0x4444u));
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 word = Nibbles<0>::word(raw.low, 2 * chunk + half);
            const u32 even = four(word), odd = four(word >> 16); // columns 0, 2, 4, 6 and 1, 3, 5, 7
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                const u32 pair = __byte_perm(even, odd, p | (p + 4) << 8);
                word_of(w, half, p) = sub_f16x2(masked_or<0x00ff00ffu>(pair, MAGIC), centre<128>());
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) { return Nibbles<0>::code(unit, at); }
    DEVICE static float value(u32 code) {
        const u32 word = code < 8 ? (code < 4 ? TABLE[0] : TABLE[1]) : (code < 12 ? TABLE[2] : TABLE[3]);
        return float(i32(word >> 8 * (code % 4) & 255) - 128);
    }
};

// 4-bit floats: a sign, two bits of exponent, one of mantissa.
struct Floats {
    static constexpr u32 BYTES = 512;
    static constexpr bool IS_BF16 = false;
    typedef Nibbles<0>::Raw Raw;
    template <class AT> DEVICE static void load(Raw& raw, AT unit) { Nibbles<0>::load(raw, unit); }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 word = Nibbles<0>::word(raw.low, 2 * chunk + half);
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                const u32 codes = word >> 4 * p & 0x000f000fu;
                // As the top bits of a half they stand for 2^-14 of their value.
                const u32 halves = (codes & 0x00070007u) << 9 | (codes & 0x00080008u) << 12;
                word_of(w, half, p) = mul_f16x2(halves, 0x74007400u);
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) { return Nibbles<0>::code(unit, at); }
    // Twice the value, as gguf/src/quant/mxfp4.rs has it.
    DEVICE static float value(u32 code) {
        const u32 size = code & 7;
        const float level = size < 4 ? float(size) : size < 6 ? float(2 * size - 4) : float(4 * size - 16);
        return code & 8 ? -level : level;
    }
};

// 16 bits: the values themselves, as the instruction wants them.
template <bool BF16> struct Sixteens {
    static constexpr u32 BYTES = 2048;
    static constexpr bool IS_BF16 = BF16;
    struct Raw {
        uint4 words[2][2]; // by chunk and step
    };
    // Where the words of this lane are.
    template <class AT> DEVICE static AT at(AT unit, u32 chunk, u32 step) {
        return unit + ((chunk * 2 + step) * 512 + 16 * Nibbles<0>::lane());
    }
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) raw.words[i / 2][i % 2] = load_16_once(at(unit, i / 2, i % 2));
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
#pragma unroll
        for (u32 step = 0; step < 2; ++step) {
            const uint4 words = raw.words[chunk][step];
            w[step][0] = words.x, w[step][1] = words.y, w[step][2] = words.z, w[step][3] = words.w;
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u8* words = unit + (at.chunk() * 2 + at.word() / 2) * 512 + 16 * at.lane();
        return reinterpret_cast<const u32*>(words)[at.word() % 2 * 2 + at.half()] >> at.high() & 0xffff;
    }
    DEVICE static float value(u32 code) { return BF16 ? to_float(bf16{u16(code)}) : to_float(f16{u16(code)}); }
};

// Scales. `get` gives those of a chunk: what codes are multiplied by, and what is added then (for formats that add
// something).

// Words with the value of row `g` low and of row `g + 8` high.
struct Factors {
    u32 scale, plus;
};

DEVICE u32 group_of_lane() { return (threadIdx.x & 31) / 4; }
DEVICE u32 pair_of_lane() { return threadIdx.x & 3; }

DEVICE float half_at(const u8* at) { return to_float(*reinterpret_cast<const f16*>(at)); }

// None.
struct NoScales {
    static constexpr u32 BYTES = 0, SUPER = 0;
    static constexpr bool ADDS = false;
    struct Raw {};
    template <class AT> DEVICE static void load(Raw&, AT, AT) {}
    DEVICE static float value(const u8*, const u8*, const Place&, float code) { return code; }
};

// A half for every 32 columns.
struct Halves {
    static constexpr u32 BYTES = 64, SUPER = 0;
    static constexpr bool ADDS = false;
    struct Raw {
        uint2 scales;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT) { raw.scales = load_8(unit + 8 * group_of_lane()); }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) { by.scale = chunk ? raw.scales.y : raw.scales.x; }
    DEVICE static float value(const u8* unit, const u8*, const Place& at, float code) {
        return half_at(unit + 8 * (at.row % 8) + 4 * at.chunk() + 2 * at.half()) * code;
    }
};

// A half for every 32 columns, and one that is added.
struct HalvesPlus {
    static constexpr u32 BYTES = 128, SUPER = 0;
    static constexpr bool ADDS = true;
    struct Raw {
        uint4 both;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT) { raw.both = load_16(unit + 16 * group_of_lane()); }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        by.scale = chunk ? raw.both.z : raw.both.x;
        by.plus = chunk ? raw.both.w : raw.both.y;
    }
    DEVICE static float value(const u8* unit, const u8*, const Place& at, float code) {
        const u8* from = unit + 16 * (at.row % 8) + 8 * at.chunk() + 2 * at.half();
        return __fadd_rn(__fmul_rn(half_at(from), code), half_at(from + 4));
    }
};

// 6 bits for every 32 columns and as many for what is subtracted, times halves for 256 columns.
struct Sub32Minus {
    static constexpr u32 BYTES = 64, SUPER = 64;
    static constexpr bool ADDS = true;
    struct Raw {
        uint2 small, super;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT super) {
        raw.small = load_8(unit + 8 * group_of_lane());
        raw.super = load_8(super + 8 * group_of_lane());
    }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        const u32 small = chunk ? raw.small.y : raw.small.x;
        by.scale = mul_f16x2(sub_f16x2(__byte_perm(small, MAGIC, 0x5150), MAGIC), raw.super.x);
        by.plus = neg_f16x2(mul_f16x2(sub_f16x2(__byte_perm(small, MAGIC, 0x5352), MAGIC), raw.super.y));
    }
    DEVICE static float value(const u8* unit, const u8* super, const Place& at, float code) {
        const u8* small = unit + 8 * (at.row % 8) + 4 * at.chunk() + at.half();
        const u8* by = super + 8 * (at.row % 8) + 2 * at.half();
        const float scale = half_at(by) * float(small[0]), min = half_at(by + 4) * float(small[2]);
        return __fsub_rn(__fmul_rn(scale, code), min);
    }
};

// A byte for every 16 columns, from which `ZERO` is taken, times a half for 256 columns.
template <u32 ZERO> struct Sub16 {
    static constexpr u32 BYTES = 64, SUPER = 32;
    static constexpr bool ADDS = false;
    struct Raw {
        uint2 small;
        u32 super;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT super) {
        raw.small = load_8(unit + 8 * group_of_lane());
        raw.super = load_4(super + 4 * group_of_lane());
    }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        const u32 small = chunk ? raw.small.y : raw.small.x;
        const u32 both = __byte_perm(small, MAGIC, pair_of_lane() < 2 ? 0x5150 : 0x5352);
        by.scale = mul_f16x2(sub_f16x2(both, centre<ZERO>()), raw.super);
    }
    DEVICE static float value(const u8* unit, const u8* super, const Place& at, float code) {
        const u8 small = unit[8 * (at.row % 8) + 4 * at.chunk() + 2 * (at.column / 16 % 2) + at.half()];
        return half_at(super + 4 * (at.row % 8) + 2 * at.half()) * float(i32(small) - i32(ZERO)) * code;
    }
};

// 4 bits for every 16 columns and 4 for what is subtracted, times halves for 256 columns.
struct Sub16Minus {
    static constexpr u32 BYTES = 64, SUPER = 64;
    static constexpr bool ADDS = true;
    typedef Sub32Minus::Raw Raw;
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT super) { Sub32Minus::load(raw, unit, super); }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        const u32 small = chunk ? raw.small.y : raw.small.x;
        const u32 both = __byte_perm(small, 0, pair_of_lane() < 2 ? 0x4140 : 0x4342);
        by.scale = mul_f16x2(sub_f16x2((both & 0x000f000fu) | MAGIC, MAGIC), raw.super.x);
        by.plus = neg_f16x2(mul_f16x2(sub_f16x2((both >> 4 & 0x000f000fu) | MAGIC, MAGIC), raw.super.y));
    }
    DEVICE static float value(const u8* unit, const u8* super, const Place& at, float code) {
        const u8 small = unit[8 * (at.row % 8) + 4 * at.chunk() + 2 * (at.column / 16 % 2) + at.half()];
        const u8* by = super + 8 * (at.row % 8) + 2 * at.half();
        const float scale = half_at(by) * float(small & 15), min = half_at(by + 4) * float(small >> 4);
        return __fsub_rn(__fmul_rn(scale, code), min);
    }
};

// A byte for every 32 columns, from which `ZERO` is taken, times a half for 256 columns.
template <u32 ZERO> struct Sub32 {
    static constexpr u32 BYTES = 32, SUPER = 32;
    static constexpr bool ADDS = false;
    struct Raw {
        u32 small, super;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT super) {
        raw.small = load_4(unit + 4 * group_of_lane());
        raw.super = load_4(super + 4 * group_of_lane());
    }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        const u32 both = __byte_perm(raw.small, MAGIC, chunk ? 0x5352 : 0x5150);
        by.scale = mul_f16x2(sub_f16x2(both, centre<ZERO>()), raw.super);
    }
    DEVICE static float value(const u8* unit, const u8* super, const Place& at, float code) {
        const u8 small = unit[4 * (at.row % 8) + 2 * at.chunk() + at.half()];
        return half_at(super + 4 * (at.row % 8) + 2 * at.half()) * float(i32(small) - i32(ZERO)) * code;
    }
};

// A power of two for every 32 columns, as its exponent and 127.
struct Powers {
    static constexpr u32 BYTES = 32, SUPER = 0;
    static constexpr bool ADDS = false;
    struct Raw {
        u32 exponents;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT) {
        raw.exponents = load_4(unit + 4 * group_of_lane());
    }
    // Beyond what a half can be is the largest power that it can.
    DEVICE static float power(u32 exponent) { return __uint_as_float(min(exponent & 255, 142u) << 23); }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        const u32 both = raw.exponents >> 16 * chunk;
        by.scale = pack_f16(power(both), power(both >> 8));
    }
    // 2^(exponent - 128), of which the two smallest are subnormal.
    DEVICE static float value(const u8* unit, const u8*, const Place& at, float code) {
        const u32 exponent = unit[4 * (at.row % 8) + 2 * at.chunk() + at.half()];
        const u32 bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
        return __uint_as_float(bits) * code;
    }
};

// A packed format: how its codes and its scales are kept. A value is a place in a tile, from which units are loaded.
template <class CODES, class SCALES> struct Packed {
    static constexpr bool IS_PLAIN = SCALES::BYTES == 0, IS_BF16 = CODES::IS_BF16;
    static constexpr u32 UNIT = CODES::BYTES + SCALES::BYTES, SUPER = SCALES::SUPER;
    struct Raw {
        typename CODES::Raw codes;
        typename SCALES::Raw scales;
    };

    DEVICE static u64 tile_bytes(u32 units) { return u64(units) * UNIT + u64(units / 4) * SCALES::SUPER; }

    const u8* from;  // this unit
    const u8* super; // of the whole tile
    u32 unit;

    // Unit `unit` of tile number `at` of matrix `matrix`.
    DEVICE Packed(const u8* base, u32 rows, u32 units, u32 matrix, u32 at, u32 unit) : unit(unit) {
        const u32 tiles = (rows + 15) / 16;
        const u8* tile = base + (u64(matrix) * tiles + min(at, tiles - 1)) * tile_bytes(units);
        from = tile + u64(unit) * UNIT;
        super = tile + u64(units) * UNIT;
        keep(from), keep(super);
    }

    DEVICE void advance(u32 units) {
        from += units * UNIT;
        unit += units;
        keep(from);
    }

    // The unit after so many others.
    DEVICE void load(Raw& raw, u32 ahead) const {
        CODES::load(raw.codes, from + ahead * UNIT);
        SCALES::load(raw.scales, from + (ahead * UNIT + CODES::BYTES), super + (unit + ahead) / 4 * SCALES::SUPER);
    }

    // A unit that was copied, and what four units share.
    template <class AT> DEVICE static void load_copied(Raw& raw, AT unit, AT super) {
        CODES::load(raw.codes, unit);
        SCALES::load(raw.scales, unit + CODES::BYTES, super);
    }

    template <u32 HALF> DEVICE static void scale(Words& w, const Factors& by) {
#pragma unroll
        for (u32 p = 0; p < 4; ++p) {
            u32& word = word_of(w, HALF, p);
            const u32 scale = both_halves<HALF>(by.scale);
            if constexpr (SCALES::ADDS) word = fma_f16x2(word, scale, both_halves<HALF>(by.plus));
            if constexpr (!SCALES::ADDS) word = mul_f16x2(word, scale);
        }
    }

    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        CODES::unpack(raw.codes, chunk, w);
        if constexpr (SCALES::BYTES > 0) {
            Factors by;
            SCALES::get(raw.scales, chunk, by);
            scale<0>(w, by);
            scale<1>(w, by);
        }
    }

    // One value as f32, as the stored block gives it.
    DEVICE static float value(const u8* base, u32 units, u32 row, u32 column) {
        const u8* tile = base + u64(row / 16) * tile_bytes(units);
        const Place at{tile, units, row % 16, column};
        const u8* unit = tile + u64(column / 64) * UNIT;
        const u8* super = tile + u64(units) * UNIT + column / 256 * SCALES::SUPER;
        return SCALES::value(unit + CODES::BYTES, super, at, CODES::value(CODES::code(unit, at)));
    }
};

typedef Packed<Sixteens<true>, NoScales> FormatBf16;
typedef Packed<Sixteens<false>, NoScales> FormatF16;
typedef Packed<Nibbles<8>, Halves> FormatQ4_0;
typedef Packed<Nibbles<0>, HalvesPlus> FormatQ4_1;
typedef Packed<Fives<16>, Halves> FormatQ5_0;
typedef Packed<Fives<0>, HalvesPlus> FormatQ5_1;
typedef Packed<Bytes, Halves> FormatQ8_0;
typedef Packed<Twos, Sub16Minus> FormatQ2_K;
typedef Packed<Threes<4>, Sub16<32>> FormatQ3_K;
typedef Packed<Nibbles<0>, Sub32Minus> FormatQ4_K;
typedef Packed<Fives<0>, Sub32Minus> FormatQ5_K;
typedef Packed<Sixes<32>, Sub16<128>> FormatQ6_K;
typedef Packed<Levels, Halves> FormatIq4_Nl;
typedef Packed<Levels, Sub32<32>> FormatIq4_Xs;
typedef Packed<Floats, Powers> FormatMxfp4;
