#!/usr/bin/python3
"""check.py RUN_MODEL: models that PyTorch exports give the same numbers, and the same gradients, in Tapir. Ends with 77 where there is
no PyTorch."""
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    print("no PyTorch: not tested")
    sys.exit(77)

warnings.filterwarnings("ignore")
torch.manual_seed(1)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(8)
        self.bn1.running_mean.normal_()
        self.bn1.running_var.uniform_(0.5, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = F.gelu(x + self.bn2(self.conv2(x)))
        x = F.hardswish(F.avg_pool2d(x, 2, ceil_mode=True))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.mid = nn.Conv2d(2, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, 2, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        a = F.silu(self.norm(self.down(x)))
        b = self.up(F.max_pool2d(a, 2))
        c = F.interpolate(F.max_pool2d(a, 2), scale_factor=2, mode="bilinear", align_corners=False)
        d = F.interpolate(c, scale_factor=2, mode="nearest")
        return F.log_softmax(self.mid(torch.cat([b, c], 1)), 1), F.pad(d, (1, 2, 0, 1), mode="reflect")


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(10, 3)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.out(y)


class Attention(nn.Module):
    """An encoder layer by hand, with a causal mask made of sizes, as language models have it."""

    def __init__(self, vocabulary=11, width=8, heads=2):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, ids):
        b, t = ids.shape
        h = self.token(ids) + self.place(torch.arange(t, device=ids.device))
        q, k, v = self.qkv(self.norm1(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
        h = h + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))
        h = h + self.mlp(self.norm2(h))
        return h @ self.token.weight.t()


def encoder_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return layer.train()  # eval() would take a path that is no ONNX


def cases():
    yield "cnn", Cnn().eval(), [torch.randn(2, 3, 33, 33)], {0: "batch"}, [torch.randn(5, 3, 33, 33)]
    yield "unet", Unet().eval(), [torch.randn(2, 2, 8, 12)], {0: "batch"}, [torch.randn(3, 2, 8, 12)]
    for kind in nn.LSTM, nn.GRU, nn.RNN:
        yield kind.__name__.lower(), Recurrent(kind).eval(), [torch.randn(2, 7, 6)], {1: "time"}, [torch.randn(2, 12, 6)]
        yield kind.__name__.lower() + "_batch", Recurrent(kind).eval(), [torch.randn(2, 7, 6)], {0: "batch"}, [torch.randn(4, 7, 6)]
    yield "attention", Attention().eval(), [torch.randint(11, (2, 6))], {0: "batch", 1: "time"}, [torch.randint(11, (3, 9))]
    yield "encoder_layer", encoder_layer(), [torch.randn(2, 5, 8)], {0: "batch"}, [torch.randn(3, 5, 8)]


def check(name, model, inputs, axes, others, folder):
    path = os.path.join(folder, name + ".onnx")
    for parameter in model.parameters():  # the export makes one of several that are equal
        parameter.data += 0.1 * torch.randn_like(parameter)
    outputs = model(*inputs)
    names = ["out_%d" % i for i in range(len(outputs) if isinstance(outputs, tuple) else 1)]
    torch.onnx.export(model, tuple(inputs), path, input_names=["x"], output_names=names, dynamic_axes={"x": axes},
                      opset_version=16, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)
    compared = 0
    for x in inputs, others:
        given, got = os.path.join(folder, "in.npz"), os.path.join(folder, "out.npz")
        numpy.savez(given, x=x[0].numpy())
        ran = subprocess.run([sys.argv[1], path, given, got], capture_output=True, text=True)
        assert ran.returncode == 0, (name, ran.stdout)
        results = numpy.load(got)
        model.zero_grad()
        wanted = model(*x)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        sum(w.sum() for w in wanted).backward()
        for out, want in zip(names, wanted):
            numpy.testing.assert_allclose(results[out], want.detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
        for weight, parameter in model.named_parameters():
            key = "grad." + weight  # others were rearranged by the export: transposed, gates in another order
            if key in results and results[key].shape == tuple(parameter.shape) and parameter.grad is not None:
                numpy.testing.assert_allclose(results[key], parameter.grad.numpy(), rtol=1e-4, atol=1e-4, err_msg=name + " " + key)
                compared += 1
    print("%-14s %s, %d gradients compared" % (name, ran.stdout.strip(), compared))


with tempfile.TemporaryDirectory() as folder:
    for case in cases():
        check(*case, folder)
