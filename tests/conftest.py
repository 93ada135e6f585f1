"""One torch thread, no network, no time limit on examples, and shape checks on the statistics room."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

torch.set_num_threads(1)
install_import_hook("depthscale.statistics", "beartype.beartype")
# On a busy machine any example may take long.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
