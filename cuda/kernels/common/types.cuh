// Numbers: names for their widths, and conversions between them. No header of the CUDA toolkit is included anywhere, so
// that NVRTC alone compiles every kernel.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void

// IEEE half and bfloat16 as bits.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

DEVICE float to_float(float x) { return x; }

DEVICE float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

DEVICE f16 to_f16(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

DEVICE bf16 to_bf16(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// Two halves in a word: `low` in the lower 16 bits.
DEVICE u32 pack_f16(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

DEVICE u32 pack_bf16(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

DEVICE float low_f16(u32 pair) { return to_float(f16{u16(pair)}); }
DEVICE float high_f16(u32 pair) { return to_float(f16{u16(pair >> 16)}); }
DEVICE float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Arithmetic of two halves at once.
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE u32 mul_f16x2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

DEVICE u32 sub_f16x2(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// 8-bit floats, as backend/src/store/f8.rs has them. Their bits are those of an f16 whose exponents count from 8 further down.
DEVICE float f8_to_float(u8 code) { return low_f16((u32(code) << 7 & 0x3f80u) | (u32(code) << 8 & 0x8000u)) * 256.0f; }

// The two in the lower 16 bits, exact.
DEVICE u32 f8_to_f16x2(u32 pair) {
#if __CUDA_ARCH__ >= 890
    u32 y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(u16(pair)));
    return y;
#else
    const u32 apart = __byte_perm(pair, 0, 0x1404);
    return fma_f16x2((apart & 0x80008000u) | (apart >> 1 & 0x3f803f80u), 0x5c005c00u, 0x80008000u);
#endif
}

// The two in the upper 16 bits.
DEVICE u32 f8_to_f16x2_high(u32 four) {
#if __CUDA_ARCH__ >= 890
    u32 y;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}" : "=r"(y) : "r"(four));
    return y;
#else
    return f8_to_f16x2(four >> 16);
#endif
}

// The nearest one, ties to even; larger numbers and what is none become the largest. By bits everywhere: so few rows are
// written beside those that are read that an instruction would not show.
DEVICE u8 to_f8(float x) {
    const u32 sign = __float_as_uint(x) >> 24 & 0x80u;
    const float magnitude = fminf(fabsf(x), 448.0f);
    const u32 bits = __float_as_uint(magnitude), small = __float_as_uint(__fadd_rn(magnitude, 16384.0f)) & 15u;
    const u32 normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    return u8(sign | (magnitude < 1.0f / 64.0f ? small : normal));
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// `Activation` of backend/src/op.rs.
enum Activation : u32 { IDENTITY = 0, SILU = 1, SIGMOID = 2, RELU_SQUARED = 3 };

DEVICE float activate(u32 activation, float x) {
    switch (activation) {
    case SILU: return x * sigmoid(x);
    case SIGMOID: return sigmoid(x);
    case RELU_SQUARED: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    default: return x;
    }
}

// 1 / x of several numbers, none of which waits for another: a division has a way of its own for what is nearly too large, or
// too small, and a branch to it. The results are those of divisions.
template <u32 COUNT> DEVICE void invert(float (&x)[COUNT]) {
    float inverse[COUNT];
    bool is_usual = true;
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) {
        float guess;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x[i]));
        inverse[i] = __fmaf_rn(guess, -__fmaf_rn(x[i], guess, -1.0f), guess);
        is_usual &= fabsf(x[i]) >= 0x1p-126f && fabsf(x[i]) < 0x1p126f;
    }
    if (is_usual) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) x[i] = inverse[i];
    } else {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) x[i] = 1.0f / x[i];
    }
}

// x * sigmoid(x) of several numbers, with the bits of `activate`.
template <u32 COUNT> DEVICE void silu_all(float (&x)[COUNT]) {
    float inverse[COUNT];
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) inverse[i] = 1.0f + expf(-x[i]);
    invert(inverse);
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i) x[i] *= inverse[i];
}

// Any activation of several numbers.
template <u32 COUNT> DEVICE void activate_all(u32 activation, float (&x)[COUNT]) {
    if (activation == IDENTITY) return;
    if (activation == SILU) return silu_all(x);
#pragma unroll 1
    for (u32 turn = 0; turn < COUNT; ++turn) {
        // The first number is worked on, and all move up.
        const float first = activate(activation, x[0]);
#pragma unroll
        for (u32 i = 0; i + 1 < COUNT; ++i) x[i] = x[i + 1];
        x[COUNT - 1] = first;
    }
}

DEVICE void set_four(float* to, const float4& four) { to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w; }

template <typename T> DEVICE T ceil_div(T a, T b) { return (a + b - 1) / b; }
