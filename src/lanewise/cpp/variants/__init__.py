"""Other forms of a kernel: several lanes in step, and lanes between meetings."""
