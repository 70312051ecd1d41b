// Products with weights in IQ4_NL.
#include "quant/product.cuh"

PRODUCTS(iq4_nl, FormatIq4_Nl, 8)
