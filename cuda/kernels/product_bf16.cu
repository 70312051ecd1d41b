// Products with weights in BF16.
#include "quant/product.cuh"

PRODUCTS(bf16, FormatBf16, 4)
