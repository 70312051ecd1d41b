// Products with weights in Q3_K.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q3_k, FormatQ3_K, 8)
WIDE(q3_k, FormatQ3_K)
NARROW_PRODUCTS(q3_k, FormatQ3_K)
