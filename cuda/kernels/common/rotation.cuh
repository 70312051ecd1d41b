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
