// Products with weights in Q4_1.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q4_1, FormatQ4_1, 6)
WIDE(q4_1, FormatQ4_1)
NARROW_PRODUCTS(q4_1, FormatQ4_1)
