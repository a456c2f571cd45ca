"""A `Job` (what is asked for) and a `Plan` (what will run), lane axes and results."""
