"""Training: the recipe, the loop with exact resume, evaluation, and fair comparisons of runs."""

from typing import TYPE_CHECKING

from headwise.lazy import lazy_exports

if TYPE_CHECKING:
    from headwise.training.checkpoint import NonFiniteError as NonFiniteError
    from headwise.training.comparison import Comparison as Comparison
    from headwise.training.comparison import check_comparison as check_comparison
    from headwise.training.comparison import compare as compare
    from headwise.training.comparison import variants as variants
    from headwise.training.config import DataConfig as DataConfig
    from headwise.training.config import RunConfig as RunConfig
    from headwise.training.config import TrainingConfig as TrainingConfig
    from headwise.training.evaluation import Evaluation as Evaluation
    from headwise.training.evaluation import bits_per_byte as bits_per_byte
    from headwise.training.evaluation import evaluate as evaluate
    from headwise.training.interrupt import Interrupted as Interrupted
    from headwise.training.loop import train as train
    from headwise.training.metrics import read_metrics as read_metrics
    from headwise.training.observer import Observer as Observer
    from headwise.training.run_data import prepare_runs as prepare_runs
    from headwise.training.run_folder import TrainResult as TrainResult

__getattr__, __all__ = lazy_exports(
    __name__,
    {
        "headwise.training.checkpoint": ["NonFiniteError"],
        "headwise.training.comparison": ["Comparison", "check_comparison", "compare", "variants"],
        "headwise.training.config": ["DataConfig", "RunConfig", "TrainingConfig"],
        "headwise.training.evaluation": ["Evaluation", "bits_per_byte", "evaluate"],
        "headwise.training.interrupt": ["Interrupted"],
        "headwise.training.loop": ["train"],
        "headwise.training.metrics": ["read_metrics"],
        "headwise.training.observer": ["Observer"],
        "headwise.training.run_data": ["prepare_runs"],
        "headwise.training.run_folder": ["TrainResult"],
    },
)
