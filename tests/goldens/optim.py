#!/usr/bin/env python3
"""Makes tests/optim/goldens.h: parameters after 20 steps of PyTorch's optimizers. Needs PyTorch:
    python3 tests/goldens/optim.py
"""
import os

import numpy
import torch
from torch import optim

STEPS = 20
OUT = []


def put(name, t):
    numbers = ", ".join(f"{v:.9g}" for v in t.detach().to(torch.float64).reshape(-1).tolist())
    OUT.append(f"inline const std::vector<double> {name} = {{{numbers}}};")


def values(shape, seed, dtype=torch.float32):
    n = 1
    for size in shape:
        n *= size
    return torch.sin(torch.arange(n, dtype=torch.float64) * 0.7 + seed).mul(0.8).reshape(shape).to(dtype)


def dense(name, make, params=None):
    """The gradient depends on the parameter, so that errors grow; tests/optim/optimizer_test.cpp does the same."""
    p = [values((3, 4), 1).requires_grad_(), values((5,), 2).requires_grad_()]
    opt = make([{"params": [p[0]]}, {"params": [p[1]], **params}] if params else p)
    for t in range(STEPS):
        for k, x in enumerate(p):
            x.grad = values(x.shape, 3 + k + 0.9 * t) + 0.1 * x.detach()
        opt.step()
    put(name, torch.cat([x.reshape(-1) for x in p]))


ROWS = [[0, 4, 4, 2], [2, 2, 5], [1, 4], [5, 0, 0, 0, 1]]


def sparse(name, make):
    """A table of which row 3 is never used, and others repeatedly."""
    p = values((6, 3), 1).requires_grad_()
    opt = make([p])
    for t in range(STEPS):
        rows = ROWS[t % len(ROWS)]
        g = values((len(rows), 3), 3 + 0.9 * t)
        p.grad = torch.sparse_coo_tensor(torch.tensor([rows]), g, p.shape)
        opt.step()
    put(name, p)


dense("sgd", lambda p: optim.SGD(p, lr=0.1))
dense("sgd_decay", lambda p: optim.SGD(p, lr=0.1, weight_decay=0.05))
dense("sgd_momentum", lambda p: optim.SGD(p, lr=0.1, momentum=0.9))
dense("sgd_dampening", lambda p: optim.SGD(p, lr=0.1, momentum=0.8, dampening=0.3, weight_decay=0.02))
dense("sgd_nesterov", lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01))
dense("sgd_groups", lambda p: optim.SGD(p, lr=0.1, momentum=0.9), {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.1})
dense("adagrad", lambda p: optim.Adagrad(p))
dense("adagrad_all", lambda p: optim.Adagrad(p, lr=0.2, lr_decay=0.1, weight_decay=0.03, initial_accumulator_value=0.5, eps=1e-6))
dense("adam", lambda p: optim.Adam(p))
dense("adam_all", lambda p: optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1))
dense("adam_amsgrad", lambda p: optim.Adam(p, lr=0.02, amsgrad=True))
dense("adamw", lambda p: optim.AdamW(p, lr=0.01))
dense("adamw_amsgrad", lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.3, amsgrad=True))
sparse("sparse_sgd", lambda p: optim.SGD(p, lr=0.1))
sparse("sparse_adagrad", lambda p: optim.Adagrad(p, lr=0.1))
sparse("sparse_adam", lambda p: optim.SparseAdam(p, lr=0.01))

dense("rmsprop", lambda p: optim.RMSprop(p))
dense("rmsprop_all", lambda p: optim.RMSprop(p, lr=0.02, alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.8, centered=True))
dense("rmsprop_momentum", lambda p: optim.RMSprop(p, lr=0.02, momentum=0.5))
dense("rmsprop_centered", lambda p: optim.RMSprop(p, lr=0.02, centered=True))
dense("adadelta", lambda p: optim.Adadelta(p))
dense("adadelta_all", lambda p: optim.Adadelta(p, lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1))
dense("adamax", lambda p: optim.Adamax(p))
dense("adamax_all", lambda p: optim.Adamax(p, lr=0.05, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1))
# foreach: the other one of 1.13 takes mu into its product twice, which PyTorch mended later.
dense("nadam", lambda p: optim.NAdam(p, foreach=True))
dense("nadam_all",
      lambda p: optim.NAdam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, momentum_decay=0.3, foreach=True))
dense("radam", lambda p: optim.RAdam(p))
dense("radam_all", lambda p: optim.RAdam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1))
dense("rprop", lambda p: optim.Rprop(p))
dense("rprop_all", lambda p: optim.Rprop(p, lr=0.1, etas=(0.3, 1.7), step_sizes=(0.02, 0.3)))


def asgd(name, **options):
    """Also its averages."""
    kept = []
    dense(name, lambda p: kept.append(optim.ASGD(p, **options)) or kept[0])
    put(name + "_averages", torch.cat([state["ax"].reshape(-1) for state in kept[0].state.values()]))


asgd("asgd")
asgd("asgd_all", lr=0.1, lambd=0.2, alpha=0.6, t0=5, weight_decay=0.05)
asgd("asgd_from_one", lr=0.1, t0=0)


class Formula:
    """An optimizer that PyTorch does not have, from its paper, in float64: rule(p, g, state, t) returns p."""

    def __init__(self, rule):
        self.rule, self.state, self.steps = rule, {}, 0

    def __call__(self, params):
        self.params = params
        return self

    def step(self):
        self.steps += 1
        for i, x in enumerate(self.params):
            state = self.state.setdefault(i, {"p": x.detach().double().numpy().copy()})
            state["p"] = self.rule(state["p"], x.grad.double().numpy(), state, self.steps)
            with torch.no_grad():
                x.copy_(torch.from_numpy(state["p"]))


def lion(lr, beta1, beta2, decay):
    """Chen et al. 2023, algorithm 2."""
    def rule(p, g, state, t):
        m = state.get("m", 0.0)
        state["m"] = beta2 * m + (1 - beta2) * g
        return p - lr * (numpy.sign(beta1 * m + (1 - beta1) * g) + decay * p)
    return rule


def dual_averaging(lr, l1, l2, initial):
    """Of each element alone: the least z x + t l1 |x| + (t l2 + sqrt(q) / lr) x^2 / 2, from its subgradients."""
    def rule(p, g, state, t):
        z = state["z"] = state.get("z", 0.0) + g
        q = state["q"] = state.get("q", initial) + g * g
        curvature = t * l2 + numpy.sqrt(q) / lr
        x = numpy.where(z > t * l1, -(z - t * l1) / curvature, numpy.where(z < -t * l1, -(z + t * l1) / curvature, 0.0))
        for way in (-1e-4, 1e-4):  # it is the least
            at = lambda y: z * y + t * l1 * abs(y) + curvature * y * y / 2
            assert (at(x) <= at(x + way)).all()
        return x
    return rule


dense("lion", Formula(lion(1e-4, 0.9, 0.99, 0)))
dense("lion_all", Formula(lion(0.03, 0.7, 0.9, 0.2)))
dense("adagradda", Formula(dual_averaging(1e-2, 0, 0, 0.1)))
dense("adagradda_all", Formula(dual_averaging(0.3, 0.02, 0.05, 0.5)))


def lbfgs(name, steps, **options):
    """On Rosenbrock's function of 17 numbers, in float64. Also the first and last loss."""
    p = [values(shape, seed, torch.float64).requires_grad_() for shape, seed in [((3, 4), 1), ((5,), 2)]]
    opt = optim.LBFGS(p, **options)
    losses = []
    for _ in range(steps):
        def closure():
            opt.zero_grad()
            x = torch.cat([y.reshape(-1) for y in p])
            loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss.backward()
            return loss
        losses.append(opt.step(closure).detach().reshape(1))
    put(name, torch.cat([x.reshape(-1) for x in p] + losses))


lbfgs("lbfgs", 4, lr=0.002)
lbfgs("lbfgs_short", 4, lr=0.002, max_iter=7, history_size=3)
lbfgs("lbfgs_wolfe", 3, line_search_fn="strong_wolfe")
lbfgs("lbfgs_wolfe_short", 2, lr=0.5, max_iter=15, history_size=4, line_search_fn="strong_wolfe")

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "optim", "goldens.h"), "w") as file:
    file.write("// Made by tests/goldens/optim.py: parameters after 20 steps.\n#pragma once\n\n#include <vector>\n\n"
               "namespace goldens {\n\n// clang-format off\n")
    file.write("\n".join(OUT) + "\n// clang-format on\n\n}  // namespace goldens\n")
