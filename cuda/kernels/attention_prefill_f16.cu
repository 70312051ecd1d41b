// Attention of prompts over pages of f16.
#include "common/attention_prefill.cuh"
#include "common/attention_wide.cuh"

PREFILLS(f16, KV_F16)
WIDE_PREFILLS(f16, KV_F16)
