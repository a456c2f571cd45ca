"""Blocks to the text of a kernel: a table of rules, one for each JAX primitive."""
