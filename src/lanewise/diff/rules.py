"""All rules of reverse mode: importing this fills the table of `sweep.py`."""

from lanewise.diff import branch as branch
from lanewise.diff import loop as loop
from lanewise.diff import scan as scan
