"""Networks of which each instance has its own shape: ours, and the same by hand in PyTorch."""
