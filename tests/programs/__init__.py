"""The programs every test shares, by theme. `corpus.CORPUS` gathers them."""
