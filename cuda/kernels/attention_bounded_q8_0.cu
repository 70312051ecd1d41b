// Attention of few rows a sequence over pages of q8_0 and what was evicted.
#include "common/attention_bytes.cuh"

EACH(BOUNDED, q8_0, KV_Q8_0)
