// Keys and values of a head as 16-bit words for matrix instructions, and f32 numbers as sums of 16-bit ones: what is
// multiplied with what was stored loses nothing that matters.
#pragma once
#include "common/attention.cuh"
#include "common/mma.cuh"

// What pages hold is bf16 there, otherwise (8-bit elements too) f16.
template <u32 KV> DEVICE constexpr bool is_bf16() { return KV == KV_BF16; }
// Numbers of 16 bits that make up one of f32: 22 of its bits in f16, 24 in bf16.
template <u32 KV> DEVICE constexpr u32 terms() { return is_bf16<KV>() ? 3 : 2; }

template <u32 KV> DEVICE void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (is_bf16<KV>()) {
        mma_bf16(d, a, b);
    } else {
        mma_f16(d, a, b);
    }
}

// The largest parts of two numbers that fit into 16 bits, which are taken off them.
template <u32 KV> DEVICE u32 take_pair(float& low, float& high) {
    u32 pair;
    if constexpr (is_bf16<KV>()) {
        pair = pack_bf16(low, high);
        low -= low_bf16(pair), high -= high_bf16(pair);
    } else {
        pair = pack_f16(low, high);
        low -= low_f16(pair), high -= high_f16(pair);
    }
    return pair;
}

DEVICE u32 permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// Eight neighbouring elements of a row, as they are stored.
template <u32 KV> struct Eight {
    static constexpr u32 WORDS = has_scales<KV>() ? 2 : 4;
    u32 stored[WORDS];

    DEVICE void load(const u8* from) {
        if constexpr (has_scales<KV>()) {
            const uint2 x = load_8(from);
            stored[0] = x.x, stored[1] = x.y;
        } else {
            const uint4 x = load_16_once(from);
            stored[0] = x.x, stored[1] = x.y, stored[2] = x.z, stored[3] = x.w;
        }
    }

    // Pairs of 16-bit numbers; 8-bit elements become f16, exactly.
    DEVICE void words(u32 (&pairs)[4]) const {
        if constexpr (KV == KV_Q8_0) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                // 1024 + 128 + x in each half, less 1152.
                const u32 shifted = stored[i] ^ 0x80808080u;
                pairs[2 * i] = sub_f16x2(permute(shifted, 0x64646464u, 0x4140), 0x64806480u);
                pairs[2 * i + 1] = sub_f16x2(permute(shifted, 0x64646464u, 0x4342), 0x64806480u);
            }
        } else if constexpr (KV == KV_F8) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                pairs[2 * i] = f8_to_f16x2(stored[i]);
                pairs[2 * i + 1] = f8_to_f16x2(stored[i] >> 16);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) pairs[i] = stored[i];
        }
    }
};

// Eight elements of 8 bits over a power of two that none is larger than, and that power: exact. A scale times the power is about
// the largest number of its row: in the range of f16 where the row is, which the scale alone need not be.
template <u32 KV> struct Fractions;

template <> struct Fractions<KV_Q8_0> {
    static constexpr float UNIT = 128.0f;

    DEVICE static void of(const uint2& x, u32 (&pairs)[4]) {
        // 1024 + 128 + x in each half: over 128, less 9.
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 shifted = (i < 2 ? x.x : x.y) ^ 0x80808080u;
            pairs[i] = fma_f16x2(permute(shifted, 0x64646464u, i % 2 == 0 ? 0x4140 : 0x4342), 0x20002000u, 0xc880c880u);
        }
    }
};

template <> struct Fractions<KV_F8> {
    // Exponents of f16 count from 8 further down.
    static constexpr float UNIT = 256.0f;

    DEVICE static void of(const uint2& x, u32 (&pairs)[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 apart = permute(i < 2 ? x.x : x.y, 0, i % 2 == 0 ? 0x1404 : 0x3424);
            pairs[i] = (apart & 0x80008000u) | (apart >> 1 & 0x3f803f80u);
        }
    }
};

// A 8x8 matrix of 16-bit elements, a row to four lanes, transposed.
DEVICE u32 transposed(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// 2 to the power of a number, zero where that is below the least normal one.
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2 to the exponent of a number of at least 0: 1 for 0, and for what is too small or too large to be divided by it.
DEVICE float power_below(float x) {
    const u32 bits = __float_as_uint(x) & 0x7f800000u;
    return bits < 0x02000000u || bits > 0x7d000000u ? 1.0f : __uint_as_float(bits);
}

// Of such a power: exact.
DEVICE float inverse_of_power(float power) { return __uint_as_float(0x7f000000u - __float_as_uint(power)); }

// Scales of values are at least 1e-30 / 448, or 0.
static constexpr float LEAST_UNIT = 1.0f / float(1ull << 60) / float(1ull << 60);

// Lets a unit, a power of two, grow with a scale that is seen, and returns what is in the unit before over what is in it
// then. It depends on nothing that is not seen.
DEVICE float grow_unit(float& unit, float scale) {
    const float next = fmaxf(unit, scale > 0.0f ? power_below(scale) : 0.0f);
    // Of powers of two the exponents are subtracted; below the least one is 0.
    const i32 bits = 0x3f800000 + i32(__float_as_uint(unit)) - i32(__float_as_uint(next));
    const float fade = bits > 0 ? __int_as_float(bits) : 0.0f;
    unit = next;
    return fade;
}
