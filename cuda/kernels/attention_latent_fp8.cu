// Attention over latent pages of fp8.
#include "common/attention_latent_wide.cuh"

LATENT(fp8, LatentOfPrompts<KV_F8>, LatentOfFew<KV_F8>)
