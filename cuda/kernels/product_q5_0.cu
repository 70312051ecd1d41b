// Products with weights in Q5_0.
#include "quant/product.cuh"

PRODUCTS(q5_0, FormatQ5_0, 6)
