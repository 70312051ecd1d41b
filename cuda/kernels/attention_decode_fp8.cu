// Attention of few rows a sequence over pages of fp8.
#include "common/attention_decode.cuh"

EACH(DECODE, fp8, KV_F8)
