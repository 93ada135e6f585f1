"""Laws as data: a floor plus products of powers (or decays) of named columns.

    L(x) = L_0 + sum_k c_k * prod_j g_kj(x_j)          c_k > 0, L_0 >= 0

    inverse_power  g = x^-a        depth, width, tokens: the usual sign
    power          g = x^+a        SMELT's (1 - S)^b, growth such as kappa ~ R^gamma
    decay          g = exp(-a x)   saturation, L_inf + Z * exp(-z R)

A law knows no data. :meth:`AdditiveLaw.bind` joins it to columns, where it is fitted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from depthscale.errors import ConfigError, DataError, unknown_name
from depthscale.laws.bound import BoundLaw

Array = NDArray[np.float64]
FactorKind = Literal["inverse_power", "power", "decay"]
FACTOR_KINDS: tuple[FactorKind, ...] = get_args(FactorKind)


class Law(Protocol):
    """What the fitter needs of a law; :class:`AdditiveLaw` and the joint law of two arms are the two kinds.

    ``bind`` answers the batched functions in internal coordinates: ``predict``, ``jacobian``, ``starts`` and
    ``contract`` (first and second derivatives summed over the rows).
    """

    @property
    def name(self) -> str:
        """How reports name the law."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names, in the order of every parameter vector."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the law reads."""

    def bind(self, columns: Mapping[str, Array], loss: Array, loss_scale: float | None = None) -> BoundLaw:
        """The law on these rows, in coordinates that do not depend on their units."""


@dataclass(frozen=True)
class Factor:
    """One column with its exponent.

    Attributes:
        column: name of a column with positive values (any value for ``decay``).
        exponent: name of the parameter a; positive a means that the column's kind of effect is present.
        kind: ``inverse_power`` x^-a, ``power`` x^a, or ``decay`` exp(-a x).
    """

    column: str
    exponent: str
    kind: FactorKind = "inverse_power"

    def __post_init__(self) -> None:
        if self.kind not in FACTOR_KINDS:
            raise ConfigError(unknown_name("factor kind", str(self.kind), FACTOR_KINDS))

    def regressor(self, values: Array) -> Array:
        """d ln g / d a at each row: -ln x, ln x or -x."""
        if self.kind == "decay":
            return -values
        return np.log(values) if self.kind == "power" else -np.log(values)


@dataclass(frozen=True)
class Term:
    """A positive coefficient times a product of factors."""

    coefficient: str
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class AdditiveLaw:
    """L_0 + sum of terms; parameters are ordered floor, coefficients, exponents.

    Attributes:
        name: how reports name the law.
        terms: at least one.
        floor: name of the irreducible loss, or None for a law without one.

    Example:
        >>> law = AdditiveLaw("depth", (Term("c", (Factor("depth", "alpha"),)),), floor="L_0")
        >>> law.parameters
        ('L_0', 'c', 'alpha')
        >>> law.predict({"L_0": 1.0, "c": 8.0, "alpha": 1.0}, {"depth": np.array([2.0, 4.0])}).tolist()
        [5.0, 3.0]
    """

    name: str
    terms: tuple[Term, ...]
    floor: str | None = None

    def __post_init__(self) -> None:
        if not self.terms:
            raise ConfigError(f"law '{self.name}' came without terms; expected at least one")
        if len(set(self.parameters)) != len(self.parameters):
            raise ConfigError(
                f"law '{self.name}' names a parameter twice ({', '.join(self.parameters)});"
                " expected one name per parameter"
            )

    @property
    def coefficients(self) -> tuple[str, ...]:
        """Names of the terms' coefficients."""
        return tuple(term.coefficient for term in self.terms)

    @property
    def exponents(self) -> tuple[str, ...]:
        """Names of the exponents, term by term."""
        return tuple(factor.exponent for term in self.terms for factor in term.factors)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Floor (if any), coefficients, exponents."""
        return ((self.floor,) if self.floor else ()) + self.coefficients + self.exponents

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the law reads, each once, in the order of first use."""
        return tuple(dict.fromkeys(factor.column for term in self.terms for factor in term.factors))

    @property
    def reads_once(self) -> bool:
        """No column is read by two factors, as an interaction would: each has one exponent."""
        return sum(len(term.factors) for term in self.terms) == len(self.columns)

    def factor_of(self, column: str) -> tuple[Term, Factor]:
        """The one term and factor that read ``column``.

        Raises:
            ConfigError: no factor reads it, or several do.
        """
        found = [(term, f) for term in self.terms for f in term.factors if f.column == column]
        if len(found) != 1:
            raise ConfigError(
                f"column '{column}' is read by {len(found)} factors of law '{self.name}'; expected exactly one"
            )
        return found[0]

    def predict(self, parameters: Mapping[str, float], columns: Mapping[str, Array]) -> Array:
        """Loss at each row, from parameters in natural units."""
        require_parameters(self, parameters)
        total = np.full(len(np.atleast_1d(columns[self.columns[0]])), 0.0)
        if self.floor:
            total += parameters[self.floor]
        for term in self.terms:
            exponent = sum(
                parameters[f.exponent] * f.regressor(np.asarray(columns[f.column], dtype=np.float64))
                for f in term.factors
            )
            total = total + parameters[term.coefficient] * np.exp(exponent)
        return total

    def bind(self, columns: Mapping[str, Array], loss: Array, loss_scale: float | None = None) -> BoundLaw:
        """The law on these rows, in coordinates that do not depend on their units.

        Args:
            columns: one array [n] per column.
            loss: [n].
            loss_scale: losses are divided by it inside; None takes their median.

        Raises:
            DataError: a column is missing, or is not positive and finite where a power needs it.
        """
        for name in self.columns:
            if name not in columns:
                raise DataError(unknown_name("column", name, columns))
        for term in self.terms:
            for factor in term.factors:
                values = columns[factor.column]
                good = np.isfinite(values) & ((values > 0) | (factor.kind == "decay"))
                if not good.all():
                    row = int(np.flatnonzero(~good)[0])
                    raise DataError(
                        f"column '{factor.column}' has {float(values[row])!r} in row {row};"
                        " expected positive finite numbers"
                    )
        regressors = tuple(
            np.stack([f.regressor(columns[f.column]) for f in term.factors], axis=1)
            if term.factors
            else np.empty((len(loss), 0))
            for term in self.terms
        )
        return BoundLaw.from_regressors(regressors, loss, self.floor is not None, loss_scale)

    # -- files --------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that :meth:`from_dict` reads back."""
        return {
            "name": self.name,
            "floor": self.floor,
            "terms": [
                {
                    "coefficient": term.coefficient,
                    "factors": [{"column": f.column, "exponent": f.exponent, "kind": f.kind} for f in term.factors],
                }
                for term in self.terms
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AdditiveLaw:
        """Read a law from plain data (a TOML table, a result file).

        Raises:
            ConfigError: a key is unknown or missing.
        """
        _require_keys("law", data, ("name", "floor", "terms"), needed=("name", "terms"))
        _require_text("law", data, ("name", "floor"))
        terms = []
        for term in _tables("terms", data["terms"]):
            _require_keys("term", term, ("coefficient", "factors"), needed=("coefficient", "factors"))
            _require_text("term", term, ("coefficient",))
            factors = []
            for factor in _tables("factors", term["factors"]):
                _require_keys("factor", factor, ("column", "exponent", "kind"), needed=("column", "exponent"))
                _require_text("factor", factor, ("column", "exponent", "kind"))
                factors.append(Factor(**{str(key): value for key, value in factor.items()}))
            terms.append(Term(str(term["coefficient"]), tuple(factors)))
        return cls(str(data["name"]), tuple(terms), data.get("floor"))

    @classmethod
    def from_toml(cls, text: str) -> AdditiveLaw:
        """Read a law written as TOML.

        Example:
            >>> law = AdditiveLaw.from_toml('''
            ... name = "rounds"
            ... floor = "L_inf"
            ... [[terms]]
            ... coefficient = "Z"
            ... factors = [{column = "rounds", exponent = "z", kind = "decay"}]
            ... ''')
            >>> law.parameters
            ('L_inf', 'Z', 'z')
        """
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"law is not TOML ({error}); expected name, floor and [[terms]]") from error


def require_parameters(law: Law, parameters: Mapping[str, float]) -> None:
    """Refuse a parameter set that is not exactly the law's.

    Raises:
        ConfigError: a parameter is missing or unknown.
    """
    for name in parameters:
        if name not in law.parameters:
            raise ConfigError(unknown_name(f"parameter of law '{law.name}'", name, law.parameters))
    missing = [name for name in law.parameters if name not in parameters]
    if missing:
        raise ConfigError(f"law '{law.name}' needs {', '.join(missing)}; expected all of its parameters")


def _tables(name: str, value: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
        raise ConfigError(f"{name} came as {value!r}; expected a list of tables")
    return value


def _require_text(kind: str, data: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        value = data.get(key)
        if value is not None and not (isinstance(value, str) and value):
            raise ConfigError(f"{kind} key '{key}' came as {value!r}; expected a name, such as {key} = \"L_0\"")


def _require_keys(kind: str, data: Mapping[str, Any], known: Sequence[str], needed: Sequence[str]) -> None:
    for key in data:
        if key not in known:
            raise ConfigError(unknown_name(f"{kind} key", str(key), known))
    for key in needed:
        if key not in data:
            raise ConfigError(f"{kind} {dict(data)!r} has no '{key}'; expected {', '.join(known)}")
