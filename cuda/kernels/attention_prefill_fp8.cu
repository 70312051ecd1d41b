// Attention of prompts over pages of fp8.
#include "common/attention_prefill.cuh"
#include "common/attention_wide.cuh"

PREFILLS(fp8, KV_F8)
WIDE_PREFILLS(fp8, KV_F8)
