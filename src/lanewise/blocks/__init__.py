"""Programs flattened to blocks: made, simplified, analysed, linked, interpreted."""
