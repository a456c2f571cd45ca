"""How values come from place to place: `local` between devices of one process, `tcp` between processes."""
