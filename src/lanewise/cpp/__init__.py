"""The carrier `kernel`: the whole program as one CUDA kernel, a thread for each lane."""
