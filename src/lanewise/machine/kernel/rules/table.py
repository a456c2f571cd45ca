"""All rules: importing this fills `RULES`."""

from lanewise.machine.kernel.rules import elementwise as elementwise
