"""Scaling laws: every exponent that depthscale reports is fitted here, to a proven minimum.

fit(law, rows)           the one fitter; raises FitError where the minimum is not certified
profile, bootstrap       intervals of parameters and of whatever follows from them
audit, regime_test, validate_*, compare    what the answer rests on
"""

from depthscale.laws.allocation.allocate import Allocation, Form, allocate, most_useful_run
from depthscale.laws.allocation.candidates import Candidates, Limits, ShapeTemplate, enumerate_candidates
from depthscale.laws.card import DataCard, Finding, best_over_rates, finished_rows, inspect_rows
from depthscale.laws.certificate import Certificate, FitError
from depthscale.laws.comparison import Comparison, Saving, compare, compute_saved
from depthscale.laws.conventions import Audit, AuditRow, audit, standard_conventions
from depthscale.laws.coverage import Coverage, simulate_coverage
from depthscale.laws.fitting import Fit, examine, fit, search
from depthscale.laws.frontier import (
    CHINCHILLA_FLOPS,
    WIDTH_DEPTH_PARAMETERS,
    WIDTH_DEPTH_TOKENS_FLOPS,
    Budget,
    compute_for_loss,
    frontier_exponent,
    frontier_exponent_quantity,
    optimal_loss,
    optimal_ratio_quantity,
    optimal_shape,
    optimal_size_quantity,
    smelt_flops,
)
from depthscale.laws.identification import Identifiability, identifiability
from depthscale.laws.isoflop import Parabola, fit_parabola, parabola_bias
from depthscale.laws.joint import JointLaw, join_arms
from depthscale.laws.law import AdditiveLaw, Factor, Law, Term
from depthscale.laws.library import LAWS, SMELT_PRINTED, get_law
from depthscale.laws.nested_tests import NestedTest
from depthscale.laws.objective import Objective
from depthscale.laws.observations import Observations
from depthscale.laws.profiling import ProfileInterval, profile
from depthscale.laws.quantities import Quantity, parameter, ratio
from depthscale.laws.regime import Regime, regime_test
from depthscale.laws.resampling import Bootstrap, bootstrap
from depthscale.laws.standard_errors import (
    Covariance,
    hessian_covariance,
    jacobian_covariance,
    sandwich_covariance,
)
from depthscale.laws.stored import StoredFit, from_json, to_json
from depthscale.laws.tables import ColumnMap, read_table
from depthscale.laws.validation import HeldOut, validate_extrapolation, validate_groups, validate_rows

__all__ = [
    "CHINCHILLA_FLOPS",
    "LAWS",
    "SMELT_PRINTED",
    "WIDTH_DEPTH_PARAMETERS",
    "WIDTH_DEPTH_TOKENS_FLOPS",
    "AdditiveLaw",
    "Allocation",
    "Audit",
    "AuditRow",
    "Bootstrap",
    "Budget",
    "Candidates",
    "Certificate",
    "ColumnMap",
    "Comparison",
    "Covariance",
    "Coverage",
    "DataCard",
    "Factor",
    "Finding",
    "Fit",
    "FitError",
    "Form",
    "HeldOut",
    "Identifiability",
    "JointLaw",
    "Law",
    "Limits",
    "NestedTest",
    "Objective",
    "Observations",
    "Parabola",
    "ProfileInterval",
    "Quantity",
    "Regime",
    "Saving",
    "ShapeTemplate",
    "StoredFit",
    "Term",
    "allocate",
    "audit",
    "best_over_rates",
    "bootstrap",
    "compare",
    "compute_for_loss",
    "compute_saved",
    "enumerate_candidates",
    "examine",
    "finished_rows",
    "fit",
    "fit_parabola",
    "from_json",
    "frontier_exponent",
    "frontier_exponent_quantity",
    "get_law",
    "hessian_covariance",
    "identifiability",
    "inspect_rows",
    "jacobian_covariance",
    "join_arms",
    "most_useful_run",
    "optimal_loss",
    "optimal_ratio_quantity",
    "optimal_shape",
    "optimal_size_quantity",
    "parabola_bias",
    "parameter",
    "profile",
    "ratio",
    "read_table",
    "regime_test",
    "sandwich_covariance",
    "search",
    "simulate_coverage",
    "smelt_flops",
    "standard_conventions",
    "to_json",
    "validate_extrapolation",
    "validate_groups",
    "validate_rows",
]
