"""The public tables of scaling runs, downloaded from their authors at a user's request and checked.

Their repositories carry no license, so the tables do not come with the package.
"""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from depthscale.errors import ConfigError, DataError, unknown_name
from depthscale.runs.files import atomic_write_bytes

BASE_ADDRESS = "https://raw.githubusercontent.com"
_LARGEST_BYTES = 10_000_000


@dataclass(frozen=True)
class PublicTable:
    """One file.

    Attributes:
        file: name it gets.
        address: path under ``BASE_ADDRESS``.
        sha256: of its bytes.
        origin: who made it.
    """

    file: str
    address: str
    sha256: str
    origin: str


PUBLIC_TABLES: Mapping[str, tuple[PublicTable, ...]] = MappingProxyType(
    {
        "chinchilla": (
            PublicTable(
                "chinchilla_depth.csv",
                "liuyz0/DepthScaling/HEAD/Scaling/get_fitting_data_chinchilla.csv",
                "cb474e8f5fc87be4132190a0c782d1521c4f06b9c041395b3a78ff2ffc34f83e",
                "Chinchilla's runs with width and depth, from the code of arXiv 2602.05970",
            ),
            PublicTable(
                "chinchilla_svg.csv",
                "epoch-research/analyzing-chinchilla/HEAD/data/svg_extracted_data.csv",
                "193478df4e90f040016431996c45682659306840ecdadf83cfb9cd5ca0aa1b30",
                "the same runs read off a figure of arXiv 2203.15556, from the code of arXiv 2404.10102",
            ),
        )
    }
)


def fetch(name: str, directory: Path, timeout_seconds: float = 30.0) -> list[Path]:
    """Download the files of ``name``; a file that is there with the right sha256 is kept.

    Raises:
        ConfigError: no such name; the nearest is suggested.
        DataError: no connection, or the bytes are not those that were published; no file is written then.
    """
    if name not in PUBLIC_TABLES:
        raise ConfigError(unknown_name("public table", name, PUBLIC_TABLES))
    paths = []
    for table in PUBLIC_TABLES[name]:
        path = directory / table.file
        if not (path.is_file() and _sha256(path.read_bytes()) == table.sha256):
            atomic_write_bytes(path, _download(table, timeout_seconds))
        paths.append(path)
    return paths


def _download(table: PublicTable, timeout_seconds: float) -> bytes:
    address = f"{BASE_ADDRESS}/{table.address}"
    try:
        with urllib.request.urlopen(address, timeout=timeout_seconds) as response:
            content: bytes = response.read(_LARGEST_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise DataError(
            f"{address} was answered with {error.code} {error.reason}; the table may have moved: {table.origin}"
        ) from error
    # A server that breaks off in the middle ends in an HTTPException, which is no OSError.
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"cannot download {address} ({type(error).__name__}: {reason}); check the connection and try again"
        ) from error
    if len(content) > _LARGEST_BYTES:
        raise DataError(
            f"{address} is larger than {_LARGEST_BYTES:,} bytes; the table was changed, nothing was written"
        )
    found = _sha256(content)
    if found != table.sha256:
        raise DataError(
            f"{address} has sha256 {found[:12]}…, expected {table.sha256[:12]}…: the table was changed,"
            " nothing was written"
        )
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
