"""What Lanewise raises, and how lanes end, for `from lanewise.errors import LaneError`."""

from lanewise.core.errors import (
    BranchTypeError as BranchTypeError,
)
from lanewise.core.errors import (
    CapturedValueWarning as CapturedValueWarning,
)
from lanewise.core.errors import (
    ClusterError as ClusterError,
)
from lanewise.core.errors import (
    CompilerError as CompilerError,
)
from lanewise.core.errors import (
    GradientError as GradientError,
)
from lanewise.core.errors import (
    InternalError as InternalError,
)
from lanewise.core.errors import (
    LaneError as LaneError,
)
from lanewise.core.errors import (
    LanewiseError as LanewiseError,
)
from lanewise.core.errors import (
    Location as Location,
)
from lanewise.core.errors import (
    LoopTypeError as LoopTypeError,
)
from lanewise.core.errors import (
    OperatorError as OperatorError,
)
from lanewise.core.errors import (
    OptionError as OptionError,
)
from lanewise.core.errors import (
    Outcome as Outcome,
)
from lanewise.core.errors import (
    PlaceError as PlaceError,
)
from lanewise.core.errors import (
    ProgramError as ProgramError,
)
from lanewise.core.errors import (
    RecordError as RecordError,
)
from lanewise.core.errors import (
    ResultTypeError as ResultTypeError,
)
from lanewise.core.errors import (
    ResultUnknown as ResultUnknown,
)
from lanewise.core.errors import (
    TransformError as TransformError,
)
from lanewise.core.errors import (
    UndefinedVariableError as UndefinedVariableError,
)
from lanewise.core.errors import (
    UnsupportedSyntaxError as UnsupportedSyntaxError,
)
