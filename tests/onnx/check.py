"""check.py FOLDER [-v]: the models that write.cpp has written, checked by onnx.checker and run by onnxruntime: the same numbers."""
import collections
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort

ort.set_default_logger_severity(4)
folder, verbose = pathlib.Path(sys.argv[1]), "-v" in sys.argv


def read(data, what):
    arrays = []
    while (path := data / f"{what}_{len(arrays)}.npy").exists():
        arrays.append(np.load(path))
    return arrays


def problem(case, is_random):
    try:
        onnx.checker.check_model(str(case / "model.onnx"), full_check=True)
    except Exception as error:
        return "checker: " + str(error)
    try:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(str(case / "model.onnx"), options, providers=["CPUExecutionProvider"])
        data = case / "test_data_set_0"
        given = {f"x{i}": x for i, x in enumerate(read(data, "input"))}
        got = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})
    except Exception as error:
        return "onnxruntime: " + str(error)
    wanted, exact = read(data, "output"), read(data, "exact")
    if len(got) != len(wanted):
        return f"numbers: {len(got)} outputs, not {len(wanted)}"
    for i, (a, b) in enumerate(zip(got, wanted)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"numbers: output {i} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        if is_random or a.size == 0:
            continue
        if a.dtype == bool or np.issubdtype(a.dtype, np.integer):
            if not np.array_equal(a, b):
                return f"numbers: output {i} differs: {a.ravel()[:6]} not {b.ravel()[:6]}"
            continue
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1e-3)
        tolerance = 2e-3 if a.dtype == np.float16 else 1e-4
        near = np.isclose(a, b, rtol=tolerance, atol=tolerance * min(scale, 1) * 0.3, equal_nan=True)
        if exact and exact[i].shape == b.shape:  # of ill-conditioned problems: no worse than what rounding does to Tapir
            with np.errstate(all="ignore"):
                near |= np.abs(a - exact[i]) <= 10 * np.max(np.abs(b - exact[i]), initial=0, where=np.isfinite(b) & np.isfinite(exact[i]))
        if not near.all():
            k = np.argmin(near)
            return f"numbers: output {i} differs: {a.ravel()[k]} not {b.ravel()[k]} at {k}: {a.ravel()[:4]} {b.ravel()[:4]}"
    return ""


counts = collections.Counter()
per_op = collections.defaultdict(lambda: collections.Counter())
rows = [line.rstrip("\n").split("\t") for line in open(folder / "ops.tsv")]
failures = []
for name, op, kind, state, what, result in rows:
    if state in ("ok", "random"):
        result = problem(folder / name, state == "random")
        state = result.split(":")[0] if result else "ok"
    counts[kind, state] += 1
    per_op[op, kind][state] += 1
    if state != "ok":
        failures.append((op, kind, name, state, what, result))
for op, kind, name, state, what, result in failures:
    print(f"{name}  [{what}]\n    {result[:600 if verbose else 240]}")
for kind in ("forward", "gradient"):
    ops = [op for (op, k) in per_op if k == kind]
    good = [op for op in ops if set(per_op[op, kind]) == {"ok"}]
    print(kind, "calls:", {state: n for (k, state), n in counts.items() if k == kind}, f"ops: {len(good)} of {len(ops)}")
sys.exit(1 if failures else 0)
