#!/usr/bin/env python3
"""Makes tests/optim/goldens.h: parameters after 20 steps of PyTorch's optimizers. Needs PyTorch:
    python3 tests/goldens/optim.py
"""
import os

import torch
from torch import optim

STEPS = 20
OUT = []


def put(name, t):
    numbers = ", ".join(f"{v:.9g}" for v in t.detach().to(torch.float64).reshape(-1).tolist())
    OUT.append(f"inline const std::vector<double> {name} = {{{numbers}}};")


def values(shape, seed):
    n = 1
    for size in shape:
        n *= size
    return torch.sin(torch.arange(n, dtype=torch.float64) * 0.7 + seed).mul(0.8).reshape(shape).to(torch.float32)


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

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "optim", "goldens.h"), "w") as file:
    file.write("// Made by tests/goldens/optim.py: parameters after 20 steps.\n#pragma once\n\n#include <vector>\n\n"
               "namespace goldens {\n\n// clang-format off\n")
    file.write("\n".join(OUT) + "\n// clang-format on\n\n}  // namespace goldens\n")
