"""A kernel's text to a library, or to machine code of a GPU: compiled, cached, called and interrupted."""
