"""How much memory a run takes, and stacks and tapes that grow, where the host has a part in a run."""
