"""Examples into lanes: refill, streams."""
