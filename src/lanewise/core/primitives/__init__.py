"""What is known about each primitive, in one table: `facts.py` says what a row holds, `rows.py` has the rows."""

from lanewise.core.primitives import rows as rows
