"""ONNX Runtime's side of the benchmark: sessions with all optimisations and spinning threads.

Serves measurements (peer.py).
usage: onnx_peer.py THREADS
"""
import sys
import tempfile

import numpy
import onnx
import onnxruntime
import peer
from onnx import TensorProto, helper, numpy_helper

threads = int(sys.argv[1])


class Net:
    """A graph in the making; the methods append a layer with random weights and give the name of its output."""
    def __init__(self, *shape):
        self.shape, self.nodes, self.weights = shape, [], []
        self.random = numpy.random.RandomState(1)

    def op(self, kind, *inputs, **attributes):
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values, dtype=numpy.float32):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(dtype), name))
        return name

    def weight(self, *shape):
        return self.constant(self.random.randn(*shape) / numpy.sqrt(numpy.prod(shape[1:]) or 1))

    def conv(self, x, channels, filters, size, stride=1, groups=1):
        pads = [size // 2] * 4
        return self.op("Conv", x, self.weight(filters, channels // groups, size, size), self.weight(filters),
                       kernel_shape=[size, size], strides=[stride, stride], pads=pads, group=groups)

    def relu(self, x):
        return self.op("Relu", x)

    def relu6(self, x):
        return self.op("Clip", x, self.constant(numpy.array(0)), self.constant(numpy.array(6)))

    def pool(self, x):
        return self.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])

    def flat(self, x):
        return self.op("Flatten", x, axis=1)

    def dense(self, x, size, units):
        return self.op("Gemm", x, self.weight(units, size), self.weight(units), transB=1)

    def norm(self, x, size):
        """Of rows, as it is exported in operators of this version."""
        distance = self.op("Sub", x, self.op("ReduceMean", x, axes=[1]))
        variance = self.op("ReduceMean", self.op("Mul", distance, distance), axes=[1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.constant(numpy.array(1e-5))))
        scaled = self.op("Mul", self.op("Div", distance, deviation), self.weight(size))
        return self.op("Add", scaled, self.weight(size))

    def gelu(self, x):
        erf = self.op("Erf", self.op("Div", x, self.constant(numpy.sqrt(numpy.array(2)))))
        doubled = self.op("Mul", x, self.op("Add", erf, self.constant(numpy.array(1))))
        return self.op("Mul", doubled, self.constant(numpy.array(0.5)))

    def reshaped(self, x, *shape):
        return self.op("Reshape", x, self.constant(numpy.array(shape), numpy.int64))

    def model(self, output, output_shape):
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, output_shape)], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.checker.check_model(model)
        return model

    def session(self, output, output_shape):
        return start(self.model(output, output_shape))


def start(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def quantized(model):
    """Its weights in 8 bits, by ONNX Runtime's own tool, which goes from file to file."""
    from onnxruntime.quantization import quantize_dynamic
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/quantized.onnx"
        quantize_dynamic(model, path, per_channel=True)
        return onnx.load(path)


def in_bytes(model):
    """Layers and what is between them in 8 bits, by the same tool: uint8 between int8 weights of a scale for each
    channel, which is the fastest that it has."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Images(CalibrationDataReader):
        def __init__(self):
            shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
            random = numpy.random.RandomState(2)
            self.images = iter([{"x": random.rand(*shape).astype(numpy.float32)} for _ in range(4)])

        def get_next(self):
            return next(self.images, None)

    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/in_bytes.onnx"
        quantize_static(model, path, Images(), per_channel=True, activation_type=QuantType.QUInt8,
                        weight_type=QuantType.QInt8)
        return onnx.load(path)


def lenet(batch):
    net = Net(batch, 1, 28, 28)
    x = net.pool(net.relu(net.conv("x", 1, 32, 5)))
    x = net.pool(net.relu(net.conv(x, 32, 64, 5)))
    return net.session(net.dense(net.relu(net.dense(net.flat(x), 3136, 512)), 512, 10), [batch, 10])


def mlp(batch):
    net = Net(batch, 1, 28, 28)
    return net.session(net.dense(net.relu(net.dense(net.flat("x"), 784, 512)), 512, 10), [batch, 10])


def wide(batch):
    net = Net(batch, 4096)
    return net.model(net.dense("x", 4096, 4096), [batch, 4096])


def writer(batch):
    """Over 128 earlier words, whose keys and values are kept."""
    net = Net(batch, 768)
    x = "x"

    def heads(y):
        return net.reshaped(net.dense(y, 768, 768), 12, 1, 64)

    for _ in range(12):
        y = net.norm(x, 768)
        keys = net.op("Concat", net.weight(12, 128, 64), heads(y), axis=1)
        values = net.op("Concat", net.weight(12, 128, 64), heads(y), axis=1)
        scores = net.op("MatMul", heads(y), net.op("Transpose", keys, perm=[0, 2, 1]))
        scores = net.op("Softmax", net.op("Div", scores, net.constant(numpy.array(8))), axis=-1)
        seen = net.reshaped(net.op("MatMul", scores, values), 1, 768)
        x = net.op("Add", x, net.dense(seen, 768, 768))
        hidden = net.gelu(net.dense(net.norm(x, 768), 768, 4 * 768))
        x = net.op("Add", x, net.dense(hidden, 4 * 768, 768))
    return net.model(net.dense(net.norm(x, 768), 768, 50257), [batch, 50257])


def minilm(length):
    net = Net(length, 384)
    x = "x"

    def dense(y, size, units):
        return net.op("Add", net.op("MatMul", y, net.weight(size, units)), net.weight(units))

    def heads(y, *perm):
        return net.op("Transpose", net.reshaped(dense(y, 384, 384), length, 12, 32), perm=perm)

    for _ in range(6):
        scores = net.op("MatMul", heads(x, 1, 0, 2), heads(x, 1, 2, 0))
        scores = net.op("Softmax", net.op("Div", scores, net.constant(numpy.sqrt(numpy.array(32)))), axis=-1)
        seen = net.op("Transpose", net.op("MatMul", scores, heads(x, 1, 0, 2)), perm=[1, 0, 2])
        x = net.norm(net.op("Add", x, dense(net.reshaped(seen, length, 384), 384, 384)), 384)
        hidden = net.gelu(dense(x, 384, 4 * 384))
        x = net.norm(net.op("Add", x, dense(hidden, 4 * 384, 384)), 384)
    return net.model(x, [length, 384])


def policy(batch):
    net = Net(batch, 8)
    x = "x"
    for size in (8, 64):
        x = net.op("Tanh", net.dense(x, size, 64))
    return net.session(net.dense(x, 64, 10), [batch, 10])


def resnet18(batch):
    """As it is exported for prediction: its batch normalisations are folded into the convolutions."""
    net = Net(batch, 3, 32, 32)
    x, channels = net.relu(net.conv("x", 3, 64, 3)), 64
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (stride, 1):
            y = net.conv(net.relu(net.conv(x, channels, filters, 3, stride)), filters, filters, 3)
            shortcut = net.conv(x, channels, filters, 1, stride) if channels != filters else x
            x, channels = net.relu(net.op("Add", y, shortcut)), filters
    return net.model(net.dense(net.flat(net.op("GlobalAveragePool", x)), 512, 10), [batch, 10])


def mobilenet(batch):
    """As it is exported for prediction."""
    net = Net(batch, 3, 96, 96)
    x, channels = net.relu6(net.conv("x", 3, 32, 3, 2)), 32
    for widening, filters, blocks, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                                              (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for stride in [stride] + [1] * (blocks - 1):
            wide = channels * widening
            y = net.relu6(net.conv(x, channels, wide, 1)) if widening > 1 else x
            y = net.conv(net.relu6(net.conv(y, wide, wide, 3, stride, wide)), wide, filters, 1)
            x, channels = net.op("Add", x, y) if stride == 1 and channels == filters else y, filters
    x = net.relu6(net.conv(x, 320, 1280, 1))
    return net.model(net.dense(net.flat(net.op("GlobalAveragePool", x)), 1280, 10), [batch, 10])


def relu(size):
    net = Net(size)
    return net.session(net.relu(net.op("Add", "x", net.constant(numpy.ones(1)))), [size])


def calls(make, size):
    """Ways to call it: arrays in and out, or both bound once, which copies nothing."""
    session = make(size)
    given, result = session.get_inputs()[0], session.get_outputs()[0]
    x = numpy.random.RandomState(1).rand(*given.shape).astype(numpy.float32)
    binding = session.io_binding()
    binding.bind_cpu_input(given.name, x)
    binding.bind_output(result.name)
    bodies = {"run": lambda: session.run([result.name], {given.name: x}),
              "bound": lambda: session.run_with_iobinding(binding)}
    return {mode: bodies.get for mode in bodies}


ROWS = {
    "LeNet predict, batch 1": lambda: calls(lenet, 1),
    "LeNet predict, batch 100": lambda: calls(lenet, 100),
    "MLP predict, batch 1": lambda: calls(mlp, 1),
    "MLP predict, batch 100": lambda: calls(mlp, 100),
    "ResNet-18 predict": lambda: calls(lambda batch: start(resnet18(batch)), 100),
    "MobileNetV2 predict, batch 1": lambda: calls(lambda batch: start(mobilenet(batch)), 1),
    "ResNet-18 predict in bytes, batch 1": lambda: calls(lambda batch: start(in_bytes(resnet18(batch))), 1),
    "MobileNetV2 predict in bytes, batch 1": lambda: calls(lambda batch: start(in_bytes(mobilenet(batch))), 1),
    "MiniLM predict in bytes, 128 words": lambda: calls(lambda length: start(quantized(minilm(length))), 128),
    "MiniLM predict in bytes, 8 words": lambda: calls(lambda length: start(quantized(minilm(length))), 8),
    "dense 4096, batch 1": lambda: calls(lambda batch: start(wide(batch)), 1),
    "dense 4096, batch 1, 8 bits": lambda: calls(lambda batch: start(quantized(wide(batch))), 1),
    "a word of a text, 124 million weights": lambda: calls(lambda batch: start(writer(batch)), 1),
    "a word of a text, 124 million weights, 8 bits": lambda: calls(lambda batch: start(quantized(writer(batch))), 1),
    "policy predict, batch 1": lambda: calls(policy, 1),
    "call of relu(x + 1) on 5 floats": lambda: calls(relu, 5),
}


peer.serve(f"ONNX Runtime {onnxruntime.__version__}", ROWS)
