#!/usr/bin/env python3
"""Makes tests/nn/goldens.h: what PyTorch's layers compute, forward and backward, for inputs that both sides make from a
formula. Needs PyTorch:  python3 tests/goldens/nn.py
"""
import os

import torch
from torch import nn


def values(shape, seed):
    """The same numbers as fill() in tests/nn/layers_test.cpp."""
    n = 1
    for size in shape:
        n *= size
    i = torch.arange(n, dtype=torch.float64)
    return torch.sin(i * 0.7 + seed).mul(0.8).reshape(shape)


OUT = []


def put(name, t):
    numbers = ", ".join(f"{v:.12g}" for v in t.detach().reshape(-1).tolist())
    OUT.append(f"inline const std::vector<double> {name} = {{{numbers}}};")


def run(name, module, inputs, call=lambda module, x: module(*x), together=False):
    for k, p in enumerate(module.parameters()):
        p.data = values(p.shape, 1 + k)
    for x in inputs:
        if x.is_floating_point():
            x.requires_grad_()
    outputs = call(module, inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum((y * values(y.shape, 20 + k)).sum() for k, y in enumerate(outputs))
    loss.backward()
    for k, y in enumerate(outputs):
        put(f"{name}_y{k}", y)
    if together:  # the gradients of all parameters, one after the other
        put(f"{name}_parameters", torch.cat([p.grad.reshape(-1) for p in module.parameters()]))
    else:
        for key, p in module.named_parameters():
            put(f"{name}_{key}", p.grad)
    for k, x in enumerate(inputs):
        if x.is_floating_point():
            put(f"{name}_x{k}", x.grad)


torch.set_default_dtype(torch.float64)
run("linear", nn.Linear(3, 4), [values((2, 3), 10)])
run("layer_norm", nn.LayerNorm((3, 4)), [values((2, 3, 4), 10)])
run("bilinear", nn.Bilinear(3, 2, 4), [values((2, 3), 10), values((2, 2), 11)])
run("prelu", nn.PReLU(3), [values((2, 3, 2), 10)])
run("embedding", nn.Embedding(5, 3, padding_idx=1), [torch.tensor([[0, 1, 4], [4, 2, 0]])])
run("rnn", nn.RNNCell(3, 4), [values((2, 3), 10), values((2, 4), 11)])
run("gru", nn.GRUCell(3, 4), [values((2, 3), 10), values((2, 4), 11)])
run("lstm", nn.LSTMCell(3, 4), [values((2, 3), 10), values((2, 4), 11), values((2, 4), 12)],
    lambda module, x: module(x[0], (x[1], x[2])))


def with_lengths(module, x):
    """The input and the states of a layer over sequences of lengths 2, 4, 1 and 4, as tests/nn/recurrent_test.cpp has them."""
    packed = nn.utils.rnn.pack_padded_sequence(x[0], torch.tensor([2, 4, 1, 4]), enforce_sorted=False)
    state = (x[1], x[2]) if len(x) == 3 else x[1]
    y, last = module(packed, state)
    y, _ = nn.utils.rnn.pad_packed_sequence(y, total_length=x[0].shape[0])
    return (y, *last) if isinstance(last, tuple) else (y, last)


def with_states(module, x):
    y, last = module(x[0], (x[1], x[2]) if len(x) == 3 else x[1])
    return (y, *last) if isinstance(last, tuple) else (y, last)


def sequences(n_states):
    return [values((5, 4, 3), 10)] + [values((4, 4, 2), 11 + k) for k in range(n_states)]


run("rnn_layers", nn.RNN(3, 2, 2, bidirectional=True), sequences(1), with_states)
run("gru_layers", nn.GRU(3, 2, 2, bidirectional=True), sequences(1), with_states)
run("lstm_layers", nn.LSTM(3, 2, 2, bidirectional=True), sequences(2), with_states)
run("rnn_lengths", nn.RNN(3, 2, 2, nonlinearity="relu", bidirectional=True), sequences(1), with_lengths)
run("gru_lengths", nn.GRU(3, 2, 2, bidirectional=True), sequences(1), with_lengths)
run("lstm_lengths", nn.LSTM(3, 2, 2, bidirectional=True), sequences(2), with_lengths)


def transformer(cls, **options):
    return cls(4, 2, 3, 0.0, activation="gelu", **options)


PADDING = torch.tensor([[False, False, True], [False, True, True]])
LATER = torch.ones(3, 3).triu(1).bool()
run("attention", nn.MultiheadAttention(4, 2, kdim=3, vdim=5), [values((3, 2, 4), 10), values((4, 2, 3), 11), values((4, 2, 5), 12)],
    lambda module, x: module(*x, attn_mask=values((4, 3, 4), 13), average_attn_weights=False), together=True)
run("encoder_layer", transformer(nn.TransformerEncoderLayer, batch_first=True), [values((2, 3, 4), 10)],
    lambda module, x: module(x[0], src_mask=LATER, src_key_padding_mask=PADDING), together=True)
run("decoder_layer", transformer(nn.TransformerDecoderLayer, norm_first=True), [values((3, 2, 4), 10), values((3, 2, 4), 11)],
    lambda module, x: module(*x, tgt_mask=LATER, memory_key_padding_mask=PADDING), together=True)

run("transformer", nn.Transformer(4, 2, 2, 1, 3, 0.0), [values((3, 2, 4), 10), values((4, 2, 4), 11)],
    lambda module, x: module(*x, tgt_mask=torch.ones(4, 4).triu(1).bool(), src_key_padding_mask=PADDING,
                             memory_key_padding_mask=PADDING), together=True)

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nn", "goldens.h"), "w") as file:
    file.write("// Made by tests/goldens/nn.py. Outputs are name_y0, ...; the rest are gradients.\n#pragma once\n\n"
               "#include <vector>\n\nnamespace goldens {\n\n// clang-format off\n")
    file.write("\n".join(OUT) + "\n// clang-format on\n\n}  // namespace goldens\n")
