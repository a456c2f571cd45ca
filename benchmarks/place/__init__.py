"""Parts of `benchmarks/place.py`: the programs, the processes that run them, and TensorFlow's forms."""
