// Attention of few rows a sequence over pages of bf16 and what was evicted.
#include "common/attention_decode.cuh"

EACH(BOUNDED, bf16, KV_BF16)
#ifdef HAS_CLUSTERS
EACH(BOUNDED_SPREAD, bf16, KV_BF16)
#endif
