// Attention over latent pages of q8_0.
#include "common/attention_latent_wide.cuh"

LATENT(q8_0, LatentOfPrompts<KV_Q8_0>, LatentOfFew<KV_Q8_0>)
