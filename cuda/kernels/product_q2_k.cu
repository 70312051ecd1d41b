// Products with weights in Q2_K.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q2_k, FormatQ2_K, 8)
WIDE(q2_k, FormatQ2_K)
NARROW_PRODUCTS(q2_k, FormatQ2_K)
