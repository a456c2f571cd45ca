"""Differentiation, program to program."""
