"""The work of cuda_tapir on PyTorch, eager: reads a work of cuda_work.txt a line and answers as cuda_tapir does.

cuda_torch.py [--smoke] [--device cpu]. On the CPU only to try it out (with --smoke): the times mean nothing there.
"""

import argparse
import math
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

TREES_PER_STEP = 25
CHECKED_STEPS = 3
BATCH = 500

options = argparse.ArgumentParser()
options.add_argument("--smoke", action="store_true")
options.add_argument("--device", default="cuda")
options = options.parse_args()
smoke, device = options.smoke, torch.device(options.device)
on_gpu = device.type == "cuda"


def synchronize():
    if on_gpu:
        torch.cuda.synchronize()


def median_of(rounds, one):
    return statistics.median(one() for _ in range(1 if smoke else rounds))


# --- Ways to time: as in cuda_tapir.cpp ---


def host_time(ops):
    count = 5 if smoke else BATCH

    def one():
        synchronize()
        return ops(count) / count

    for _ in range(1 if smoke else 3):
        one()
    return median_of(15, one)


def timed(op):
    begin = time.perf_counter()
    op()
    return time.perf_counter() - begin


def repeat(op, count):
    for _ in range(count):
        op()


def device_time(op):
    count = 1 if smoke else 10

    def one():
        if not on_gpu:
            return timed(lambda: repeat(op, count)) / count
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        repeat(op, count)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / count

    one()
    return median_of(7, one)


def wall_time(count, step):
    count = 1 if smoke else count

    def whole():
        repeat(step, count)
        synchronize()

    def one():
        synchronize()
        return timed(whole) / count

    one()
    return median_of(5, one)


# --- Values ---


def fixed_numbers(shape, seed, scale=1.0):
    """sst.h's fixed_weights(): the states of a linear congruential generator; as many again at each turn, by one factor and one sum."""
    count, mask = math.prod(shape), 2**32 - 1
    factor, added = 1664525, 1013904223
    states = torch.tensor([(factor * seed + added) & mask], device=device)
    while len(states) < count:
        states = torch.cat([states, (states[: count - len(states)] * factor + added) & mask])
        factor, added = factor * factor & mask, (factor + 1) * added & mask
    return (scale * ((states >> 8).float() * 2.0**-23 - 1)).view(shape)


def weight(shape, seed):
    return fixed_numbers(shape, seed, 1 / shape[-1] ** 0.5).requires_grad_()


def some(*shape, dtype=torch.float32):
    return torch.randn(shape, device=device, dtype=dtype)


def leaf(*shape):
    return some(*shape).requires_grad_()


def precision(word):
    torch.set_float32_matmul_precision(word)
    torch.backends.cudnn.allow_tf32 = word == "high"


def train(count, optimizer, loss_of):
    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    check = sum(step().item() for _ in range(CHECKED_STEPS))
    return wall_time(count, step), 1, check


# --- Tiny ops ---


def forward(op):
    return host_time(lambda n: timed(lambda: repeat(op, n))), 1, 0


def backward(op):
    x = leaf(4)

    def ops(n):
        x.grad = None
        y = x
        for _ in range(n):
            y = op(y)
        y = y.sum()
        synchronize()
        return timed(y.backward)

    return host_time(ops), 1, 0


def add_tiny():
    a, b = some(4), some(4)
    return forward(lambda: a + b)


def add_recorded():
    a, b = some(4), leaf(4)
    return forward(lambda: a + b)


def tanh_recorded():
    x = leaf(4)
    return forward(lambda: torch.tanh(x))


def linear_recorded():
    x, w, b = some(1, 64), leaf(64, 64), leaf(64)
    return forward(lambda: F.linear(x, w, b))


def add_backward():
    b = some(4)
    return backward(lambda y: y + b)


def tanh_backward():
    return backward(torch.tanh)


# --- Large ones ---


def moved(x, arrays, op):
    return device_time(op), x.numel() * x.element_size() * arrays, 0


def copy_large(dtype, n):
    x = some(int(n), dtype=getattr(torch, dtype))
    y = torch.empty_like(x)
    return moved(x, 2, lambda: y.copy_(x))


def add_large(dtype, n):
    x = some(int(n), dtype=getattr(torch, dtype))
    y = torch.randn_like(x)
    return moved(x, 3, lambda: x + y)


def tanh_large(dtype, n):
    x = some(int(n), dtype=getattr(torch, dtype))
    return moved(x, 2, lambda: torch.tanh(x))


def softmax_large(dtype, count, width):
    x = some(int(count), int(width), dtype=getattr(torch, dtype))
    return moved(x, 2, lambda: torch.softmax(x, 1))


def layer_norm_large(dtype, count, width):
    x = some(int(count), int(width), dtype=getattr(torch, dtype))
    w, b = torch.ones(int(width), device=device, dtype=x.dtype), torch.zeros(int(width), device=device, dtype=x.dtype)
    return moved(x, 2, lambda: F.layer_norm(x, (int(width),), w, b))


def matmul_square(kind, n):
    n = int(n)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    if kind == "tf32":
        precision("high")
    a, b = some(n, n, dtype=dtype), some(n, n, dtype=dtype)
    return device_time(lambda: torch.matmul(a, b)), 2 * n**3, 0


# --- Training steps ---


def mlp(batch, width, hidden, classes):
    precision("high")
    batch, width, hidden, classes = int(batch), int(width), int(hidden), int(classes)
    w1, b1, w2, b2 = weight((hidden, width), 1), weight((hidden,), 2), weight((classes, hidden), 3), weight((classes,), 4)
    optimizer = torch.optim.SGD([w1, b1, w2, b2], lr=0.01)
    x, target = fixed_numbers((batch, width), 5), torch.arange(batch, device=device) % classes

    return train(50, optimizer, lambda: F.cross_entropy(F.linear(torch.relu(F.linear(x, w1, b1)), w2, b2), target))


def lstm(way, length, batch, width, hidden):
    """way: cells (LSTMCell, a step at a time) or layer (nn.LSTM, which is cuDNN's)."""
    precision("high")
    length, batch, width, hidden = int(length), int(batch), int(width), int(hidden)
    weights = [weight((4 * hidden, width), 1), weight((4 * hidden, hidden), 2), weight((4 * hidden,), 3), weight((4 * hidden,), 4)]
    module = torch.nn.LSTMCell(width, hidden) if way == "cells" else torch.nn.LSTM(width, hidden)
    module.to(device)
    with torch.no_grad():
        for parameter, w in zip(module.parameters(), weights):
            parameter.copy_(w)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    xs, target = fixed_numbers((length, batch, width), 5), fixed_numbers((batch, hidden), 6)
    parts = xs.unbind()

    def loss():
        if way == "cells":
            state = None
            for x in parts:
                state = module(x, state)
            h = state[0]
        else:
            h = module(xs)[1][0][0]
        return F.mse_loss(h, target)

    return train(5, optimizer, loss)


def transformer(way, batch, length, width, heads):
    """way: written (as in cuda_tapir.cpp) or fused (PyTorch's own attention op)."""
    precision("high")
    batch, length, width, heads = int(batch), int(length), int(width), int(heads)
    size = width // heads
    shapes = [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    w = [weight(shape, i + 1) for i, shape in enumerate(shapes)]
    for _ in range(2):
        w += [torch.ones(width, device=device, requires_grad=True), torch.zeros(width, device=device, requires_grad=True)]
    optimizer = torch.optim.Adam(w, lr=1e-3)
    x, target = fixed_numbers((batch, length, width), 20), fixed_numbers((batch, length, width), 21)
    fused = getattr(F, "scaled_dot_product_attention", None) if way == "fused" else None

    def loss():
        qkv = F.linear(F.layer_norm(x, (width,), w[8], w[9]), w[0], w[1])
        q, k, v = qkv.view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4).unbind()
        if fused:
            mixed = fused(q, k, v)
        else:
            mixed = torch.matmul(torch.softmax(torch.matmul(q * size**-0.5, k.transpose(-2, -1)), -1), v)
        y = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, width), w[2], w[3])
        z = y + F.linear(F.gelu(F.linear(F.layer_norm(y, (width,), w[10], w[11]), w[4], w[5])), w[6], w[7])
        return F.mse_loss(z, target)

    return train(10, optimizer, loss)


def resnet(blocks, batch, channels, side, classes):
    precision("high")
    blocks, batch, channels, side, classes = int(blocks), int(batch), int(channels), int(side), int(classes)

    def filled(value):
        return torch.full((channels,), float(value), device=device)

    layers = [(fixed_numbers((channels, channels, 3, 3), i + 1, 1 / (9 * channels) ** 0.5).requires_grad_(), filled(1).requires_grad_(),
               filled(0).requires_grad_(), filled(0), filled(1)) for i in range(2 * blocks)]
    last = weight((classes, channels), 100)
    optimizer = torch.optim.SGD([w for layer in layers for w in layer[:3]] + [last], lr=0.01, momentum=0.9)
    x, target = fixed_numbers((batch, channels, side, side), 101), torch.arange(batch, device=device) % classes

    def layer(h, w, scale, shift, mean, var):
        return F.batch_norm(F.conv2d(h, w, padding=1), mean, var, scale, shift, training=True)

    def loss():
        h = x
        for first, second in zip(layers[::2], layers[1::2]):
            h = torch.relu(layer(torch.relu(layer(h, *first)), *second) + h)
        return F.cross_entropy(F.linear(h.mean((2, 3)), last), target)

    return train(10, optimizer, loss)


def convnet_layers(name):
    """The layers of a model of convnets.txt, each a list of words."""
    layers, chosen = [], False
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "convnets.txt"), encoding="utf-8") as file:
        for line in file:
            for layer in line.split("#")[0].split(","):
                words = layer.split()
                if words[:1] == ["model"]:
                    chosen = words[1] == name
                elif words and chosen:
                    layers.append([words[0], *map(int, words[1:])])
    return layers


class ConvNet:
    """A model of convnets.txt, made as ConvNetMaker (convnets.h) makes it, with the weights of cuda_tapir.cpp."""

    def __init__(self, layers, pixels, thinner):
        self.parameters, self.channels, self.side, self.thinner = [], 3, pixels, thinner
        self.layers = [getattr(self, kind)(*numbers) for kind, *numbers in layers]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def weight_and_bias(self, out, *rest):
        for shape, scale in ((out, *rest), (6 / math.prod(rest)) ** 0.5), ((out,), 0.1):
            self.parameters.append(fixed_numbers(shape, len(self.parameters) + 1, scale).requires_grad_())
        return self.parameters[-2:]

    def slide(self, size, stride, padding):
        self.side = (self.side + 2 * padding - size) // stride + 1

    def conv(self, out, size, stride, padding):
        w, b = self.weight_and_bias(out // self.thinner, self.channels, size, size)
        self.channels = out // self.thinner
        self.slide(size, stride, padding)
        return lambda x: torch.relu_(F.conv2d(x, w, b, stride, padding))

    def pool(self, size, stride, padding):
        self.slide(size, stride, padding)
        return lambda x: F.max_pool2d(x, size, stride, padding)

    def inception(self, *sizes):
        ways, channels, joined = [], self.channels, 0
        for inner, out, size in (None, sizes[0], 1), (sizes[1], sizes[2], 3), (sizes[3], sizes[4], 5), (None, sizes[5], 1):
            self.channels = channels
            first = self.conv(inner, 1, 1, 0) if inner else self.pool(3, 1, 1) if ways else lambda x: x
            ways.append((first, self.conv(out, size, 1, size // 2)))
            joined += self.channels
        self.channels = joined
        return lambda x: torch.cat([second(first(x)) for first, second in ways], 1)

    def average(self):
        size, self.side = self.side, 1
        return lambda x: F.avg_pool2d(x, size)

    def linear(self, out):
        w, b = self.weight_and_bias(out // self.thinner, self.channels * self.side**2)
        self.channels, self.side = out // self.thinner, 1
        return lambda x: F.linear(x.flatten(1), w, b)

    def relu(self):
        return torch.relu_


def convnet(kind, part, name, batch, pixels, thinner):
    precision("high" if kind == "tf32" else "highest")
    batch, pixels = int(batch), int(pixels)
    model = ConvNet(convnet_layers(name), pixels, int(thinner))
    x = fixed_numbers((batch, 3, pixels, pixels), 1000)

    def step():
        for p in model.parameters:
            p.grad = None
        (model(x).square().sum() * 0.5).backward()

    torch.backends.cudnn.benchmark = True  # as convnet-benchmarks had it
    try:
        if part == "forward":
            with torch.inference_mode():
                check = model(x).square().mean().item()
                return wall_time(3, lambda: model(x)), batch, check
        step()
        check = sum(p.grad.square().sum().item() for p in model.parameters) ** 0.5
        return wall_time(2, step), batch, check
    finally:
        torch.backends.cudnn.benchmark = False


def read_tree(line, vocabulary):
    """Nodes (label, word or None, left, right), children before parents."""
    tree, open_nodes = [], []
    for token in line.replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            open_nodes.append([None, None, []])
        elif token == ")":
            label, word, children = open_nodes.pop()
            tree.append((label, word, *children) if children else (label, word, None, None))
            if open_nodes:
                open_nodes[-1][2].append(len(tree) - 1)
        elif open_nodes[-1][0] is None:
            open_nodes[-1][0] = int(token)
        else:
            open_nodes[-1][1] = vocabulary.setdefault(token, len(vocabulary))
    return tree


def tree_lstm(h, count):
    """The variant that was fastest on the CPU: 1-d states, the embedding's rows a leaf of each tree's own graph."""
    h, count = int(h), int(count)
    precision("highest")
    vocabulary = {}
    with open(os.path.join(os.environ["TAPIR_SST_DIR"], "train.txt"), encoding="utf-8") as file:
        trees = [read_tree(line, vocabulary) for _, line in zip(range(1000), file)]
    trees = trees[:count]
    examples = [(tree, torch.tensor([n[1] for n in tree if n[1] is not None], device=device),
                 torch.tensor([n[0] for n in tree], device=device)) for tree in trees]

    def fixed(shape, seed):
        return fixed_numbers(shape, seed, 0.1).requires_grad_()

    embedding = fixed((len(vocabulary), h), 1)
    leaf_w, leaf_b, inner_w, inner_b = fixed((3 * h, h), 2), fixed((3 * h,), 3), fixed((5 * h, 2 * h), 4), fixed((5 * h,), 5)
    class_w, class_b = fixed((5, h), 6), fixed((5,), 7)
    optimizer = torch.optim.Adagrad([embedding, leaf_w, leaf_b, inner_w, inner_b, class_w, class_b], lr=0.05)

    def leaf_state(x):
        io, u = torch.addmv(leaf_b, leaf_w, x).split([2 * h, h])
        i, o = torch.sigmoid(io).chunk(2)
        c = i * torch.tanh(u)
        return o * torch.tanh(c), c

    def inner_state(left, right):
        s, u = torch.addmv(inner_b, inner_w, torch.cat([left[0], right[0]])).split([4 * h, h])
        i, f_l, f_r, o = torch.sigmoid(s).chunk(4)
        c = i * torch.tanh(u) + f_l * left[1] + f_r * right[1]
        return o * torch.tanh(c), c

    def logits(tree, x):
        states, rows = [], iter(x.unbind())
        for _, _, left, right in tree:
            states.append(leaf_state(next(rows)) if left is None else inner_state(states[left], states[right]))
        return F.linear(torch.stack([s[0] for s in states]), class_w, class_b)

    def whole():
        words, gradients, losses, total = [], [], [], 0.0
        for i, (tree, leaves, labels) in enumerate(examples):
            x = embedding.detach().index_select(0, leaves).requires_grad_()
            loss = F.cross_entropy(logits(tree, x), labels, reduction="sum")
            loss.backward()
            losses.append(loss.detach())
            words.append(leaves)
            gradients.append(x.grad)
            if (i + 1) % TREES_PER_STEP != 0:
                continue
            total += sum(loss.item() for loss in losses)
            embedding.grad = torch.sparse_coo_tensor(torch.cat(words)[None], torch.cat(gradients), embedding.shape)
            optimizer.step()
            optimizer.zero_grad()
            words, gradients, losses = [], [], []
        return total + sum(loss.item() for loss in losses)

    check = whole()
    return wall_time(1, whole), len(examples), check


WORKS = {
    "launch": None,
    "add": add_tiny,
    "add_recorded": add_recorded,
    "tanh_recorded": tanh_recorded,
    "linear_recorded": linear_recorded,
    "add_backward": add_backward,
    "tanh_backward": tanh_backward,
    "copy": copy_large,
    "add_large": add_large,
    "tanh_large": tanh_large,
    "softmax": softmax_large,
    "layer_norm": layer_norm_large,
    "matmul": matmul_square,
    "mlp": mlp,
    "lstm": lstm,
    "transformer": transformer,
    "resnet": resnet,
    "convnet": convnet,
    "tree_lstm": tree_lstm,
    "tree_lstm_batched": None,
}


def main():
    if on_gpu and not torch.cuda.is_available():
        print("cuda_torch.py: PyTorch sees no CUDA device", file=sys.stderr)
        return 77
    torch.manual_seed(1)
    for line in sys.stdin:
        name, *arguments = line.split()
        precision("highest")
        try:
            if WORKS[name] is None:
                print("none", flush=True)
                continue
            seconds, amount, check = WORKS[name](*arguments)
            if on_gpu:
                synchronize()
                torch.cuda.empty_cache()
            print(f"ok {seconds:.9g} {amount:.9g} {check:.9g}", flush=True)
        except Exception as error:
            print("failed", repr(error).replace("\n", " "), flush=True)
    return 0


sys.exit(main())
