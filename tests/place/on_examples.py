"""Runs examples of `examples/placed`, as one of several processes or alone; `test_examples.py` reads what this prints.

`python on_examples.py small|whole NAME...`. A line for each example: its name, and what its `main` gives.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples" / "placed"))

# Few steps: each is compiled, run and compared with the run in one piece.
SMALL = {
    "lstm": {"steps": 2},
    "experts": {"steps": 2},
    "actor_learner": {"steps": 60},
    "converge": {"least": 0.1},
    "nuts": {"chains": 4, "window": 5, "draws": 8},
}


def main(size: str, *names: str) -> None:
    for name in names:
        found = importlib.import_module(name).main(**(SMALL[name] if size == "small" else {}))
        if os.environ.get("LANEWISE_RANK", "0") == "0":
            print(f"{name}: {found}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
