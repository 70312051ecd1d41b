// Weights as matrix instructions want them, format by format.
//
// A tile is 16 rows of a matrix. Of every 32 columns (a chunk), lane `4 g + t` of a warp holds columns `8 t..8 t + 8` of
// rows `g` and `g + 8` (half 0 and 1), as four words each: word `p` is columns `8 t + 2 p` and `8 t + 2 p + 1`. Two matrix
// instructions use them: step `s` words `2 s` and `2 s + 1`. Activations are held in the same order, so that the order of
// columns within a chunk, which is not that of the instruction's documentation, does not matter.
//
// Weights are packed when they are uploaded (pack.cu): tile after tile, in it unit after unit of 64 columns, in it the
// codes by lane and the scales by row, and after the units the scales that 256 columns share. Scales are divided by a power of
// two, the factor of the matrix, which puts the largest of what codes are multiplied with between 2^14 and 2^15. Nothing is
// lost where scales are at most 2: `value` times that factor is what the stored block says, to the bit.
#pragma once
#include "quant/codes.cuh"

// Scales. `get` gives those of a chunk: what codes are multiplied by, and what is added then (for formats that add
// something). Halves, if there are any (HAS_HALVES), are kept as `kept_as` says: what codes are multiplied by for codes that
// are HIGH bits up, 2^SCALE_UP times, what is added 2^PLUS_UP times. `each_half` goes through those that row `row` of a unit
// has, or brings if it is the first of four: `use(half, adds)`. A half is multiplied by up to MOST.

// Words with the value of row `g` low and of row `g + 8` high.
struct Factors {
    u32 scale, plus;
};

// What most scales have.
struct Ups {
    static constexpr u32 SCALE_UP = 0, PLUS_UP = 10;
};

// The exponent of a power of two.
DEVICE constexpr i32 bits_of(u32 power) { return power > 1 ? 1 + bits_of(power / 2) : 0; }

DEVICE u32 group_of_lane() { return (threadIdx.x & 31) / 4; }
DEVICE u32 pair_of_lane() { return threadIdx.x & 3; }

DEVICE float half_at(const u8* at) { return to_float(*reinterpret_cast<const f16*>(at)); }
// Half `at` without the 2^UP.
template <u32 UP> DEVICE float half_less(const u8* at) { return half_at(at) * (1.0f / (1 << UP)); }
// Bytes, for each row a low one, as halves of so many 2^-10 less one: to be in the place of halves 2^10 times as large.
static constexpr u32 ONES = 0x3c003c00u;

// Halves that 256 columns share, of TWO kinds or one.
template <bool TWO> struct Supers {
    static constexpr bool HAS_HALVES = true;
    template <typename Use> DEVICE static void each_half(u8*, u8* super, u32 row, Use use) {
        if (super == nullptr) return;
        for (u32 at = 0; at < (TWO ? 2 : 1); ++at) use(super + (TWO ? 8 : 4) * (row % 8) + 4 * at + 2 * (row / 8), at == 1);
    }
};

// None.
struct NoScales : Ups {
    static constexpr u32 BYTES = 0, SUPER = 0;
    static constexpr bool ADDS = false, HAS_HALVES = false;
    struct Raw {};
    template <class AT> DEVICE static void load(Raw&, AT, AT) {}
    DEVICE static float value(const u8*, const u8*, const Place&, float code) { return code; }
};

// A half for every 32 columns.
struct Halves : Ups {
    static constexpr u32 BYTES = 64, SUPER = 0, MOST = 1;
    static constexpr bool ADDS = false, HAS_HALVES = true;
    struct Raw {
        uint2 scales;
    };
    template <typename Use> DEVICE static void each_half(u8* unit, u8*, u32 row, Use use) {
        for (u32 chunk = 0; chunk < 2; ++chunk) use(unit + 8 * (row % 8) + 4 * chunk + 2 * (row / 8), false);
    }
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT) { raw.scales = load_8(unit + 8 * group_of_lane()); }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) { by.scale = chunk ? raw.scales.y : raw.scales.x; }
    DEVICE static float value(const u8* unit, const u8*, const Place& at, float code) {
        return half_at(unit + 8 * (at.row % 8) + 4 * at.chunk() + 2 * at.half()) * code;
    }
};

// A half for every 32 columns, and one that is added.
struct HalvesPlus : Ups {
    static constexpr u32 BYTES = 128, SUPER = 0, MOST = 1;
    static constexpr bool ADDS = true, HAS_HALVES = true;
    struct Raw {
        uint4 both;
    };
    template <typename Use> DEVICE static void each_half(u8* unit, u8*, u32 row, Use use) {
        for (u32 at = 0; at < 4; ++at) use(unit + 16 * (row % 8) + 4 * at + 2 * (row / 8), at % 2 == 1);
    }
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT) { raw.both = load_16(unit + 16 * group_of_lane()); }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        by.scale = chunk ? raw.both.z : raw.both.x;
        by.plus = mul_f16x2(chunk ? raw.both.w : raw.both.y, power_f16x2<-i32(PLUS_UP)>());
    }
    DEVICE static float value(const u8* unit, const u8*, const Place& at, float code) {
        const u8* from = unit + 16 * (at.row % 8) + 8 * at.chunk() + 2 * at.half();
        return __fadd_rn(__fmul_rn(half_at(from), code), half_less<PLUS_UP>(from + 4));
    }
};

// 6 bits for every 32 columns and as many for what is subtracted, times halves for 256 columns: those of a row are bits of one
// half, from bit 4 and from bit 10 on, and got at as codes are.
struct Sub32Minus : Supers<true> {
    static constexpr u32 BYTES = 64, SUPER = 64, MOST = 63, SCALE_UP = 5, PLUS_UP = 20, AT = 4, MASK = 0x003f003fu << AT;
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
        by.scale = mul_f16x2(mul_f16x2(small & MASK, power_f16x2<24 - i32(AT + SCALE_UP)>()), raw.super.x);
        by.plus = neg_f16x2(mul_f16x2(small >> 6 & MASK, raw.super.y));
    }
    DEVICE static float value(const u8* unit, const u8* super, const Place& at, float code) {
        const u32 small = *reinterpret_cast<const u16*>(unit + 8 * (at.row % 8) + 4 * at.chunk() + 2 * at.half()) >> AT;
        const u8* by = super + 8 * (at.row % 8) + 2 * at.half();
        const float scale = half_less<SCALE_UP>(by) * float(small & 63), min = half_less<PLUS_UP>(by + 4) * float(small >> 6);
        return __fsub_rn(__fmul_rn(scale, code), min);
    }
};

// A byte for every 16 columns, from which `ZERO` is taken, times a half for 256 columns.
template <u32 ZERO> struct Sub16 : Supers<false>, Ups {
    static constexpr u32 BYTES = 64, SUPER = 32, MOST = ZERO;
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
struct Sub16Minus : Supers<true>, Ups {
    static constexpr u32 BYTES = 64, SUPER = 64, MOST = 15;
    static constexpr bool ADDS = true;
    typedef Sub32Minus::Raw Raw;
    template <class AT> DEVICE static void load(Raw& raw, AT unit, AT super) { Sub32Minus::load(raw, unit, super); }
    DEVICE static void get(const Raw& raw, u32 chunk, Factors& by) {
        const u32 small = chunk ? raw.small.y : raw.small.x;
        const u32 both = __byte_perm(small, 0, pair_of_lane() < 2 ? 0x4140 : 0x4342);
        by.scale = mul_f16x2(sub_f16x2((both & 0x000f000fu) | MAGIC, MAGIC), raw.super.x);
        by.plus = neg_f16x2(mul_f16x2(sub_f16x2((both >> 4 & 0x000f000fu) | ONES, ONES), raw.super.y));
    }
    DEVICE static float value(const u8* unit, const u8* super, const Place& at, float code) {
        const u8 small = unit[8 * (at.row % 8) + 4 * at.chunk() + 2 * (at.column / 16 % 2) + at.half()];
        const u8* by = super + 8 * (at.row % 8) + 2 * at.half();
        const float scale = half_at(by) * float(small & 15), min = half_less<PLUS_UP>(by + 4) * float(small >> 4);
        return __fsub_rn(__fmul_rn(scale, code), min);
    }
};

// A byte for every 32 columns, from which `ZERO` is taken, times a half for 256 columns.
template <u32 ZERO> struct Sub32 : Supers<false>, Ups {
    static constexpr u32 BYTES = 32, SUPER = 32, MOST = ZERO;
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
struct Powers : Ups {
    static constexpr u32 BYTES = 32, SUPER = 0;
    static constexpr bool ADDS = false, HAS_HALVES = false;
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

    // The weights of a half from its codes.
    template <u32 HALF> DEVICE static void scale(Words& w, u32 even, u32 odd, u32 plus) {
#pragma unroll
        for (u32 p = 0; p < 4; ++p) {
            u32& word = word_of(w, HALF, p);
            const u32 scale = both_halves<HALF>(p % 2 ? odd : even);
            if constexpr (SCALES::ADDS || CODES::ZERO > 0) word = fma_f16x2(word, scale, both_halves<HALF>(plus));
            if constexpr (!SCALES::ADDS && CODES::ZERO == 0) word = mul_f16x2(word, scale);
        }
    }

    DEVICE static void unpack(const Raw& raw, u32 chunk, Words& w) {
        CODES::unpack(raw.codes, chunk, w);
        if constexpr (SCALES::BYTES > 0) {
            Factors by;
            SCALES::get(raw.scales, chunk, by);
            if constexpr (CODES::ZERO > 0) {
                static_assert(!SCALES::ADDS && (CODES::ZERO & (CODES::ZERO - 1)) == 0);
                by.plus = mul_f16x2(by.scale, minus_power_f16x2<bits_of(CODES::ZERO) + i32(CODES::HIGH) - 24>());
            }
            u32 even = by.scale;
            if constexpr (CODES::LOW < CODES::HIGH) even = mul_f16x2(even, power_f16x2<i32(CODES::HIGH - CODES::LOW)>());
            scale<0>(w, even, by.scale, by.plus);
            scale<1>(w, even, by.scale, by.plus);
        }
    }

    // By what power of two a half is multiplied to be kept, if the factor of the matrix is 1.
    DEVICE static constexpr i32 kept_as(bool adds) { return adds ? SCALES::PLUS_UP : 24 - CODES::HIGH + SCALES::SCALE_UP; }
    // What a half stands for at most, as unpacking multiplies by it.
    DEVICE static float most_of(float half, bool adds) {
        return fabsf(half) * (adds ? float(1 << SCALES::PLUS_UP) : float(SCALES::MOST) * float(1 << (24 - CODES::LOW)));
    }

    // One value as f32: times the factor of the matrix as the stored block gives it.
    DEVICE static float value(const u8* base, u32 units, u32 row, u32 column) {
        const u8* tile = base + u64(row / 16) * tile_bytes(units);
        const Place at{tile, units, row % 16, column};
        const u8* unit = tile + u64(column / 64) * UNIT;
        const u8* super = tile + u64(units) * UNIT + column / 256 * SCALES::SUPER;
        const float code = CODES::value(CODES::code(unit, at)) * (1.0f / (1 << (24 - CODES::HIGH)));
        return SCALES::value(unit + CODES::BYTES, super, at, code);
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
