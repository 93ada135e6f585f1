"""TensorBoard on request: the run's records, beside the metrics file that is always written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from depthscale.errors import MissingExtraError


def tensorboard_callback(directory: Path) -> TrainerCallback:
    """transformers' own callback, writing to ``directory``.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError("train.tensorboard", "track", "tensorboard")
    callback = TensorBoardCallback()
    # By default it writes below the training state, which is gone when the run finishes.
    callback.logging_dir = str(directory)
    return callback
