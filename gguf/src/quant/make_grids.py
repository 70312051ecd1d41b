"""Writes iq_grids.rs: the code tables of the IQ formats, as the PyPI package `gguf` holds them.

Run with that package installed: python make_grids.py > iq_grids.rs
"""

from gguf import quants

TABLES = [
    ("IQ1", quants.IQ1_S, 2, "the codes of IQ1_S and IQ1_M: 8 values in 2 bits each"),
    ("IQ2_XXS", quants.IQ2_XXS, 2, "the codes of IQ2_XXS: 8 values in 2 bits each"),
    ("IQ2_XS", quants.IQ2_XS, 2, "the codes of IQ2_XS: 8 values in 2 bits each"),
    ("IQ2_S", quants.IQ2_S, 2, "the codes of IQ2_S: 8 values in 2 bits each"),
    ("IQ3_XXS", quants.IQ3_XXS, 4, "the codes of IQ3_XXS: 4 values in 4 bits each"),
    ("IQ3_S", quants.IQ3_S, 4, "the codes of IQ3_S: 4 values in 4 bits each"),
]

print("//! The code tables of the IQ formats. Made by make_grids.py from the PyPI package `gguf`; not to be edited.")
for name, traits, bits, what in TABLES:
    traits.init_grid()
    rows = traits.grid.reshape(traits.grid_shape)
    values = [float(value) for value in traits.grid_map]
    # Lowest bits first; each row is 16 bits in all.
    words = [sum(values.index(float(value)) << (bits * at) for at, value in enumerate(row)) for row in rows]
    assert all(0 <= word < 1 << 16 for word in words)
    print()
    print(f"/// {what[0].upper()}{what[1:]}, lowest bits first, as indices into the format's levels.")
    print("#[rustfmt::skip]")
    print(f"pub static {name}: [u16; {len(words)}] = [")
    for at in range(0, len(words), 16):
        print("    " + " ".join(f"0x{word:04x}," for word in words[at : at + 16]))
    print("];")
