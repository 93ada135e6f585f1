"""Options of every verb that opens a model to look into it: which weights, how they are loaded, where its parts are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A Hub id, a folder or a run of depthscale.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit.")]
Dtype = Annotated[
    str | None, typer.Option(help="Weights in memory: float32 (default), float64, bfloat16, float16 or auto.")
]
DeviceMap = Annotated[str | None, typer.Option(help="As transformers takes it, such as auto or cuda:0.")]
GgufFile = Annotated[str | None, typer.Option(help="A GGUF file of the model, taken out of its quantization.")]
AllowBin = Annotated[bool, typer.Option("--allow-bin", help="Read .bin weights, through torch's weights_only=True.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the weights.")]
Tokenizer = Annotated[str | None, typer.Option(help="Another place for the tokenizer.")]
BlocksPath = Annotated[
    str | None, typer.Option(help="Blocks of an unknown architecture, such as model.layers; several by commas.")
]
NormPath = Annotated[str | None, typer.Option(help="Its norm before the head, or none.")]
HeadPath = Annotated[str | None, typer.Option(help="Its head; default what the model says.")]
Home = Annotated[Path | None, typer.Option(help="Directory of the results; default probes/MODEL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of tables.")]
