// Attention of few rows a sequence over pages of fp8.
#include "common/attention_decode.cuh"

DECODES(fp8, KV_F8)
