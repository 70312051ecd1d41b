// Attention of prompts over pages of bf16.
#include "common/attention_prefill.cuh"

PREFILLS(bf16, KV_BF16)
