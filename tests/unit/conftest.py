"""What several test files look at, made once a session: starting two processes costs more than what they do."""

from pathlib import Path
from typing import Any

import pytest
from processes import observe


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, its cache and runs of one and of two processes."""
    # Seconds of imports that other tests are spared.
    from tiny_run import write_corpus

    folder = tmp_path_factory.mktemp("two_processes")
    write_corpus(folder / "corpus")
    return folder


@pytest.fixture(scope="session")
def two_processes(shared_folder: Path) -> dict[str, Any]:
    """What two processes see that shard models, and that train."""
    return observe(Path(__file__).with_name("two_processes_worker.py"), shared_folder / "seen.json")
