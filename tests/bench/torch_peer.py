"""PyTorch's side of the benchmark, in each of its configurations.

Serves measurements (peer.py). With a name as argument: that row once, for rows that need a process of their own.
usage: torch_peer.py THREADS [NAME]
"""
import contextlib
import itertools
import sys

import peer
import torch
import torch_ops
from torch import nn
from torch.nn import functional as F
from torch_models import GRU, MLP, LeNet, MobileNet, Policy, ResNet18, Transformer, Wide, Writer

threads = int(sys.argv[1])
torch.set_num_threads(threads)
torch.manual_seed(1)


# ---- rows: a name gives the configurations, and each of these makes a function to be timed --------------------------

def sgd(parameters):
    try:
        return torch.optim.SGD(parameters, lr=1e-4, fused=True)
    except (TypeError, RuntimeError):
        return torch.optim.SGD(parameters, lr=1e-4)


def compiled(function, mode):
    return torch.compile(function, mode="max-autotune-no-cudagraphs" if "max-autotune" in mode else None)


def compile_modes():
    return ("compile", "compile max-autotune") if hasattr(torch, "compile") else ()


def training(make, *shape, bf16=False):
    def configured(mode):
        x, labels = torch.rand(*shape), torch.randint(0, 10, shape[:1])
        net = make().train()
        if "channels_last" in mode:
            net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        if "script" in mode:
            net = torch.jit.script(net)
        precision = torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()

        def loss_of(x, labels):
            with precision:
                return F.cross_entropy(net(x), labels)

        if "compile" in mode:
            loss_of = compiled(loss_of, mode)
        optimizer = sgd(net.parameters())

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss_of(x, labels).backward()
            optimizer.step()

        return step

    layouts = ("", " channels_last") if len(shape) == 4 and make is not MLP else ("",)
    modes = ("eager", "script") + compile_modes()
    return {mode + layout: configured for mode, layout in itertools.product(modes, layouts)}


def predicting(make, *shape, bf16=False):
    def configured(mode):
        x = torch.rand(*shape)
        net = make().eval()
        if "channels_last" in mode:
            net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        precision = torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False) if bf16 else contextlib.nullcontext()
        with torch.no_grad(), precision:
            torch.jit.enable_onednn_fusion("oneDNN graph" in mode)
            if "frozen" in mode:
                net = torch.jit.freeze(torch.jit.trace(net, x, check_trace=False))
                if "optimized" in mode:
                    net = torch.jit.optimize_for_inference(net)
            if "compile" in mode:
                torch._inductor.config.freezing = True
                net = compiled(net, mode)
            for _ in range(3):
                net(x)
            torch.jit.enable_onednn_fusion(False)

        def call():
            # no_grad and not inference_mode, under which frozen weights of torch.compile are not allowed.
            with torch.no_grad(), precision:
                return net(x)

        return call

    layouts = ("", " channels_last") if len(shape) == 4 and make is not MLP else ("",)
    modes = ("eager", "frozen", "frozen, optimized", "frozen, oneDNN graph") + compile_modes()
    return {mode + layout: configured for mode, layout in itertools.product(modes, layouts)}


def quantized(make):
    """With layers as PyTorch quantizes them for predictions: weights in 8 bits, and what comes in while it runs."""
    return lambda: torch.quantization.quantize_dynamic(make().eval(), {nn.Linear}, dtype=torch.qint8)


def relu_calls():
    five = (torch.rand(5) * 2 - 1).numpy()

    class Relu(nn.Module):
        def forward(self, x):
            return F.relu(x + 1)

    def configured(mode):
        net = Relu().eval()
        if mode == "frozen":
            net = torch.jit.freeze(torch.jit.trace(net, torch.from_numpy(five)))

        def call():
            with torch.inference_mode():
                return net(torch.from_numpy(five)).numpy()

        return call

    return {"eager": configured, "frozen": configured}


ROWS = {
    "LeNet training": lambda: training(LeNet, 100, 1, 28, 28),
    "LeNet training bf16": lambda: training(LeNet, 100, 1, 28, 28, bf16=True),
    "MLP training": lambda: training(MLP, 100, 1, 28, 28),
    "MLP training bf16": lambda: training(MLP, 100, 1, 28, 28, bf16=True),
    "LeNet predict, batch 1": lambda: predicting(LeNet, 1, 1, 28, 28),
    "LeNet predict, batch 100": lambda: predicting(LeNet, 100, 1, 28, 28),
    "MLP predict, batch 1": lambda: predicting(MLP, 1, 1, 28, 28),
    "MLP predict, batch 1, bf16": lambda: predicting(MLP, 1, 1, 28, 28, bf16=True),
    "MLP predict, batch 100": lambda: predicting(MLP, 100, 1, 28, 28),
    "ResNet-18 training": lambda: training(ResNet18, 100, 3, 32, 32),
    "ResNet-18 predict": lambda: predicting(ResNet18, 100, 3, 32, 32),
    "ResNet-18 training bf16": lambda: training(ResNet18, 100, 3, 32, 32, bf16=True),
    "ResNet-18 predict bf16": lambda: predicting(ResNet18, 100, 3, 32, 32, bf16=True),
    "transformer training bf16": lambda: training(Transformer, 16, 128, 256, bf16=True),
    "MobileNetV2 training, batch 32": lambda: training(MobileNet, 32, 3, 96, 96),
    "MobileNetV2 predict, batch 1": lambda: predicting(MobileNet, 1, 3, 96, 96),
    "transformer training": lambda: training(Transformer, 16, 128, 256),
    "dense 4096, batch 1": lambda: predicting(Wide, 1, 4096),
    "dense 4096, batch 1, 8 bits": lambda: predicting(quantized(Wide), 1, 4096),
    "a word of a text, 124 million weights": lambda: predicting(Writer, 1, 768),
    "a word of a text, 124 million weights, 8 bits": lambda: predicting(quantized(Writer), 1, 768),
    "policy predict, batch 1": lambda: predicting(Policy, 1, 8),
    "policy training, batch 32": lambda: training(Policy, 32, 8),
    "GRU training, 20 steps": lambda: training(GRU, 16, 20, 8),
    "call of relu(x + 1) on 5 floats": relu_calls,
    **torch_ops.ROWS,
}


# ---- rows with a process of their own -------------------------------------------------------------------------------

def peak_memory():
    step = training(LeNet, 100, 1, 28, 28)["eager"]("eager")
    for _ in range(20):
        step()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


if len(sys.argv) > 2:
    if sys.argv[2] == "peak memory of LeNet training":
        print(f"{peak_memory():.9g}\teager")
    elif sys.argv[2] == "start of the process to the first relu(x + 1)":
        print(torch.relu(torch.tensor([-2.0, -1, 0, 1, 2]) + 1))
else:
    peer.serve(f"PyTorch {torch.__version__.split('+')[0]}", ROWS)
