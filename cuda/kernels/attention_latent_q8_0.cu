// Attention over latent pages of q8_0.
#include "common/attention_latent_narrow.cuh"
#include "common/attention_latent_wide.cuh"

#ifdef HAS_WARPGROUPS
using Whole = LatentWide<KV_Q8_0, 1>;
using Few = LatentWide<KV_Q8_0, 2>;
#else
using Whole = LatentNarrow<KV_Q8_0>;
using Few = Whole;
#endif

LATENT(q8_0, Whole, Few)
