"""What everything else is made of: programs, options, outcomes, errors, events, device profiles."""
