"""Single ops of PyTorch, for the benchmark's --ops. ops.lua is our side, with shapes and names in the same order."""
import torch
from torch import nn
from torch.nn import functional as F

MATRIX, IMAGES = (256, 1024), (16, 32, 32, 32)
OPS = {}  # name -> (shape, least value of x, what makes the function to be timed)


def add(name, shape, body, positive=False, layer=None):
    """With `layer`, a module made anew for each measurement, `body` is called with it and x."""
    def made(training):
        if layer is None:
            return body
        module = layer().train(training)
        return lambda x: body(module, x)

    OPS[name] = shape, 0.1 if positive else -1, made


for name, function in {"abs": torch.abs, "sin": torch.sin, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
                       "gelu": F.gelu, "erf": torch.erf, "softplus": F.softplus, "atan": torch.atan, "relu": F.relu,
                       "leaky_relu": F.leaky_relu, "elu": F.elu, "swish": F.silu, "mish": F.mish,
                       "hardswish": F.hardswish}.items():
    add(name, MATRIX, function)
for name in ("exp", "log", "log1p", "sqrt", "rsqrt", "lgamma"):
    add(name, MATRIX, getattr(torch, name), positive=True)
add("pow 2.5", MATRIX, lambda x: x ** 2.5, positive=True)
add("where", MATRIX, lambda x: torch.where(x > 0, x, x * 2))

add("sum of all", MATRIX, torch.sum)
for axis in (0, 1):
    add(f"sum over axis {axis}", MATRIX, lambda x, axis=axis: x.sum(axis))
    add(f"max over axis {axis}", MATRIX, lambda x, axis=axis: x.amax(axis))
    add(f"variance over axis {axis}", MATRIX, lambda x, axis=axis: x.var(axis, unbiased=False))
    add(f"softmax over axis {axis}", MATRIX, lambda x, axis=axis: x.softmax(axis))
    add(f"argmax over axis {axis}", MATRIX, lambda x, axis=axis: x.argmax(axis))
add("log_softmax", MATRIX, lambda x: x.log_softmax(1))
add("cross entropy", MATRIX, lambda x: F.cross_entropy(x, x.argmax(1), reduction="none"))
add("sort", (64, 1024), lambda x: x.sort(1)[0])
add("top_k 5", (64, 1024), lambda x: x.topk(5)[0])

add("transpose", (512, 512), lambda x: x.t().contiguous())
add("transpose of heads", (16, 32, 16, 32), lambda x: x.permute(0, 2, 1, 3).contiguous())
add("concat", (128, 512), lambda x: torch.cat([x, x, x], 1))
add("slice", (512, 1024), lambda x: x[1:501, 3:1003].contiguous())
add("pad", (16, 16, 30, 30), lambda x: F.pad(x, (1, 1, 1, 1)))

add("layer_norm", MATRIX, lambda x: F.layer_norm(x, MATRIX[1:]))
add("l2_normalize", MATRIX, lambda x: F.normalize(x, dim=1))
add("group norm", IMAGES, lambda x: F.group_norm(x, 8))
add("instance norm", IMAGES, F.instance_norm)
add("max pool 2x2", IMAGES, lambda x: F.max_pool2d(x, 2))
add("max pool 3x3, stride 2", IMAGES, lambda x: F.max_pool2d(x, 3, 2))
add("average pool 2x2", IMAGES, lambda x: F.avg_pool2d(x, 2))
add("average pool 3x3, stride 1", IMAGES, lambda x: F.avg_pool2d(x, 3, 1))
add("upsample 2x", (16, 32, 16, 16), lambda x: F.interpolate(x, scale_factor=2))
for size in (512, 1000, 8192, 10007):
    add(f"rfft of {size}", (8, size), lambda x: torch.view_as_real(torch.fft.rfft(x)))
WINDOW = torch.hann_window(512)
add("stft", (8, 16000), lambda x: torch.view_as_real(torch.stft(x, 512, 160, window=WINDOW, center=False,
                                                                return_complex=True)))
add("matmul", (512, 512), lambda x: x @ x)
add("matmul of 4x4", (10000, 4, 4), lambda x: x @ x)
add("matmul of 64", (64, 32, 64), lambda x: x @ x.transpose(1, 2))


def add_layer(name, shape, layer):
    add(name, shape, lambda module, x: module(x), layer=layer)


def add_conv(name, shape, filters, kernel, **options):
    add_layer(name, shape, lambda: nn.Conv2d(shape[1], filters, kernel, bias=False, **options))


add_layer("batch norm", IMAGES, lambda: nn.BatchNorm2d(32))
add_conv("conv 3x3", IMAGES, 32, 3, padding=1)
add_conv("conv 3x3, stride 2", IMAGES, 64, 3, padding=1, stride=2)
add_conv("conv 3x3, batch 1", (1, 16, 32, 32), 16, 3, padding=1)
add_conv("conv 1x1", (16, 64, 16, 16), 128, 1)
add_conv("conv 3x3, dilated", IMAGES, 32, 3, padding=2, dilation=2)
add_conv("conv 3x3, 4 groups", (16, 64, 16, 16), 64, 3, padding=1, groups=4)
add_conv("conv 3x3, depthwise", (16, 64, 32, 32), 64, 3, padding=1, groups=64)
add_conv("conv 8x8, stride 4", (32, 4, 84, 84), 32, 8, stride=4)
add_layer("conv transposed 4x4", (16, 32, 16, 16), lambda: nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False))
add_layer("dense", (64, 1024), lambda: nn.Linear(1024, 1024))


def predicting(name):
    shape, low, made = OPS[name]
    x, body = torch.rand(shape) * (1 - low) + low, made(False)

    def call():
        with torch.inference_mode():
            return body(x)

    return call


def training(name):
    shape, low, made = OPS[name]
    x, body = nn.Parameter(torch.rand(shape) * (1 - low) + low), made(True)
    optimizer = torch.optim.SGD([x], lr=0.0)

    def step():
        optimizer.zero_grad(set_to_none=True)
        body(x).sum().backward()
        optimizer.step()

    return step


ROWS = {}
for name in OPS:
    ROWS[name] = lambda name=name: {"eager": lambda _: predicting(name)}
    ROWS[name + ", training"] = lambda name=name: {"eager": lambda _: training(name)}
