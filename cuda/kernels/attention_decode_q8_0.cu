// Attention of few rows a sequence over pages of q8_0.
#include "common/attention_bytes.cuh"

EACH(DECODE, q8_0, KV_Q8_0)
