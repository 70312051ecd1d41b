// Attention of prompts over pages of q8_0.
#include "common/attention_prefill.cuh"
#include "common/attention_wide.cuh"

PREFILLS(q8_0, KV_Q8_0)
WIDE_PREFILLS(q8_0, KV_Q8_0)
