// The memory of segments that were evicted (ALGORITHMS 4.1).
#pragma once
#include "common/types.cuh"

// What makes keys and queries positive: elu(x) + 1.
DEVICE float positive(float x) { return x > 0.0f ? x + 1.0f : expf(x); }
