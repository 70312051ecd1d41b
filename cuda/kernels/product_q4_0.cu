// Products with weights in Q4_0.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q4_0, FormatQ4_0, 8)
WIDE(q4_0, FormatQ4_0)
NARROW_PRODUCTS(q4_0, FormatQ4_0)
