"""What a model costs, by formula: parameters, memory, FLOPs; `verify` measures what the formulas predict."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.cost.advice import Candidate as Candidate
    from headwise.cost.advice import advise as advise
    from headwise.cost.architecture import Architecture as Architecture
    from headwise.cost.architecture import from_sizes as from_sizes
    from headwise.cost.comparison import Change as Change
    from headwise.cost.comparison import compare as compare
    from headwise.cost.estimation import Cost as Cost
    from headwise.cost.estimation import estimate as estimate
    from headwise.cost.files import read_architecture as read_architecture
    from headwise.cost.fit import Fit as Fit
    from headwise.cost.fit import fits as fits
    from headwise.cost.formats.reader import from_hf_config as from_hf_config
    from headwise.cost.own import from_config as from_config
    from headwise.cost.sweeps import Sweep as Sweep
    from headwise.cost.sweeps import sweep as sweep
    from headwise.cost.sweeps import sweep_from as sweep_from
    from headwise.cost.verification import Check as Check
    from headwise.cost.verification import verify as verify
    from headwise.cost.workload import Workload as Workload

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.cost.advice": ["Candidate", "advise"],
        "headwise.cost.architecture": ["Architecture", "from_sizes"],
        "headwise.cost.comparison": ["Change", "compare"],
        "headwise.cost.estimation": ["Cost", "estimate"],
        "headwise.cost.files": ["read_architecture"],
        "headwise.cost.fit": ["Fit", "fits"],
        "headwise.cost.formats.reader": ["from_hf_config"],
        "headwise.cost.own": ["from_config"],
        "headwise.cost.sweeps": ["Sweep", "sweep", "sweep_from"],
        "headwise.cost.verification": ["Check", "verify"],
        "headwise.cost.workload": ["Workload"],
    },
)
