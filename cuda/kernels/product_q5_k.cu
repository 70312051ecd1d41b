// Products with weights in Q5_K.
#include "quant/product.cuh"

PRODUCTS(q5_k, FormatQ5_K, 6)
