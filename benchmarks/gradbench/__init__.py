"""Lanewise as a tool of GradBench, the public benchmark of many systems for automatic differentiation.

GradBench (https://github.com/gradbench/gradbench) sends messages as lines of JSON: `run.py` answers them, `protocol.py`
says what an answer is, and each other module is one of its evaluations.
"""
