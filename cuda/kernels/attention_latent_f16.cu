// Attention over latent pages of f16.
#include "common/attention_latent_wide.cuh"

LATENT(f16, LatentOfPrompts<KV_F16>, LatentOfFew<KV_F16>)
