"""A trained run of a few steps on a few kilobytes of code-like text."""

from __future__ import annotations

import random
from pathlib import Path

from depthscale.runs.config import RunConfig
from depthscale.runs.config_file import validate, with_overrides
from depthscale.training.run import train_run

VERBS = ("read", "write", "open", "close", "merge", "split")
NOUNS = ("table", "column", "record", "folder", "buffer", "index")

#: A run of eight rows a step whose rows differ in how many labels count.
UNEVEN = ("train.steps=5", "train.log_every=1", "data.attend_across_documents=false")


def write_corpus(folder: Path, num_files: int = 40) -> Path:
    """Small functions, all different, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(num_files):
        drawn = random.Random(number)
        lines = []
        for part in range(6):
            verb, noun = drawn.choice(VERBS), drawn.choice(NOUNS)
            lines += [
                f"def {verb}_{noun}_{number}_{part}({noun}, count={drawn.randrange(99)}):",
                f"    for item in {noun}:",
                f"        {drawn.choice(VERBS)}(item, {drawn.choice(NOUNS)})",
                f"    return {noun}.{drawn.choice(VERBS)}(count + {drawn.randrange(999)})",
                "",
            ]
        (folder / f"{number}.py").write_text("\n".join(lines))
    return folder


def tiny_config(directory: Path, *overrides: str) -> RunConfig:
    """A run of a few steps on a corpus that is written into ``directory`` unless it is there."""
    corpus = directory / "corpus"
    if not corpus.exists():
        write_corpus(corpus)
    tables = {
        "plan": {"blocks": 2, "rounds": 3},
        "model": {"hidden_size": 32, "num_attention_heads": 2, "norm_placement": "post", "rule": "deeploop"},
        "data": {
            "corpus": str(corpus),
            "tokenizer": "bpe:300",
            "context_length": 64,
            "tuning_fraction": 0.15,
            "report_fraction": 0.15,
        },
        "train": {"steps": 4, "batch_rows": 4, "lr": 5e-3, "num_threads": 1},
    }
    return validate(RunConfig, with_overrides(tables, overrides), "test")


def make_run(directory: Path, *overrides: str) -> Path:
    """Train into ``directory``/run and return it; the corpus lies beside."""
    train_run(tiny_config(directory, *overrides), directory / "run")
    return directory / "run"
