"""check.py FOLDER: reads what write.cpp wrote with the tensorboard package, and compares."""
import io
import json
import os
import sys
import time
import urllib.parse
import urllib.request

import numpy
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

import serve

folder = sys.argv[1]


def accumulator(run, module=plugin_event_accumulator):
    guidance = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}  # 0: all
    return module.EventAccumulator(os.path.join(folder, run), size_guidance=guidance).Reload()


def scalars(run, tag):
    # What pages show goes through this loader, which makes tensors of old-style scalars.
    return [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in run.Tensors(tag)]


def same(what, actual, expected):
    assert numpy.array_equal(actual, expected), f"{what}: {actual!r}, not {expected!r}"


def check_files():
    run = accumulator("run")
    loss = scalars(run, "loss/train")
    same("steps", [s for s, _ in loss], list(range(50)))
    assert numpy.allclose([v for _, v in loss], numpy.exp(-0.1 * numpy.arange(50)), rtol=1e-6)
    assert numpy.isnan(scalars(run, "loss/nan")[0][1])
    same("add_scalars", scalars(accumulator("run/both_test"), "both"), [(1, 2.0)])
    for tag in ("loss/train", "weights", "image", "notes/text_summary"):
        kind = {"loss/train": "scalars", "weights": "histograms", "image": "images", "notes/text_summary": "text"}[tag]
        same("plugin of " + tag, run.SummaryMetadata(tag).plugin_data.plugin_name, kind)

    # Histograms: rows of left edge, right edge, count; against numpy with PyTorch's edges.
    edges, edge = [], 1e-12
    while edge < 1e20:
        edges.append(edge)
        edge *= 1.1
    edges = [-e for e in reversed(edges)] + [0.0] + edges
    weights = numpy.load(os.path.join(folder, "weights.npy"))
    histograms = run.Tensors("weights")
    same("histograms", len(histograms), 5)
    rows = tensor_util.make_ndarray(histograms[0].tensor_proto)
    counts, _ = numpy.histogram(weights, bins=edges)
    first, last = numpy.flatnonzero(counts)[[0, -1]]
    same("counts", rows[:, 2], counts[first : last + 1])
    same("edges", rows[:-1, 1], numpy.float32(edges[first + 1 : last + 1]))
    same("ends", rows[[0, -1], [0, 1]], [weights.min(), weights.max()])
    same("all of them", rows[:, 2].sum(), 2000)
    same("empty histogram", tensor_util.make_ndarray(run.Tensors("no values")[0].tensor_proto)[:, 2].sum(), 0)

    def image_of(tag):
        width, height, data = tensor_util.make_ndarray(run.Tensors(tag)[0].tensor_proto)
        pixels = numpy.asarray(Image.open(io.BytesIO(data)))
        same("size of " + tag, [int(height), int(width)], pixels.shape[:2])
        return pixels

    image = numpy.load(os.path.join(folder, "image.npy"))
    same("image", image_of("image"), (image * numpy.float32(255)).astype(numpy.uint8).transpose(1, 2, 0))
    digits = numpy.load(os.path.join(folder, "digits.npy"))
    grid = numpy.zeros((28, 8 * 14), numpy.uint8)
    for i in range(12):
        grid[i // 8 * 14 :, i % 8 * 14 :][:14, :14] = digits[i, 0]
    same("grid", image_of("digits"), grid)

    text = tensor_util.make_ndarray(run.Tensors("notes/text_summary")[0].tensor_proto)
    same("text", text.tolist(), ["# A title\n\nand **bold** text, grüß".encode()])

    graph = run.Graph()
    nodes = {n.name: n for n in graph.node}
    same("input", nodes["0_Conv2d/convolution"].input, ["input", "0_Conv2d/weight", "0_Conv2d/bias"])
    same("shape", [d.size for d in nodes["0_Conv2d/convolution"].attr["_output_shapes"].list.shape[0].dim], [4, 32, 28, 28])
    traced = {n.name: n for n in accumulator("traced").Graph().node}
    same("input", traced["0_Conv2d/convolution"].input, ["images", "0_Conv2d/weight", "0_Conv2d/bias"])
    shape = traced["0_Conv2d/convolution"].attr["_output_shapes"].list.shape[0].dim
    same("shape", [d.size for d in shape], [-1, 32, 28, 28])
    assert b"write.cpp:" in traced["log_softmax"].attr["line"].s and b"dim=1" in traced["log_softmax"].attr["attributes"].s
    same("output", traced["output"].input, ["log_softmax"])
    tree = accumulator("tree").Graph()
    names = [n.name for n in tree.node]
    assert len(set(names)) == len(names)
    assert {i.split(":")[0] for n in tree.node for i in n.input} <= set(names)
    same("boxes", sorted({n.split("/")[0] for n in names if "/" in n}), ["cell", "classifier", "embedding"])
    same("nodes of the tree", len({n.split("/")[1] for n in names if n.startswith("cell/call_")}), 199)

    trial = accumulator("run/trial0")
    content = {
        tag: plugin_data_pb2.HParamsPluginData.FromString(data) for tag, data in trial.PluginTagToContent("hparams").items()
    }
    start = content["_hparams_/session_start_info"].session_start_info.hparams
    same("lr", start["lr"].number_value, 0.1)
    same("optimizer", start["optimizer"].string_value, "sgd")
    same("nesterov", start["nesterov"].WhichOneof("kind"), "bool_value")
    infos = content["_hparams_/experiment"].experiment.hparam_infos
    same("domain", [v.string_value for v in infos[1].domain_discrete.values], ["sgd", "adam"])
    same("metric", scalars(trial, "hparam/accuracy"), [(0, 0.5)])

    # The accumulator that programs use.
    plain = accumulator("run", event_accumulator)
    same("scalar", plain.Scalars("accuracy")[10].value, numpy.float32(1 - numpy.exp(-1)))
    same("histogram", list(plain.Histograms("weights")[0].histogram_value.bucket), [0, *counts[first : last + 1]])
    same("image", [plain.Images("image")[0].width, plain.Images("image")[0].step], [48, 2])

    same("after a crash", scalars(accumulator("crashed"), "loss"), [(50, 2.0)])


def check_server():
    """What the web page asks for, from a real server (its data come through TensorBoard's other loader, in Rust)."""
    with serve.tensorboard(folder) as (server, address):

        def get(path, body=None, **query):
            url = f"{address}/data/{path}?{urllib.parse.urlencode(query)}"
            data = json.dumps(body).encode() if body is not None else None
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"} if data else {})
            return urllib.request.urlopen(request, timeout=30).read()

        deadline = time.time() + 90
        tags = {}
        while "tree" not in tags or "loss/train" not in tags.get("run", {}):
            assert server.poll() is None, "the server ended"
            assert time.time() < deadline, f"the server shows only {tags}"
            time.sleep(0.3)
            try:
                tags = json.loads(get("plugin/scalars/tags"))
            except OSError:
                pass
        same("scalars", len(json.loads(get("plugin/scalars/scalars", run="run", tag="loss/train"))), 50)
        same("histograms", len(json.loads(get("plugin/histograms/histograms", run="run", tag="weights"))), 5)
        same("distributions", len(json.loads(get("plugin/distributions/distributions", run="run", tag="weights"))), 5)
        assert "image" in json.loads(get("plugin/images/tags"))["run"]
        assert "<strong>bold</strong>" in get("plugin/text/text", run="run", tag="notes/text_summary").decode()
        assert "cell/call_7/" in get("plugin/graphs/graph", run="tree").decode()
        request = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "startIndex": 0, "sliceSize": 100}
        groups = json.loads(get("plugin/hparams/session_groups", request))["sessionGroups"]
        same("trials", sorted(g["hparams"]["lr"] for g in groups), [0.1, 0.2, 0.1 * 3])
        same("projector", json.loads(get("plugin/projector/runs")), ["run"])
        config = json.loads(get("plugin/projector/info", run="run"))["embeddings"][0]
        same("shape", config["tensorShape"], [30, 4])
        points = numpy.frombuffer(get("plugin/projector/tensor", run="run", name="points:00001"), numpy.float32)
        same("points", points.reshape(30, 4), numpy.load(os.path.join(folder, "points.npy")))
        same("labels", get("plugin/projector/metadata", run="run", name="points:00001").decode().splitlines()[:2], ["point 0", "point 1"])
        sprite = Image.open(io.BytesIO(get("plugin/projector/sprite_image", run="run", name="points:00001")))
        same("sprite", sprite.size, (48, 48))


check_files()
check_server()
print("tensorboard reads every kind")
