"""Stacks and tapes that grow, where the host has a part in a run."""
