"""All rules: importing this fills `RULES`."""

from lanewise.machine.kernel import functions as functions
from lanewise.machine.kernel.rules import control as control
from lanewise.machine.kernel.rules import defined as defined
from lanewise.machine.kernel.rules import elementwise as elementwise
from lanewise.machine.kernel.rules import index as index
from lanewise.machine.kernel.rules import linear as linear
from lanewise.machine.kernel.rules import random as random
from lanewise.machine.kernel.rules import reduce as reduce
from lanewise.machine.kernel.rules import shape as shape
from lanewise.machine.kernel.rules import sort as sort
from lanewise.machine.kernel.rules import special as special
from lanewise.machine.kernel.rules import window as window
