"""generate.py FOLDER: writes the cases of ONNX's backend tests, as the onnx package at hand makes them, into FOLDER/node and
FOLDER/simple: CASE/model.onnx with CASE/test_data_set_N/input_I.pb and output_I.pb."""
import os
import pathlib
import sys
import warnings

from onnx import TensorProto, numpy_helper
from onnx.backend.test.case import model, node


def proto_of(value, info):
    """The message of a value, by what the graph says of it."""
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    if kind == "map_type":
        return numpy_helper.from_dict(value, info.name)
    return value if isinstance(value, TensorProto) else numpy_helper.from_array(value, info.name)


def write_case(case, folder):
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    for i, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{i}"
        data.mkdir()
        for called, values, infos in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
            for k, (value, info) in enumerate(zip(values, infos)):
                (data / f"{called}_{k}.pb").write_bytes(proto_of(value, info).SerializeToString())


def main():
    folder = pathlib.Path(sys.argv[1])
    warnings.simplefilter("ignore")  # casts that overflow are what some cases are for
    for case in [*node.collect_testcases(), *model.collect_testcases()]:
        if case.model is not None:  # else one to be fetched
            write_case(case, folder / case.kind / case.name)


main()
