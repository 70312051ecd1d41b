// Attention over latent pages of f16.
#include "common/attention_latent_narrow.cuh"
#include "common/attention_latent_wide.cuh"

#ifdef HAS_WARPGROUPS
using Whole = LatentWide<KV_F16, 1>;
using Few = LatentWide<KV_F16, 2>;
#else
using Whole = LatentNarrow<KV_F16>;
using Few = Whole;
#endif

LATENT(f16, Whole, Few)
