#!/usr/bin/env python3
"""Makes tests/goldens/ops.txt and variants.txt: what PyTorch computes for the example calls of the op table, and for the
same calls on integer and on empty inputs.

Needs PyTorch (any environment that has it). From the project's root, after `make test`:
    python3 tests/goldens/ops.py build/release/tests/tapir_tests
"""
import os
import re
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional

NAMES = {**{k: getattr(torch.nn.functional, k) for k in dir(torch.nn.functional)},
         **{k: getattr(torch, k) for k in dir(torch)}}
for functional in ("softplus", "celu", "selu", "elu", "hardtanh", "hardsigmoid", "hardswish", "mish", "silu", "gelu",
                   "logsigmoid", "leaky_relu", "softsign", "linear", "embedding", "one_hot", "pad", "cross_entropy",
                   "nll_loss", "mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy",
                   "binary_cross_entropy_with_logits", "kl_div", "dropout", "layer_norm", "margin_ranking_loss", "hinge_embedding_loss",
                   "cosine_embedding_loss", "triplet_margin_loss", "poisson_nll_loss", "cosine_similarity", "pairwise_distance",
                   "ctc_loss"):
    NAMES[functional] = getattr(torch.nn.functional, functional)


def stepped(optimizer, p, g, **options):
    parameter = p.clone().requires_grad_()
    parameter.grad = g
    made = optimizer([parameter], **options)
    made.step()
    made.step()
    return parameter.detach()


NAMES.update(stepped=stepped, float=float, int=int, bool=bool, torch=torch, F=torch.nn.functional, inf=float("inf"),
             int64=torch.int64, float32=torch.float32,
             float64=torch.float64,
             unflatten=lambda x, dim, sizes: x.unflatten(dim, sizes),
             expand=lambda x, sizes: x.expand(sizes), repeat=lambda x, times: x.repeat(times))


def to_python(code):
    code = re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", code))
    if "{" in code:  # C++ lists become tuples, of one element too
        code = re.sub(r"\{([^{}]*)\}", lambda m: "(" + m[1] + ("," if m[1].strip() else "") + ")", code)
    return code


def flat(result):
    return [result] if torch.is_tensor(result) else [t for t in result]


def number(v):
    """Denormal float64 numbers are memory that PyTorch 1.13 did not write (losses of no elements): 0."""
    return 0.0 if 0 < abs(v) < 2.3e-308 else v


def describe(t):
    shape = ",".join(str(s) for s in t.shape)
    return f"{shape} | " + " ".join(f"{number(v):.10g}" for v in t.to(torch.float64).reshape(-1).tolist())


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "calls.txt")
        subprocess.run([sys.argv[1], "[.dump]"], env={**os.environ, "TAPIR_DUMP": path}, check=True,
                       stdout=subprocess.DEVNULL)
        lines = iter(open(path).read().split("\n"))
    output, failed = {"ops.txt": [], "variants.txt": []}, 0
    for file in lines:
        if not file:
            break
        name, code = next(lines), to_python(next(lines))
        x = []
        for _ in range(int(next(lines))):
            dtype, *shape = next(lines).split()
            values = [float(v) for v in next(lines).split()]
            x.append(torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype)).reshape([int(s) for s in shape]))
        variant = file == "variants.txt"
        try:
            for t in flat(eval(code, {**NAMES, "x": x})):
                dtype = f"{str(t.dtype)[6:]} | " if variant else ""
                output[file].append(f"{name} | {dtype}{describe(t)}")
        except Exception as error:
            if variant:
                output[file].append(f"{name} | refused")
                continue
            print(f"{name}: {code}: {error}", file=sys.stderr)
            failed += 1
    for file, text in output.items():
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), file), "w") as out:
            out.write("\n".join(text) + "\n")
        print(f"{file}: {len(text)} outputs")
    print(f"{failed} calls that PyTorch does not take")


main()
