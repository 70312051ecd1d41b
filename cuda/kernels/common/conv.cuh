// The depthwise causal convolution of a layer, with a ring of earlier rows per slot.
#pragma once
#include "common/types.cuh"

struct Conv {
    float* rings;  // [slots][ring][channels]
    const float* weights; // [channels][taps]
    u32 channels;
    u32 taps;
    u32 ring; // rows, a power of two
    u32 padding;
};

static_assert(sizeof(Conv) == 32, "as in src/ops/conv.rs");
