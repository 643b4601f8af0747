"""check.py FOLDER...: the models that ops.cpp and models.cpp have written, checked by onnx.checker and run by onnxruntime: the same numbers.

Fails for each call that is not the same and is not in KNOWN, and for each in KNOWN that is the same by now.
"""
import collections
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort

# What is not as Tapir has it: (op, forward or gradient, how) -> why
KNOWN = {
    ("parametric_relu", "forward", "numbers"): "PRelu gives 0 for 0 * inf and 0 * nan, which are nan",
    ("index", "gradient", "untraced"): "by a mask, the weights that the test gives to elements have sizes that depend on data",
    ("repeat_interleave", "gradient", "untraced"): "as above, by counts",
    ("parametric_relu", "named", "numbers"): "as above",
    ("pow", "dtype", "numbers"): "of integers whose power is too large for their type: it wraps here, onnxruntime computes in floating point",
    # Of images whose sizes are named dimensions: windows that are no regular ones are constants of the model
    ("avg_pool", "named", "refused"): "adaptive, with a divisor, or with ceil_mode where windows may begin beyond the image",
    ("max_pool", "named", "refused"): "adaptive, to more than one element",
    ("max_pool_backward", "named", "refused"): "as above",
    ("interpolate", "named", "refused"): "area, which is adaptive",
    ("convolution", "named", "refused"): "of a kernel whose size, and so the padding, is a named dimension",
    ("conv_weight", "named", "onnxruntime"): "of a batch that onnxruntime takes for channels that are one",
    ("group_norm", "named", "refused"): "as many groups as channels, whose number is a named dimension",
    # Of matrices whose sizes are named dimensions: Jacobi's pairs are a constant of the model
    ("linalg_eigh", "named", "refused"): "Jacobi's method",
    ("linalg_eigvalsh", "named", "refused"): "Jacobi's method",
    ("linalg_matrix_rank", "named", "refused"): "Jacobi's method",
    ("linalg_pinv", "named", "refused"): "Jacobi's method",
    ("linalg_svd", "named", "refused"): "Jacobi's method",
    ("linalg_svdvals", "named", "refused"): "Jacobi's method",
    ("pdist", "named", "refused"): "indices of a triangle are a constant of the model",
    ("place", "named", "onnxruntime"): "the part has sizes of its own",
}

# What onnxruntime has of float32 alone: Acos, Asin, Atan, Erf, Det, Conv, AveragePool, Resize, and GridSample before opset 20
for op in ("acos", "asin", "atan", "atan2", "avg_pool", "batch_norm", "conv_transpose", "convolution", "erf", "erfc", "erfinv", "gelu", "grid_sample",
           "interpolate", "linalg_det", "conv_weight"):
    for kind in ("float64", "float64_gradient"):
        KNOWN[op, kind, "onnxruntime"] = "onnxruntime has no such operator of float64"
KNOWN["linalg_slogdet", "float64", "onnxruntime"] = KNOWN["avg_pool_gradient", "float64_gradient", "onnxruntime"] = "as above"
KNOWN["parametric_relu", "float64", "numbers"] = KNOWN["parametric_relu", "forward", "numbers"]
for op in ("index", "repeat_interleave"):
    KNOWN[op, "float64_gradient", "untraced"] = KNOWN[op, "gradient", "untraced"]

ort.set_default_logger_severity(4)


def read(data, what):
    arrays = []
    while (path := data / f"{what}_{len(arrays)}.npy").exists():
        arrays.append(np.load(path))
    return arrays


def difference(got, wanted, exact):
    if len(got) < len(wanted):
        return f"{len(got)} outputs, not {len(wanted)}"
    for i, (a, b) in enumerate(zip(got, wanted)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        if a.dtype == bool or np.issubdtype(a.dtype, np.integer):
            if not np.array_equal(a, b):
                return f"output {i} differs: {a.ravel()[:6]}, not {b.ravel()[:6]}"
            continue
        tolerance = 1e-9 if b.dtype == np.float64 else 1e-4
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-3)
        near = np.isclose(a, b, rtol=tolerance, atol=tolerance * min(scale, 1) * 0.3, equal_nan=True)
        if exact and exact[i].shape == b.shape:  # of ill-conditioned problems: no worse than what rounding does to Tapir
            with np.errstate(all="ignore"):
                near |= np.abs(a - exact[i]) <= 10 * np.max(np.abs(b - exact[i]), initial=0, where=np.isfinite(b) & np.isfinite(exact[i]))
        if not near.all():
            k = np.argmin(near)
            return f"output {i} differs: {a.ravel()[k]}, not {b.ravel()[k]} at {k}: {a.ravel()[:4]} {b.ravel()[:4]}"
    return ""


def problem(case, is_random):
    try:
        onnx.checker.check_model(str(case / "model.onnx"), full_check=True)
    except Exception as error:
        return "checker: " + str(error)
    try:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(str(case / "model.onnx"), options, providers=["CPUExecutionProvider"])
        for data in sorted(case.glob("test_data_set_*")):
            given = dict(zip([i.name for i in session.get_inputs()], read(data, "input")))
            got = session.run(None, given)
            wanted = read(data, "output")
            if is_random:
                got = [np.zeros_like(a) for a in got]
                wanted = [np.zeros_like(a) for a in wanted]
            if what := difference(got, wanted, [] if is_random else read(data, "exact")):
                return f"numbers: {data.name}: {what}"
    except Exception as error:
        return "onnxruntime: " + str(error)
    return ""


bad = 0
for folder in map(pathlib.Path, sys.argv[1:]):
    counts = collections.defaultdict(collections.Counter)
    states = collections.defaultdict(set)
    known = set()
    here = folder / "known.tsv"  # more of KNOWN
    KNOWN.update({tuple(row[:3]): row[3] for row in (line.rstrip("\n").split("\t") for line in (open(here) if here.exists() else []))})
    for line in open(folder / "table.tsv"):
        name, op, kind, state, what, result = line.rstrip("\n").split("\t")
        if state in ("ok", "random"):
            result = problem(folder / name, state == "random")
            state = result.split(":")[0] if result else "ok"
        counts[kind][state] += 1
        states[kind, op].add(state)
        if state == "ok":
            continue
        if (op, kind, state) in KNOWN:
            known.add((op, kind, state))
            continue
        bad += 1
        print(f"{name}  [{what}]\n    {result[:400]}")
    for kind, of_kind in counts.items():
        ops = [op for k, op in states if k == kind]
        good = [op for op in ops if states[kind, op] == {"ok"}]
        print(f"{kind}: calls {dict(of_kind)}; all calls of {len(good)} of {len(ops)} agree")
    for op, kind, state in KNOWN.keys() - known:
        if (kind, op) in states:
            bad += 1
            print(f"{op}, {kind}: no longer {state}; take it out of KNOWN")
sys.exit(1 if bad else 0)
