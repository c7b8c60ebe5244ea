"""What notebook cells and the command line both call.

`cells` is for notebooks, which find it in the package itself: `mptexp.run(...)`; `commands` is for
the command line; both execute a sweep by `execution.sweep` and a diagnosis by `diagnosing`.
"""

from mptexp.api.advising import advise, advise_layers
from mptexp.api.archive import open_archive
from mptexp.api.cells import (
    answer,
    compare,
    diagnose,
    explain,
    load,
    plan,
    policies,
    record,
    run,
)
from mptexp.api.checking import check_instruments
from mptexp.api.commands import (
    TRACKERS,
    absent,
    changed,
    checked,
    claims,
    compared,
    curable,
    doctor,
    export,
    init,
    installed_backends,
    merge,
    open_sweep,
    planned,
    publish,
    read_traces,
    recordings,
    report,
    track,
    unlike,
    write_page,
)
from mptexp.api.diagnosing import execute_diagnosis, open_diagnosis, verdicts
from mptexp.api.gpu_hour import measure_hour
from mptexp.execution.local_executor import Execution
from mptexp.execution.plan import remaining_s
from mptexp.execution.preparation import look
from mptexp.execution.progress import Output, expected
from mptexp.execution.sweep import Interrupted, execute
