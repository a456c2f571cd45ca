"""From a call to a `Program`, once for each signature."""
