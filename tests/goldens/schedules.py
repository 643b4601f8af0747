#!/usr/bin/env python3
"""Makes tests/optim/schedule_goldens.h: 24 learning rates of PyTorch's schedules. Needs PyTorch 1.13 or later:
    python3 tests/goldens/schedules.py
"""
import os

import torch
from torch.optim import lr_scheduler as s

MAKE = {
    "lambda": lambda o: s.LambdaLR(o, lambda t: 0.95**t / (1 + t)),
    "multiplicative": lambda o: s.MultiplicativeLR(o, lambda t: 0.95 if t % 3 else 1.1),
    "cyclic": lambda o: s.CyclicLR(o, 0.1, 0.5, 4, cycle_momentum=False),
    "cyclic_halving": lambda o: s.CyclicLR(o, 0.1, 0.5, 3, 5, mode="triangular2", cycle_momentum=False),
    "cyclic_range": lambda o: s.CyclicLR(o, 0.1, 0.5, 5, 2, mode="exp_range", gamma=0.97, cycle_momentum=False),
    "step": lambda o: s.StepLR(o, 7, 0.5),
    "multistep": lambda o: s.MultiStepLR(o, [3, 10, 10, 17], 0.3),
    "exponential": lambda o: s.ExponentialLR(o, 0.9),
    "polynomial": lambda o: s.PolynomialLR(o, 15, 2.0),
    "linear": lambda o: s.LinearLR(o, 0.25, 0.75, 9),
    "constant": lambda o: s.ConstantLR(o, 0.5, 6),
    "cosine": lambda o: s.CosineAnnealingLR(o, 20, 0.01),
    "restarts": lambda o: s.CosineAnnealingWarmRestarts(o, 3, 2, 0.02),
    "restarts_even": lambda o: s.CosineAnnealingWarmRestarts(o, 5),
    "one_cycle": lambda o: s.OneCycleLR(o, 0.4, 25, cycle_momentum=False),
    "one_cycle_three": lambda o: s.OneCycleLR(o, 0.4, 25, pct_start=0.4, anneal_strategy="linear", three_phase=True,
                                              div_factor=10, final_div_factor=100, cycle_momentum=False),
    "chained": lambda o: s.ChainedScheduler([s.LinearLR(o, 0.1, 1.0, 5), s.ExponentialLR(o, 0.9)]),
    "sequential": lambda o: s.SequentialLR(o, [s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.8), s.StepLR(o, 2, 0.5)], [6, 15]),
}


def rates(make):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.2)
    schedule = make(optimizer)
    result = []
    for _ in range(24):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return result


def plateau(metrics, **options):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.2)
    schedule = s.ReduceLROnPlateau(optimizer, **options)
    result = []
    for metric in metrics:
        schedule.step(metric)
        result.append(optimizer.param_groups[0]["lr"])
    return result


def main():
    out = ["// Made by tests/goldens/schedules.py.", "#pragma once", "", "#include <vector>", "", "namespace goldens {", "",
           "// clang-format off"]
    lists = {name: rates(make) for name, make in MAKE.items()}
    metrics = [3, 2, 2, 2, 1.99999, 2.5, 2, 1.5, 1.5, 1.6, 1.7, 1.8, 1.9, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4]
    lists["plateau_metrics"] = metrics
    lists["plateau"] = plateau(metrics, factor=0.5, patience=2, cooldown=1, min_lr=0.03)
    lists["plateau_max"] = plateau([-m for m in metrics], mode="max", factor=0.5, patience=1, threshold=0.01, threshold_mode="abs")
    for name, values in lists.items():
        out.append(f"inline const std::vector<double> {name} = {{{', '.join(f'{v:.15g}' for v in values)}}};")
    out += ["// clang-format on", "", "}  // namespace goldens", ""]
    path = os.path.join(os.path.dirname(__file__), "..", "optim", "schedule_goldens.h")
    with open(path, "w") as file:
        file.write("\n".join(out))


main()
