// Products with weights in Q6_K.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q6_k, FormatQ6_K, 6)
WIDE(q6_k, FormatQ6_K)
NARROW_PRODUCTS(q6_k, FormatQ6_K)
