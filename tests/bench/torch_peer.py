"""The same measurements on PyTorch, in each of its configurations; the summary takes the fastest of each.

One line per measurement: name, unit, median of the round, configuration.
usage: torch_peer.py FOLDER SECONDS THREADS
"""
import statistics
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional as F

folder, seconds, threads = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
torch.manual_seed(1)
images = torch.from_numpy(numpy.load(folder + "/images.npy"))
labels = torch.from_numpy(numpy.load(folder + "/labels.npy")).long()


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.dense1 = nn.Linear(7 * 7 * 64, 512)
        self.dropout = nn.Dropout(0.5)
        self.dense2 = nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.dense2(self.dropout(F.relu(self.dense1(x.flatten(1)))))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 512)
        self.output = nn.Linear(512, 10)

    def forward(self, x):
        return self.output(F.relu(self.hidden(x.flatten(1))))


def seconds_per_call(body, n):
    """Median over chunks of n calls; the first chunks, which compile, do not count."""
    def chunk():
        before = time.perf_counter()
        for _ in range(n):
            body()
        return (time.perf_counter() - before) / n

    for _ in range(3):
        chunk()
    samples, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(samples) < 5:
        samples.append(chunk())
    return statistics.median(samples)


def report(name, unit, value, configuration):
    print(f"{name}\t{unit}\t{value:.6g}\t{configuration}", flush=True)


def train(name, make, n):
    for configuration in ("eager", "channels_last", "script", "script, channels_last"):
        net, x = make().train(), images
        if "channels_last" in configuration:
            net = net.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        if "script" in configuration:
            net = torch.jit.script(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            optimizer.step()

        report(name + " training, batch 100", "images/s", len(images) / seconds_per_call(step, n), configuration)


def predict(name, make, n):
    for configuration in ("eager", "frozen", "frozen, optimized", "frozen, optimized, channels_last"):
        net, x = make().eval(), images[:1].clone()
        if "channels_last" in configuration:
            net = net.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        if "frozen" in configuration:
            with torch.no_grad():
                net = torch.jit.freeze(torch.jit.trace(net, x))
                if "optimized" in configuration:
                    net = torch.jit.optimize_for_inference(net)

        def call():
            with torch.inference_mode():
                return net(x)

        report(name + " predict, batch 1", "us", 1e6 * seconds_per_call(call, n), configuration)


def tiny():
    five = torch.rand(5) * 2 - 1
    scripted = torch.jit.freeze(torch.jit.trace(nn.ReLU().eval(), five))
    for configuration, call in (("eager", torch.relu), ("frozen", scripted)):
        def body():
            with torch.inference_mode():
                call(five)

        report("call of relu on 5 floats", "ns", 1e9 * seconds_per_call(body, 2000), configuration)


train("LeNet", LeNet, 1)
train("MLP", MLP, 5)
predict("LeNet", LeNet, 10)
predict("MLP", MLP, 50)
tiny()
