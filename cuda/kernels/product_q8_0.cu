// Products with weights in Q8_0.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(q8_0, FormatQ8_0, 6)
WIDE(q8_0, FormatQ8_0)
NARROW_PRODUCTS(q8_0, FormatQ8_0)
