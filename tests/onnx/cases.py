"""Writes the tests that the Python package onnx carries, each into a folder of its own: model.onnx, tolerance (relative
and absolute), and values.onnx, whose initializers are the inputs i0, i1... and the outputs o0, o1... There are no
values where they are not all tensors.

usage: cases.py FOLDER [WORD]
"""
import pathlib
import sys
import warnings

import numpy
import onnx
from onnx import helper, numpy_helper
from onnx.backend.test import loader, runner

warnings.simplefilter("ignore")  # the tests compute infinities as they are loaded
folder, word = pathlib.Path(sys.argv[1]), "".join(sys.argv[2:])
data = pathlib.Path(loader.DATA_DIR)


def read(path):
    return onnx.load_tensor(str(path))


def files(place, kind):
    return [read(place / f"{kind}_{i}.pb") for i in range(len(list(place.glob(f"{kind}_*.pb"))))]


def contents(case):
    """Its model, inputs and outputs."""
    if case.model is not None:
        return (case.model, *case.data_sets[0])
    if case.model_dir:
        place = pathlib.Path(case.model_dir)
        return onnx.load(place / "model.onnx"), *(files(place / "test_data_set_0", kind) for kind in ("input", "output"))
    path = data / "light" / pathlib.Path(case.url).name  # a network whose weights are all alike
    model = onnx.load(path)
    weights = {entry.name for entry in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in weights]
    return model, [runner.Runner.generate_dummy_data(entry) for entry in inputs], \
        [read(path.with_name(path.stem + "_output_0.pb"))]


def tensor(value, name):
    entry = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(numpy.asarray(value))
    entry.name = name
    return entry


def write(case):
    place = folder / case.name
    place.mkdir(parents=True)
    model, inputs, outputs = contents(case)
    onnx.save(model, place / "model.onnx")
    (place / "tolerance").write_text(f"{case.rtol} {case.atol}")
    if not all(isinstance(value, (numpy.ndarray, numpy.generic, onnx.TensorProto)) for value in [*inputs, *outputs]):
        return
    tensors = [tensor(value, f"i{i}") for i, value in enumerate(inputs)]
    tensors += [tensor(value, f"o{i}") for i, value in enumerate(outputs)]
    last = helper.make_tensor_value_info(tensors[-1].name, tensors[-1].data_type, None)
    onnx.save(helper.make_model(helper.make_graph([], "values", [], [last], tensors)), place / "values.onnx")


for kind in "node", "simple", "pytorch-converted", "pytorch-operator", "real":
    for each in loader.load_model_tests(kind=kind):
        if word in each.name:
            write(each)
