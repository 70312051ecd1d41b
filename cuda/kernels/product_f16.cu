// Products with weights in F16.
#include "quant/product.cuh"

PRODUCTS(f16, FormatF16, 4)
