"""PyTorch's side of the benchmark on a GPU, in each of its configurations: eager, the whole step as one CUDA graph,
compiled, and compiled and then captured whole. Strict float32 unless a row says bf16 or tf32, as ours. Every step is
fed from pinned memory of the host, and its loss comes back there: at once, or three steps later where a row is
asynchronous.

Serves measurements (peer.py). Instead of that,
  torch_gpu_peer.py product                  prints the rate of one large product
  torch_gpu_peer.py resnet50 [BATCH] [SIZE]  trains a ResNet-50 as samples/resnet50.lua does, and prints images in a
                                             second: eager, and compiled
"""
import contextlib
import functools
import statistics
import sys
import time

import peer
import torch
from torch.nn import functional as F
from torch_models import MLP, LeNet

if not torch.cuda.is_available():
    sys.exit("PyTorch finds no GPU")
torch.manual_seed(1)
torch.backends.cudnn.benchmark = True
allows_tf32 = None

SLOTS = 3
TRAINING = ("eager", "graph", "compile", "compile, graph")
PREDICTING = ("eager", "graph", "compile")


def allow_tf32(allow):
    global allows_tf32
    if allows_tf32 is not allow:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allows_tf32 = allow


def autocast(precision):
    return torch.autocast("cuda", dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def captured(body):
    """`body` as one CUDA graph: a function that starts it, and gives what the body gave."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = body()

    def start():
        graph.replay()
        return result

    return start


def host_arrays(shape, classes):
    images = torch.rand(*shape).pin_memory()
    return images, torch.randint(0, classes, shape[:1]).pin_memory()


@functools.lru_cache(maxsize=None)
def training_step(make, shape, precision, mode):
    """A step on inputs that lie on the card: (images, labels, a function that gives the loss). Rows share it, because
    it may take long to compile."""
    allow_tf32(precision == "tf32")
    net = make().cuda().train()
    images, labels = (array.cuda() for array in host_arrays(shape, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)

    def loss_of():
        with autocast(precision):
            return F.cross_entropy(net(images), labels)

    if mode.startswith("compile"):
        loss_of = torch.compile(loss_of, mode="max-autotune" if mode == "compile" else "max-autotune-no-cudagraphs")

    def step():
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    if "graph" in mode:
        step()  # compiles
        step = captured(step)
    return images, labels, step


def training(make, *shape, precision=None, asynchronous=False):
    def configured(mode):
        images, labels, step = training_step(make, shape, precision, mode)
        host_images, host_labels = host_arrays(shape, 10)
        losses = [torch.zeros(()).pin_memory() for _ in range(SLOTS)]
        done = [torch.cuda.Event() for _ in range(SLOTS)]
        count = 0

        def body():
            nonlocal count
            allow_tf32(precision == "tf32")
            slot = count % SLOTS
            if asynchronous and count >= SLOTS:
                done[slot].synchronize()
                losses[slot].item()
            images.copy_(host_images, non_blocking=True)
            labels.copy_(host_labels, non_blocking=True)
            losses[slot].copy_(step(), non_blocking=True)
            done[slot].record()
            if not asynchronous:
                done[slot].synchronize()
                losses[slot].item()
            count += 1

        return body

    return {mode: configured for mode in TRAINING}


def predict_call(make, shape, mode):
    net = make().cuda().eval()
    images, host = torch.rand(*shape).cuda(), torch.rand(*shape).pin_memory()
    out = torch.zeros(shape[0], 10).pin_memory()

    def predict():
        with torch.no_grad():
            return net(images)

    if mode == "compile":
        predict = torch.compile(predict, mode="max-autotune")
        predict()
    elif mode == "graph":
        predict = captured(predict)

    def call():
        allow_tf32(False)
        images.copy_(host, non_blocking=True)
        out.copy_(predict(), non_blocking=True)
        torch.cuda.current_stream().synchronize()

    return call


def predicting(make, *shape):
    return {mode: functools.partial(predict_call, make, shape) for mode in PREDICTING}


def product_rate():
    """TFLOP/s of a product of two 8192 x 8192 matrices in bfloat16, of random numbers: several launches in a row, as
    gpu_kernels measures ours, since a card that gets no rest is slower."""
    rounds, launches = 7, 10
    a, b = (torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1) for _ in range(2))
    out = torch.empty_like(a)
    torch.matmul(a, b, out=out)
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        before = time.perf_counter()
        for _ in range(launches):
            torch.matmul(a, b, out=out)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - before) / launches)
    return 2 * 8192**3 / statistics.median(times) * 1e-12


def resnet50(batch=256, size=224, steps=20):
    """In bfloat16 by autocast and channels last, as a card is fastest, from images of the host's pinned memory."""
    import torchvision

    for mode in "eager", "compiled":
        net = torchvision.models.resnet50().cuda().train().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9, fused=True)
        host_images, host_labels = host_arrays((batch, 3, size, size), 1000)

        def loss_of(images, labels, net=net):
            with autocast("bf16"):
                return F.cross_entropy(net(images), labels)

        if mode == "compiled":
            loss_of = torch.compile(loss_of)

        copies = torch.cuda.Stream()  # each batch is copied while the step before it computes, as ours is

        def fetch():
            with torch.cuda.stream(copies):
                images = host_images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
                return images, host_labels.cuda(non_blocking=True)

        fetched = [fetch()]

        def step():
            now = torch.cuda.current_stream()
            now.wait_stream(copies)
            images, labels = fetched[0]
            images.record_stream(now)
            labels.record_stream(now)
            fetched[0] = fetch()
            loss = loss_of(images, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        before = time.perf_counter()
        for _ in range(5):
            step().item()
        warm = time.perf_counter() - before
        before = time.perf_counter()
        for _ in range(steps):
            loss = step()
        loss.item()
        rate = steps * batch / (time.perf_counter() - before)
        print(f"PyTorch {torch.__version__}, {mode}: {rate:.1f} images in a second, the first 5 steps took {warm:.0f} s",
              flush=True)


ROWS = {
    "MLP training": lambda: training(MLP, 100, 1, 28, 28),
    "MLP training, asynchronous": lambda: training(MLP, 100, 1, 28, 28, asynchronous=True),
    "MLP training bf16, asynchronous": lambda: training(MLP, 100, 1, 28, 28, precision="bf16", asynchronous=True),
    "MLP training tf32": lambda: training(MLP, 100, 1, 28, 28, precision="tf32"),
    "MLP training tf32, asynchronous": lambda: training(MLP, 100, 1, 28, 28, precision="tf32", asynchronous=True),
    "LeNet training": lambda: training(LeNet, 100, 1, 28, 28),
    "LeNet training, asynchronous": lambda: training(LeNet, 100, 1, 28, 28, asynchronous=True),
    "LeNet training bf16, asynchronous": lambda: training(LeNet, 100, 1, 28, 28, precision="bf16", asynchronous=True),
    "LeNet training tf32": lambda: training(LeNet, 100, 1, 28, 28, precision="tf32"),
    "LeNet training tf32, asynchronous": lambda: training(LeNet, 100, 1, 28, 28, precision="tf32", asynchronous=True),
    "MLP predict, batch 1": lambda: predicting(MLP, 1, 1, 28, 28),
    "MLP predict, batch 100": lambda: predicting(MLP, 100, 1, 28, 28),
    "LeNet predict, batch 100": lambda: predicting(LeNet, 100, 1, 28, 28),
}

if sys.argv[1:2] == ["product"]:
    print(f"{product_rate():.1f}")
elif sys.argv[1:2] == ["resnet50"]:
    resnet50(*map(int, sys.argv[2:4]))
else:
    peer.serve(f"PyTorch {torch.__version__}", ROWS)
