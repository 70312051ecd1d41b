// Products with weights in Q8_0.
#include "quant/product.cuh"

PRODUCTS(q8_0, FormatQ8_0, 6)
