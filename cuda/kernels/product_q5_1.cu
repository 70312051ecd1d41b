// Products with weights in Q5_1.
#include "quant/product.cuh"

PRODUCTS(q5_1, FormatQ5_1, 6)
