// Products with weights in Q5_1.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q5_1, FormatQ5_1, 6)
WIDE(q5_1, FormatQ5_1)
NARROW_PRODUCTS(q5_1, FormatQ5_1)
