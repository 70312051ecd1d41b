// Rotation of heads by positions (ALGORITHMS 0).
#pragma once
#include "common/warp.cuh"

// Pairs of columns whose angles a block keeps.
static constexpr u32 MOST_PAIRS = 512;

struct Angles {
    float sines[MOST_PAIRS], cosines[MOST_PAIRS];

    // Those of a position, by all threads of a block, which meet before they are used.
    DEVICE void set(double position, const float* frequencies, u32 pairs, float magnitude) {
        for (u32 i = threadIdx.x; i < pairs; i += blockDim.x) {
            // In double precision, as everywhere: keys that differ in the last bit may be rounded apart in pages.
            double sine, cosine;
            sincos(position * double(frequencies[i]), &sine, &cosine);
            sines[i] = float(sine) * magnitude;
            cosines[i] = float(cosine) * magnitude;
        }
    }

    // Rotates a head, by a warp.
    DEVICE void turn(float* x, u32 pairs, u32 adjacent) const {
        for (u32 i = lane_id(); i < pairs; i += 32) {
            const u32 first = adjacent ? 2 * i : i, second = adjacent ? 2 * i + 1 : i + pairs;
            const float a = x[first], b = x[second];
            // Rounded as separate operations, for the same reason.
            x[first] = __fsub_rn(__fmul_rn(a, cosines[i]), __fmul_rn(b, sines[i]));
            x[second] = __fadd_rn(__fmul_rn(a, sines[i]), __fmul_rn(b, cosines[i]));
        }
    }
};

// What turns heads back to what they were before they were rotated; nothing where there are no `pairs`.
struct Back {
    const float* frequencies;
    u32 pairs;
    u32 adjacent;
    float by; // 1 over the magnitude of the rotation
    u32 by_place; // 1: a position is the place in the table

    DEVICE u32 position(u32 place, u32 not_held) const { return by_place ? place : place + not_held; }
    DEVICE bool turns(u32 column) const { return column < 2 * pairs; }
    // The columns of a pair, the pair of a column that turns, and whether it is the first of it.
    DEVICE u32 first(u32 pair) const { return adjacent ? 2 * pair : pair; }
    DEVICE u32 second(u32 pair) const { return adjacent ? 2 * pair + 1 : pair + pairs; }
    DEVICE u32 pair_of(u32 column) const { return adjacent ? column / 2 : column < pairs ? column : column - pairs; }
    DEVICE bool is_first(u32 column) const { return adjacent ? column % 2 == 0 : column < pairs; }

    // Cosine and sine of a pair at a position, over the magnitude. Not inlined: few blocks turn anything back.
    __device__ __noinline__ float2 angle(u32 pair, u32 position) const {
        double sine, cosine;
        sincos(double(position) * double(frequencies[pair]), &sine, &cosine);
        return make_float2(float(cosine) * by, float(sine) * by);
    }
};

static_assert(sizeof(Back) == 24, "as in src/ops/rope_store.rs");
