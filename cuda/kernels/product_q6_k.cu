// Products with weights in Q6_K.
#include "quant/product.cuh"

PRODUCTS(q6_k, FormatQ6_K, 6)
