// Products with weights in Q4_K.
#include "quant/product.cuh"
#include "quant/wide.cuh"

PRODUCTS(q4_k, FormatQ4_K, 6)
WIDE(q4_k, FormatQ4_K)
