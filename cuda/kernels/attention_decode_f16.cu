// Attention of few rows a sequence over pages of f16.
#include "common/attention_decode.cuh"

EACH(DECODE, f16, KV_F16)
#ifdef HAS_CLUSTERS
EACH(SPREAD, f16, KV_F16)
#endif
