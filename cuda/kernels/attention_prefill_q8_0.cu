// Attention of prompts over pages of q8_0.
#include "common/attention_prefill.cuh"

PREFILLS(q8_0, KV_Q8_0)
