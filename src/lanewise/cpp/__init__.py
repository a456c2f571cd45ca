"""Kernels in C++ and CUDA."""
