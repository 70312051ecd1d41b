// Products with weights in Q5_K.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q5_k, FormatQ5_K, 6)
WIDE(q5_k, FormatQ5_K)
NARROW_PRODUCTS(q5_k, FormatQ5_K)
