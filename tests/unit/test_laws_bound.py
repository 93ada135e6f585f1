"""Batched derivatives against finite differences and against each other, for every kind of factor."""

from __future__ import annotations

import numpy as np
import pytest

from depthscale.errors import ConfigError, DataError
from depthscale.laws import LAWS, AdditiveLaw, JointLaw, Objective, Observations, get_law, join_arms
from depthscale.laws.bound import BoundLaw
from depthscale.laws.fitting import from_natural, make_problem, to_natural

GENERATOR = np.random.default_rng(0)


def rows(law: AdditiveLaw, count: int = 40) -> Observations:
    columns = {name: np.exp(GENERATOR.uniform(0, 2, count)) for name in law.columns}
    return Observations(columns, GENERATOR.uniform(1.5, 4.0, count))


def bound_and_points(name: str) -> tuple[BoundLaw, np.ndarray]:
    law = LAWS[name]
    data = rows(law)
    bound = law.bind(data.columns, data.loss)
    return bound, GENERATOR.uniform(0.1, 0.9, (3, bound.num_parameters))


@pytest.mark.parametrize("name", LAWS)
def test_jacobian_is_the_derivative(name: str) -> None:
    bound, u = bound_and_points(name)
    jacobian = bound.jacobian(u)
    for p in range(bound.num_parameters):
        step = np.zeros_like(u)
        step[:, p] = 1e-6
        numeric = (bound.predict(u + step) - bound.predict(u - step)) / 2e-6
        np.testing.assert_allclose(jacobian[:, :, p], numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", LAWS)
def test_contract_sums_first_and_second_derivatives(name: str) -> None:
    bound, u = bound_and_points(name)
    rows_ = bound.predict(u).shape[1]
    first, second = GENERATOR.standard_normal((2, len(u), rows_))
    gradient, hessian = bound.contract(bound.terms(u), first, second)
    jacobian = bound.jacobian(u)
    np.testing.assert_allclose(gradient, np.einsum("sn,snp->sp", first, jacobian), rtol=1e-10)
    outer = np.einsum("sn,snp,snq->spq", second, jacobian, jacobian)
    curved = np.empty_like(outer)
    for p in range(bound.num_parameters):
        step = np.zeros_like(u)
        step[:, p] = 1e-6
        change = bound.jacobian(u + step) - bound.jacobian(u - step)
        curved[:, p] = np.einsum("sn,snq->sq", first, change) / 2e-6
    np.testing.assert_allclose(hessian, outer + curved, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        bound.squares(bound.terms(u), second**2), np.einsum("sn,snp->sp", second**2, jacobian**2), rtol=1e-10
    )


@pytest.mark.parametrize("kind", ["log_squares", "log_huber", "raw_squares"])
def test_problem_derivatives(kind: str) -> None:
    law = LAWS["chinchilla"]
    data = rows(law)
    problem = make_problem(law, data, Objective(kind, delta=0.3))  # type: ignore[arg-type]
    z = GENERATOR.uniform(0.2, 0.5, (1, 5))
    gradient, hessian, _ = problem.differentiate(z, problem.evaluate(z)[1])
    for p in range(5):
        step = np.zeros_like(z)
        step[:, p] = 1e-6
        up, down = (problem.evaluate(z + s)[0] for s in (step, -step))
        np.testing.assert_allclose(gradient[:, p], (up - down) / 2e-6, rtol=1e-5, atol=1e-7)
        up_g, down_g = (problem.differentiate(z + s, problem.evaluate(z + s)[1])[0] for s in (step, -step))
        np.testing.assert_allclose(hessian[:, p], (up_g - down_g) / 2e-6, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAWS)
def test_natural_units_there_and_back(name: str) -> None:
    law = LAWS[name]
    data = rows(law)
    problem = make_problem(law, data, Objective())
    natural = GENERATOR.uniform(0.3, 1.5, (4, len(law.parameters)))
    z = from_natural(problem, natural)
    np.testing.assert_allclose(to_natural(problem, z), natural, rtol=1e-10)
    values = dict(zip(law.parameters, natural[0].tolist(), strict=True))
    inside = problem.bound.predict(problem.internal(z))[0] * problem.bound.loss_scale
    np.testing.assert_allclose(inside, law.predict(values, data.columns), rtol=1e-10)


def test_joined_arms_act_on_their_own_rows() -> None:
    law = LAWS["chinchilla"]
    parts = [rows(law, 10), rows(law, 14)]
    joint = JointLaw(law, ("a", "b"))
    data = join_arms(parts)
    bound = joint.bind(data.columns, data.loss)
    u = GENERATOR.uniform(0.1, 0.9, (2, 10))
    scale = float(np.median(data.loss))
    alone = [law.bind(p.columns, p.loss, scale).predict(u[:, 5 * i : 5 * i + 5]) for i, p in enumerate(parts)]
    np.testing.assert_allclose(bound.predict(u), np.concatenate(alone, axis=1), rtol=1e-12)
    assert not bound.jacobian(u)[:, :10, 5:].any()
    first, second = GENERATOR.standard_normal((2, 2, 24))
    gradient, hessian = bound.contract(bound.terms(u), first, second)
    np.testing.assert_allclose(gradient, np.einsum("sn,snp->sp", first, bound.jacobian(u)), rtol=1e-10)
    assert not hessian[:, :5, 5:].any()


def test_laws_as_data() -> None:
    text = """
    name = "moe"
    floor = "E"
    [[terms]]
    coefficient = "A"
    [[terms.factors]]
    column = "flops_per_token"
    exponent = "a"
    [[terms.factors]]
    column = "active_share"
    exponent = "b"
    kind = "power"
    [[terms]]
    coefficient = "K"
    factors = [{column = "tokens", exponent = "c"}]
    """
    law = AdditiveLaw.from_toml(text)
    assert law.terms == LAWS["smelt"].terms
    assert AdditiveLaw.from_dict(law.to_dict()) == law
    columns = {"flops_per_token": np.array([1e9]), "active_share": np.array([0.05]), "tokens": np.array([1e10])}
    p = {"E": 1.4, "A": 1366.0, "K": 1.975e6, "a": 0.37, "b": 0.15, "c": 0.66}
    by_hand = 1.4 + 1366 * 0.05**0.15 / 1e9**0.37 + 1.975e6 / 1e10**0.66
    np.testing.assert_allclose(law.predict(p, columns), [by_hand])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 3\nterm = []", "did you mean 'terms'"),
        ("name = 'x'", "has no 'terms'"),
        ("name = 'x'\nterms = []", "without terms"),
        ("name = 'x'\nterms = [{coefficient = 'c', factors = [{column = 'd', exponent = 'c'}]}]", "twice"),
        (
            "name = 'x'\nterms = [{coefficient = 'c', factors = [{column = 'd', exponent = 'a', kind = 'decya'}]}]",
            "decay",
        ),
        ("name = ", "not TOML"),
        ("name = 'x'\nterms = 3", "list of tables"),
    ],
)
def test_laws_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AdditiveLaw.from_toml(text)


def test_names_and_columns_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'chinchilla'"):
        get_law("chinchila")
    law = LAWS["chinchilla"]
    with pytest.raises(DataError, match="unknown column 'tokens'; did you mean 'token'"):
        law.bind({"parameters": np.ones(2), "token": np.ones(2)}, np.ones(2))
    with pytest.raises(DataError, match="row 1"):
        law.bind({"parameters": np.array([1.0, 0.0]), "tokens": np.ones(2)}, np.ones(2))
    with pytest.raises(ConfigError, match="needs B"):
        law.predict({"E": 1, "A": 1, "alpha": 1, "beta": 1}, {"parameters": np.ones(1), "tokens": np.ones(1)})
    with pytest.raises(ConfigError, match="positive number"):
        Objective("log_huber", delta=0)
