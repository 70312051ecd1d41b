// Attention of few rows a sequence over pages of fp8.
#include "common/attention_bytes.cuh"

EACH(DECODE, fp8, KV_F8)
