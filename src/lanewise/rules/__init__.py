"""`program_p` and its rules: they are the library. Importing this registers them."""

from lanewise.rules import bind as bind
from lanewise.rules import inside_checkpoint as inside_checkpoint
from lanewise.rules import linearize as linearize
from lanewise.rules import tangents as tangents
from lanewise.rules import throw as throw
