"""The models of the benchmark in PyTorch; those of models.lua are the same, layer for layer."""
import torch
from torch import nn
from torch.nn import functional as F


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


class Block(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Identity()
        if stride != 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """For images of CIFAR's size: a 3x3 stem without pooling."""
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        channels, blocks = 64, []
        for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(channels, filters, stride), Block(filters, filters, 1)]
            channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Linear(512, 10)

    def forward(self, x):
        return self.output(self.blocks(self.stem(x)).mean((2, 3)))


def norm_conv(channels, filters, size, stride=1, groups=1):
    return [nn.Conv2d(channels, filters, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(filters)]


class InvertedBlock(nn.Module):
    def __init__(self, channels, filters, stride, widening):
        super().__init__()
        wide = channels * widening
        layers = norm_conv(channels, wide, 1) + [nn.ReLU6()] if widening > 1 else []
        layers += norm_conv(wide, wide, 3, stride, wide) + [nn.ReLU6()] + norm_conv(wide, filters, 1)
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and channels == filters

    def forward(self, x):
        return x + self.layers(x) if self.adds else self.layers(x)


class MobileNet(nn.Module):
    """MobileNetV2 in full width."""
    def __init__(self):
        super().__init__()
        layers, channels = norm_conv(3, 32, 3, 2) + [nn.ReLU6()], 32
        for widening, filters, blocks, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                                                  (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
            for stride in [stride] + [1] * (blocks - 1):
                layers.append(InvertedBlock(channels, filters, stride, widening))
                channels = filters
        self.layers = nn.Sequential(*layers, *norm_conv(320, 1280, 1), nn.ReLU6())
        self.output = nn.Linear(1280, 10)

    def forward(self, x):
        return self.output(self.layers(x).mean((2, 3)))


class Transformer(nn.Module):
    """Two layers of width 256 with 4 heads and 1024 hidden units, normalised after each part, dropout 0.1; the mean
    over the sequence goes to 10 classes."""
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(256, 10)

    def forward(self, x):
        return self.output(self.layers(x).mean(1))


class Wide(nn.Module):
    """One layer of 4096 units."""
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4096, 4096)

    def forward(self, x):
        return self.layer(x)


class WriterLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(768), nn.LayerNorm(768)
        self.query, self.key, self.value, self.out = (nn.Linear(768, 768) for _ in range(4))
        self.hidden, self.output = nn.Linear(768, 4 * 768), nn.Linear(4 * 768, 768)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(12, 128, 64))

    def forward(self, x):
        y = self.norm1(x)
        query, key, value = (part(y).view(12, 1, 64) for part in (self.query, self.key, self.value))
        scores = query @ torch.cat((self.keys, key), 1).transpose(1, 2) / 8
        x = x + self.out((F.softmax(scores, -1) @ torch.cat((self.values, value), 1)).view(1, 768))
        return x + self.output(F.gelu(self.hidden(self.norm2(x))))


class Writer(nn.Module):
    """The next word of a text, as GPT-2 finds it, over 128 earlier ones."""
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(WriterLayer() for _ in range(12)))
        self.norm, self.words = nn.LayerNorm(768), nn.Linear(768, 50257, bias=False)

    def forward(self, x):
        return self.words(self.norm(self.layers(x)))


class Policy(nn.Module):
    """What an agent asks at every step."""
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x)


class GRU(nn.Module):
    """A gated recurrent unit of width 32, whose last state goes to 10 classes."""
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 32, batch_first=True)
        self.output = nn.Linear(32, 10)

    def forward(self, x):
        return self.output(self.gru(x)[0][:, -1])
