// Products with weights in Q5_0.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q5_0, FormatQ5_0, 6)
WIDE(q5_0, FormatQ5_0)
NARROW_PRODUCTS(q5_0, FormatQ5_0)
