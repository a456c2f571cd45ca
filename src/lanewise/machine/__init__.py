"""The tick machine: its state, what a block does to it, schedules, narrowing."""
