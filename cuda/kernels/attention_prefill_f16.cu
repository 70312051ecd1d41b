// Attention of prompts over pages of f16.
#include "common/attention_prefill.cuh"

PREFILLS(f16, KV_F16)
