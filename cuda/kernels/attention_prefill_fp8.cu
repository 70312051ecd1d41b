// Attention of prompts over pages of fp8.
#include "common/attention_prefill.cuh"

PREFILLS(fp8, KV_F8)
