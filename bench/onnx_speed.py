"""onnx_speed.py FOLDER PROGRAM [SECONDS]: models of torchvision, exported as ONNX into FOLDER, in onnxruntime and in Tapir's compiled graphs (PROGRAM
is onnx_speed), one thread, in turn, the best run of each. Weights are random: they change no time. Fails where outputs differ by more than 1e-4
of the largest number."""
import math
import os
import pathlib
import subprocess
import sys
import time
import warnings

import numpy as np
import onnxruntime as ort

warnings.filterwarnings("ignore")
ort.set_default_logger_severity(4)
folder, program = pathlib.Path(sys.argv[1]), sys.argv[2]
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 2
MODELS = ["resnet18", "mobilenet_v3_small", "squeezenet1_1", "googlenet", "efficientnet_b0", "densenet121", "shufflenet_v2_x1_0", "regnet_x_400mf",
          "deeplabv3_mobilenet_v3_large", "vit_b_16"]


def make(name):
    """Returns the model, with statistics and a last layer that are not 0 and 1."""
    import torch
    import torchvision

    torch.manual_seed(0)
    if name.startswith("deeplab"):
        class Output(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None)

            def forward(self, x):
                return self.model(x)["out"]

        model = Output()
    else:
        options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
        model = getattr(torchvision.models, name)(weights=None, **options)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    if name.startswith("vit"):
        torch.nn.init.normal_(model.heads.head.weight, std=0.02)
    return model.eval()


def export(name, batch):
    path = folder / f"{name}_{batch}.onnx"
    if not path.exists():
        import torch

        x = torch.randn(batch, 3, 224, 224)
        torch.onnx.export(make(name), (x,), str(folder / "made"), dynamo=False, opset_version=17, input_names=["x"], output_names=["y"])
        np.savez(path.with_suffix(".npz"), x=x.numpy())
        os.replace(folder / "made", path)
    return path


def in_onnxruntime(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = {"x": np.load(path.with_suffix(".npz"))["x"]}
    y = session.run(None, x)[0]
    best, start, turns = math.inf, time.perf_counter(), 0
    while turns < 3 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        session.run(None, x)
        best = min(best, time.perf_counter() - before)
        turns += 1
    return best * 1e3, y


def in_tapir(path):
    output = path.with_suffix(".out.npz")
    run = subprocess.run([program, path, path.with_suffix(".npz"), output, str(seconds)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{path.name}: {run.stderr}")
    return float(run.stdout), np.load(output)["y"]


print(f"onnxruntime {ort.__version__}, one thread, ms\n\n| model | batch | onnxruntime | Tapir | ratio |\n|---|---|---|---|---|")
ratios, bad = [], 0
for batch in [1, 8]:
    for name in MODELS:
        path = export(name, batch)
        theirs, ours = math.inf, math.inf
        for _ in range(2):
            t, wanted = in_onnxruntime(path)
            theirs = min(theirs, t)
            t, y = in_tapir(path)
            ours = min(ours, t)
        error = np.abs(y - wanted).max() / np.abs(wanted).max()
        ratios.append(theirs / ours)
        note = "" if error < 1e-4 else f" differs by {error:.1e}"
        bad += not error < 1e-4
        print(f"| {name} | {batch} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.2f}{note} |", flush=True)
print(f"\nGeometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}, least {min(ratios):.2f}")
sys.exit(1 if bad else 0)
