import re
import subprocess
import sys
from pathlib import Path

import depthscale

ROOT = Path(__file__).parents[2]


def test_every_public_name_resolves_and_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    listed = set(re.findall(r"`(\w+)`", reference))
    for name in depthscale.__all__:
        assert getattr(depthscale, name) is not None
        assert name in listed, f"{name} is missing from docs/reference.md"
        assert name in dir(depthscale)


def test_the_reference_of_the_command_line_is_current(tmp_path: Path) -> None:
    written = tmp_path / "cli.md"
    command = [sys.executable, "-m", "typer", "depthscale.cli.main", "utils", "docs", "--name", "depthscale"]
    subprocess.run([*command, "--output", str(written)], check=True, capture_output=True, timeout=120)
    assert written.read_text() == (ROOT / "docs" / "cli.md").read_text(), "run `make docs`"


def test_the_makefile_has_at_most_ten_targets_and_the_readme_leads_with_two() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert 1 <= len(targets) <= 10
    commands = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), flags=re.M)
    assert commands[:2] == ["demo", "test"]
