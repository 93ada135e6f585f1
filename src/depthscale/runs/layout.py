"""Names inside a run directory and a study directory."""

#: The resolved configuration of a run.
CONFIG_FILE = "config.toml"
#: One JSON object a line, appended while a run trains.
METRICS_FILE = "metrics.jsonl"
#: The trained weights, loadable by transformers.
CHECKPOINT = "checkpoint"
#: Optimizer state and weights of an unfinished run; gone when it finishes.
TRAINING_STATE = "training_state"
#: Training states kept where other runs may branch off.
BRANCH_POINTS = "branch_points"
#: TensorBoard's event files, where they are asked for.
TENSORBOARD = "tensorboard"
#: Held while a run trains, so that no second process writes into its directory.
LOCK_FILE = "lock"
#: What a study's worker printed.
LOG_FILE = "log.txt"
#: A study's plan, written before its first run.
STUDY_FILE = "study.json"
