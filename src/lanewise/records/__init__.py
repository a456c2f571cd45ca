"""Recursive data: records in Python, packed into arrays that all lanes share."""
