// Products with weights in Q4_1.
#include "quant/product.cuh"

PRODUCTS(q4_1, FormatQ4_1, 6)
