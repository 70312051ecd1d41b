// Codes of weights, as matrix instructions want them: those of a tile, and how a format keeps them (quant/formats.cuh).
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

// Two halves that are a power of two, or the same below zero.
template <i32 EXPONENT> DEVICE u32 power_f16x2() { return (EXPONENT < -14 ? 1u << (EXPONENT + 24) : u32(EXPONENT + 15) << 10) * 0x10001u; }
template <i32 EXPONENT> DEVICE u32 minus_power_f16x2() { return power_f16x2<EXPONENT>() | 0x80008000u; }

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

// Codes. `unpack` leaves them as bits of halves: those of even words LOW bits up, of odd ones HIGH. Up to bit 10 bits of a half
// count as they do in a number, so that it is the code times 2^(LOW - 24) or 2^(HIGH - 24), exactly. What makes up for that is in
// the scale, and what is taken away from a code (ZERO) in what is added: the code is out of its bits with one instruction, and a
// weight with the next.

// A field of bits, brought from one place to another.
DEVICE u32 moved(u32 x, u32 from, u32 to) { return from < to ? x << (to - from) : x >> (from - to); }

// Where 2 bits of word `p` of a half are, and where one bit of it is: those of two words that are unpacked with one shift are 4
// apart, as fields of 4 bits are.
DEVICE constexpr u32 two_at(u32 half, u32 p) { return 8 * half + 2 * (p / 2) + 4 * (p % 2); }
DEVICE constexpr u32 one_at(u32 chunk, u32 half, u32 p) { return 8 * chunk + 2 * half + p / 2 + 4 * (p % 2); }

// Goes through the halves of a chunk and the pairs of words of each.
template <typename Use> DEVICE void each_pair(Use use) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
        for (u32 pair = 0; pair < 2; ++pair) use(half, pair);
    }
}

// Fields of 4 bits, in words that are turned by TURN bits to the left; those of two words are got at by a turn by 8 to the right.
template <u32 TURN_BY> struct Fields {
    static constexpr u32 TURN = TURN_BY, LOW = TURN, HIGH = TURN + 4;
    static constexpr u32 EVEN = 0x000f000fu << TURN, ODD = 0x00f000f0u << TURN;

    DEVICE static u32 lane() { return threadIdx.x & 31; }
    DEVICE static u32 word(const uint4& raw, u32 at) { return at < 2 ? (at ? raw.y : raw.x) : (at == 2 ? raw.z : raw.w); }
    // The word with those of words `2 * pair` and `2 * pair + 1` of a half.
    DEVICE static u32 of_pair(const uint4& raw, u32 chunk, u32 half, u32 pair) {
        const u32 both = word(raw, 2 * chunk + half);
        return pair == 0 ? both : __funnelshift_r(both, both, 8);
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 both = reinterpret_cast<const u32*>(unit + 16 * at.lane())[2 * at.chunk() + at.half()];
        return __funnelshift_r(both, both, TURN + 4 * at.word() + at.high()) & 15;
    }
};

// 4 bits.
template <u32 ZERO_AT> struct Nibbles : Fields<3> {
    static constexpr u32 BYTES = 512, ZERO = ZERO_AT;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 low;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) { raw.low = load_16_once(unit + 16 * lane()); }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        each_pair([&](u32 half, u32 pair) {
            const u32 both = of_pair(raw.low, chunk, half, pair);
            word_of(w, half, 2 * pair) = both & EVEN, word_of(w, half, 2 * pair + 1) = both & ODD;
        });
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 4 bits and a fifth one from words of their own.
template <u32 ZERO_AT> struct Fives : Fields<2> {
    static constexpr u32 BYTES = 512 + 128, ZERO = ZERO_AT;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 low;
        u32 high;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.low = load_16_once(unit + 16 * lane());
        raw.high = load_4(unit + 512 + 4 * lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        each_pair([&](u32 half, u32 pair) {
            const u32 low = of_pair(raw.low, chunk, half, pair), high = moved(raw.high, one_at(chunk, half, 2 * pair), LOW + 4);
            word_of(w, half, 2 * pair) = masked_or<EVEN>(low, high & 0x00010001u << (LOW + 4));
            word_of(w, half, 2 * pair + 1) = masked_or<ODD>(low, high & 0x00010001u << (HIGH + 4));
        });
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 high = reinterpret_cast<const u32*>(unit + 512)[at.lane()];
        const u32 bit = high >> (one_at(at.chunk(), at.half(), at.word()) + at.high()) & 1;
        return Fields::code(unit, at) | bit << 4;
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 6 bits. Of the 8 words of a chunk, 6 are two to a word of what is loaded: from bit 4 and from bit 10 on. Of the other two, 4 bits
// each are below those of the first two words loaded, 2 each below those of the third.
template <u32 ZERO_AT> struct Sixes {
    static constexpr u32 BYTES = 512 + 256, ZERO = ZERO_AT, LOW = 4, HIGH = 4, MASK = 0x003f003fu << LOW;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 first; // the first two of each chunk
        uint2 third;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.first = load_16_once(unit + 16 * Fields<0>::lane());
        raw.third = load_8(unit + 512 + 8 * Fields<0>::lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        const u32 loaded[3] = {Fields<0>::word(raw.first, 2 * chunk), Fields<0>::word(raw.first, 2 * chunk + 1),
                               chunk ? raw.third.y : raw.third.x};
#pragma unroll
        for (u32 i = 0; i < 3; ++i) numbered(w, 2 * i) = loaded[i] & MASK, numbered(w, 2 * i + 1) = loaded[i] >> 6 & MASK;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 upper = loaded[2] << (8 - 2 * i) & 0x03000300u;
            numbered(w, 6 + i) = masked_or<0x00f000f0u>(loaded[i] << 4, upper);
        }
    }
    // Word `at % 4` of half `at / 4`.
    DEVICE static u32& numbered(Words& w, u32 at) { return word_of(w, at / 4, at % 4); }
    // The bits that a code adds to word `word` of three, in the lower half of it.
    DEVICE static u32 bits(u32 half, u32 p, u32 word, u32 code) {
        const u32 at = 4 * half + p;
        if (at < 6) return at / 2 == word ? code << (4 + 6 * (at % 2)) : 0;
        return word == at - 6 ? code & 15 : word == 2 ? code >> 4 << 2 * (at - 6) : 0;
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 number = 4 * at.half() + at.word();
        const auto word = [&](u32 i) {
            const u32 from = i < 2 ? 16 * at.lane() + 8 * at.chunk() + 4 * i : 512 + 8 * at.lane() + 4 * at.chunk();
            return *reinterpret_cast<const u32*>(unit + from) >> at.high();
        };
        if (number < 6) return word(number / 2) >> (4 + 6 * (number % 2)) & 63;
        return (word(number - 6) & 15) | (word(2) >> 2 * (number - 6) & 3) << 4;
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 2 bits.
struct Twos {
    static constexpr u32 BYTES = 256, ZERO = 0, LOW = 5, HIGH = 9;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint2 low;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) { raw.low = load_8(unit + 8 * Fields<0>::lane()); }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        const u32 word = chunk ? raw.low.y : raw.low.x;
        each_pair([&](u32 half, u32 pair) {
            const u32 both = moved(word, two_at(half, 2 * pair), LOW);
            word_of(w, half, 2 * pair) = both & 0x00030003u << LOW, word_of(w, half, 2 * pair + 1) = both & 0x00030003u << HIGH;
        });
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 word = reinterpret_cast<const u32*>(unit + 8 * at.lane())[at.chunk()];
        return word >> (two_at(at.half(), at.word()) + at.high()) & 3;
    }
    DEVICE static float value(u32 code) { return float(code); }
};

// 2 bits and a third one.
template <u32 ZERO_AT> struct Threes {
    static constexpr u32 BYTES = 256 + 128, ZERO = ZERO_AT, LOW = 4, HIGH = 8;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint2 low;
        u32 high;
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.low = load_8(unit + 8 * Fields<0>::lane());
        raw.high = load_4(unit + 256 + 4 * Fields<0>::lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        const u32 word = chunk ? raw.low.y : raw.low.x;
        each_pair([&](u32 half, u32 pair) {
            const u32 low = moved(word, two_at(half, 2 * pair), LOW), high = moved(raw.high, one_at(chunk, half, 2 * pair), LOW + 2);
            word_of(w, half, 2 * pair) = masked_or<0x00030003u << LOW>(low, high & 0x00010001u << (LOW + 2));
            word_of(w, half, 2 * pair + 1) = masked_or<0x00030003u << HIGH>(low, high & 0x00010001u << (HIGH + 2));
        });
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        const u32 high = reinterpret_cast<const u32*>(unit + 256)[at.lane()];
        const u32 bit = high >> (one_at(at.chunk(), at.half(), at.word()) + at.high()) & 1;
        return Twos::code(unit, at) | bit << 2;
    }
    DEVICE static float value(u32 code) { return float(i32(code) - i32(ZERO)); }
};

// 8 bits, signed; kept with 128 added.
struct Bytes {
    static constexpr u32 BYTES = 1024, ZERO = 128, LOW = 0, HIGH = 0;
    static constexpr bool IS_BF16 = false;
    struct Raw {
        uint4 chunks[2];
    };
    template <class AT> DEVICE static void load(Raw& raw, AT unit) {
        raw.chunks[0] = load_16_once(unit + 16 * Fields<0>::lane());
        raw.chunks[1] = load_16_once(unit + 512 + 16 * Fields<0>::lane());
    }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                const u32 word = Fields<0>::word(raw.chunks[chunk], 2 * half + p / 2);
                word_of(w, half, p) = __byte_perm(word, 0, p % 2 ? 0x4342 : 0x4140);
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) {
        return unit[512 * at.chunk() + 16 * at.lane() + 8 * at.half() + at.column % 8];
    }
    DEVICE static float value(u32 code) { return float(i32(code) - 128); }
};

// 4 bits that stand for the levels of IQ4_NL (gguf/src/quant/iq4_nl.rs), which `unpack` gives with 128 added.
struct Levels {
    static constexpr u32 BYTES = 512, TURN = 0, ZERO = 128, LOW = 0, HIGH = 0;
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
            const u32 word = Fields<0>::word(raw.low, 2 * chunk + half);
            const u32 even = four(word), odd = four(word >> 16); // columns 0, 2, 4, 6 and 1, 3, 5, 7
#pragma unroll
            for (u32 p = 0; p < 4; ++p) word_of(w, half, p) = __byte_perm(even, odd, p | (p + 4) << 8) & 0x00ff00ffu;
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) { return Fields<0>::code(unit, at); }
    DEVICE static float value(u32 code) {
        const u32 word = code < 8 ? (code < 4 ? TABLE[0] : TABLE[1]) : (code < 12 ? TABLE[2] : TABLE[3]);
        return float(i32(word >> 8 * (code % 4) & 255) - 128);
    }
};

// 4-bit floats: a sign, two bits of exponent, one of mantissa. `unpack` gives their values.
struct Floats {
    static constexpr u32 BYTES = 512, TURN = 0, ZERO = 0, LOW = 24, HIGH = 24;
    static constexpr bool IS_BF16 = false;
    typedef Nibbles<0>::Raw Raw;
    template <class AT> DEVICE static void load(Raw& raw, AT unit) { Nibbles<0>::load(raw, unit); }
    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 word = Fields<0>::word(raw.low, 2 * chunk + half);
#pragma unroll
            for (u32 p = 0; p < 4; ++p) {
                const u32 codes = word >> 4 * p & 0x000f000fu;
                // As the top bits of a half they stand for 2^-14 of their value.
                const u32 halves = (codes & 0x00070007u) << 9 | (codes & 0x00080008u) << 12;
                word_of(w, half, p) = mul_f16x2(halves, 0x74007400u);
            }
        }
    }
    DEVICE static u32 code(const u8* unit, const Place& at) { return Fields<0>::code(unit, at); }
    // Twice the value, as gguf/src/quant/mxfp4.rs has it.
    DEVICE static float value(u32 code) {
        const u32 size = code & 7;
        const float level = size < 4 ? float(size) : size < 6 ? float(2 * size - 4) : float(4 * size - 16);
        return code & 8 ? -level : level;
    }
};

// 16 bits: the values themselves, as the instruction wants them.
template <bool BF16> struct Sixteens {
    static constexpr u32 BYTES = 2048, ZERO = 0, LOW = 24, HIGH = 24;
    static constexpr bool IS_BF16 = BF16;
    struct Raw {
        uint4 words[2][2]; // by chunk and step
    };
    // Where the words of this lane are.
    template <class AT> DEVICE static AT at(AT unit, u32 chunk, u32 step) {
        return unit + ((chunk * 2 + step) * 512 + 16 * Fields<0>::lane());
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
