"""Python source to code that JAX can trace."""
