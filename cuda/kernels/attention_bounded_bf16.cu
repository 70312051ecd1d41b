// Attention of few rows a sequence over pages of bf16 and what was given up.
#include "common/attention_decode.cuh"

EACH(BOUNDED, bf16, KV_BF16)
