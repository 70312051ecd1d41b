// Attention over latent pages of fp8.
#include "common/attention_latent_narrow.cuh"
#include "common/attention_latent_wide.cuh"

#ifdef HAS_WARPGROUPS
using Whole = LatentWide<KV_F8, 1>;
using Few = LatentWide<KV_F8, 2>;
#else
using Whole = LatentNarrow<KV_F8>;
using Few = Whole;
#endif

LATENT(fp8, Whole, Few)
