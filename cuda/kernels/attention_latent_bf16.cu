// Attention over latent pages of bf16.
#include "common/attention_latent_narrow.cuh"

LATENT(bf16, LatentNarrow<KV_BF16>, LatentNarrow<KV_BF16>)
