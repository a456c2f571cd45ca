"""The functions and types that kernels name, beyond the basic ones of `prelude`: importing a module adds its table."""
