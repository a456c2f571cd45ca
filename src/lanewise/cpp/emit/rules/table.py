"""All rules: importing this fills the table. `sums` brings the rules of indexing along."""

from lanewise.cpp.emit.rules import RULES, Unsupported  # noqa: F401
from lanewise.cpp.emit.rules import complex as complex
from lanewise.cpp.emit.rules import control as control
from lanewise.cpp.emit.rules import defined as defined
from lanewise.cpp.emit.rules import elementwise as elementwise
from lanewise.cpp.emit.rules import functions as functions
from lanewise.cpp.emit.rules import linear as linear
from lanewise.cpp.emit.rules import random as random
from lanewise.cpp.emit.rules import reduce as reduce
from lanewise.cpp.emit.rules import shape as shape
from lanewise.cpp.emit.rules import sort as sort
from lanewise.cpp.emit.rules import sums as sums
