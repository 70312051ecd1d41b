// Attention of few rows a sequence over pages of fp8 and what was evicted.
#include "common/attention_bytes.cuh"

EACH(BOUNDED, fp8, KV_F8)
