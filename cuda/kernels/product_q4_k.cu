// Products with weights in Q4_K, and beside them in Q6_K, which files in Q4_K_M have as well.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q4_k, FormatQ4_K, 6)
MIXED(q4_k, FormatQ4_K, q6_k, FormatQ6_K)
WIDE(q4_k, FormatQ4_K)
NARROW_PRODUCTS(q4_k, FormatQ4_K)
