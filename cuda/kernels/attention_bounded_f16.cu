// Attention of few rows a sequence over pages of f16 and what was evicted.
#include "common/attention_decode.cuh"

EACH(BOUNDED, f16, KV_F16)
#ifdef HAS_CLUSTERS
EACH(BOUNDED_SPREAD, f16, KV_F16)
#endif
