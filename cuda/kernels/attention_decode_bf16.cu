// Attention of few rows a sequence over pages of bf16.
#include "common/attention_decode.cuh"

EACH(DECODE, bf16, KV_BF16)
#ifdef HAS_CLUSTERS
EACH(SPREAD, bf16, KV_BF16)
#endif
