// Products with weights in F16.
#include "quant/product.cuh"
#include "quant/narrow.cuh"
#include "quant/wide.cuh"

PRODUCTS(f16, FormatF16, 4)
WIDE(f16, FormatF16)
NARROW_PRODUCTS(f16, FormatF16)
