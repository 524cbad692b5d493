"""What `plo train` starts from and how it goes on, in PyTorch: initial values, data order, learning rates.

With these torch_gpt.py trains the same model on the same tokens as plo, so that losses can be compared
step by step. The integers are exact. The variates are computed in fp64 and rounded where
operators/random.h rounds, so that they are plo's but for a last bit in a billion of operations.
"""
import math

import torch

MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
BLOCKS_AT_A_TIME = 1 << 21  # of four values


# ------------------------------------------------------------------ initial values (operators/random.h)
def split_mix_64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def random_key(seed, name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK64
    return split_mix_64(split_mix_64(seed & MASK64) ^ value)


def philox(blocks, key):
    """Four int64 tensors of 32-bit words for the counters {block, sample 0}."""
    c0, c1 = blocks & MASK32, blocks >> 32
    c2 = c3 = torch.zeros_like(blocks)
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        # The product wraps to a negative number, which the masks undo.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = ((p1 >> 32) & MASK32) ^ c1 ^ k0, ((p0 >> 32) & MASK32) ^ c3 ^ k1
        c1, c3 = p1 & MASK32, p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def fp32(x):
    return x.float().double()


def constant(value):
    """A decimal constant of the C++ source as the fp32 it is there."""
    return torch.tensor(value, dtype=torch.float32).item()


LOG = [constant(c) for c in (-7.902743667e-02, 1.262231916e-01, -1.299818307e-01, 1.421449631e-01,
                             -1.664128155e-01, 2.000104487e-01, -2.500030696e-01, 3.333333135e-01)]
SIN = [constant(c) for c in (1.582062978e-04, -4.681266379e-03, 7.969257981e-02, -6.459640861e-01,
                             1.570796371e+00)]
COS = [constant(c) for c in (9.036280680e-04, -2.086007036e-02, 2.536692023e-01, -1.233700514e+00, 1.0)]


def polynomial(coefficients, x):
    p = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        p = fp32(p * x + c)
    return p


def log_of_normal(x):
    """x: fp32 values held in fp64."""
    offset = x.float().view(torch.int32).long() - 0x3F3504F3
    k = (offset >> 23).double()
    f = ((offset & 0x007FFFFF) + 0x3F3504F3).int().view(torch.float32).double() - 1.0
    p = polynomial(LOG, f)
    f2 = fp32(f * f)
    tail = fp32(fp32(f2 * f) * p + -0.5 * f2)
    low = fp32(k * constant(-2.12194440e-4) + tail)
    return fp32(k * 0.693359375 + fp32(low + f))


def normal_from_words(a, b):
    u = fp32(fp32((a >> 1).double()) * 2.0**-31 + 2.0**-32)
    radius = fp32(torch.sqrt(-2.0 * log_of_normal(u)))
    turns = (b >> 8).double() * 2.0**-22
    quarter = torch.round(turns)  # half to even, as adding 1.5 * 2^23 rounds
    rest = turns - quarter
    r2 = fp32(rest * rest)
    s = fp32(polynomial(SIN, r2) * rest)
    c = polynomial(COS, r2)
    quarter = quarter.long()
    odd = (quarter & 1) != 0
    cosine, sine = torch.where(odd, s, c), torch.where(odd, c, s)
    cosine = torch.where(((quarter + 1) & 2) != 0, -cosine, cosine)
    sine = torch.where((quarter & 2) != 0, -sine, sine)
    return fp32(radius * cosine), fp32(radius * sine)


def normal_values(seed, name, shape, std, device):
    """The fp32 values that fill_normal gives the param `name` of a program with `seed`."""
    count = math.prod(shape)
    out = torch.empty((count + 3) // 4 * 4, dtype=torch.float32, device=device)
    key, factor = random_key(seed, name), constant(std)
    for begin in range(0, out.numel() // 4, BLOCKS_AT_A_TIME):
        end = min(begin + BLOCKS_AT_A_TIME, out.numel() // 4)
        words = philox(torch.arange(begin, end, dtype=torch.int64, device=device), key)
        values = torch.stack((*normal_from_words(*words[:2]), *normal_from_words(*words[2:])), dim=1)
        out[4 * begin:4 * end] = (values * factor).float().view(-1)
    return out[:count].view(shape)


PLO_NAMES = {
    "tok.weight": "embedding/token/weight",
    "pos.weight": "embedding/position/weight",
    "ln_f.weight": "head/ln/weight",
    "ln_f.bias": "head/ln/bias",
}


def plo_name(name):
    """Of a param of torch_gpt.py: blocks.3.qkv.weight is layer3/qkv/weight."""
    if name in PLO_NAMES:
        return PLO_NAMES[name]
    _, layer, module, leaf = name.split(".")
    return f"layer{layer}/{module}/{leaf}"


def initial_value(name, shape, layers, seed, device):
    """Of the param that torch_gpt.py calls `name`, in its layout."""
    if len(shape) < 2:
        is_scale = name.endswith("weight")  # of a norm
        return torch.full(shape, 1.0 if is_scale else 0.0, device=device)
    std = 0.02
    if ".proj." in name or ".fc2." in name:
        std /= math.sqrt(2.0 * layers)
    if name in PLO_NAMES:
        return normal_values(seed, plo_name(name), tuple(shape), std, device)
    # plo multiplies by [in, out], torch.nn.Linear holds [out, in].
    return normal_values(seed, plo_name(name), tuple(reversed(shape)), std, device).t()


# ------------------------------------------------------------------ data (paddle_lite_offload/data.cc)
def permute(index, count, key):
    if count == 1:
        return 0
    half = ((count - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    value = index
    while True:
        left, right = value >> half, value & mask
        for turn in range(4):
            mixed = left ^ (split_mix_64(split_mix_64((key + turn) & MASK64) ^ right) & mask)
            left, right = right, mixed
        value = left << half | right
        if value < count:
            return value


class TextSamples:
    """The samples of `plo train --text`, by their number within the whole run."""

    def __init__(self, path, seq, seed):
        with open(path, "rb") as file:
            self.tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        self.seq, self.seed = seq, seed
        if self.tokens.numel() <= seq:
            raise SystemExit(f"{path} has {self.tokens.numel()} bytes, fewer than a sample of {seq + 1}")
        self.windows = max(1, (self.tokens.numel() - 1) // seq - 1)

    def start_of(self, sample):
        key = split_mix_64(split_mix_64(self.seed & MASK64) ^ (sample // self.windows))
        spare = self.tokens.numel() - 1 - self.windows * self.seq
        shift = split_mix_64(key ^ 1) % (spare + 1)
        return shift + permute(sample % self.windows, self.windows, key) * self.seq

    def batch(self, step, micro_batch, world, rank):
        """[micro_batch, seq + 1] of int64 ids."""
        first = (step * world + rank) * micro_batch
        starts = [self.start_of(first + i) for i in range(micro_batch)]
        return torch.stack([self.tokens[at:at + self.seq + 1] for at in starts]).long()


# ------------------------------------------------------------------ learning rate (operators/lr_schedule.cc)
def lr_factor(update, schedule, warmup, steps, min_ratio):
    """Of update number 1, 2, ...; skipped steps are no updates."""
    if update <= warmup:
        return update / warmup
    if schedule == "constant":
        return 1.0
    total = max(steps, warmup + 1)
    progress = min(1.0, (update - warmup) / (total - warmup))
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return min_ratio + (1.0 - min_ratio) * left


# ------------------------------------------------------------------ digest (paddle_lite_offload/param_digest.cc)
def digest(named_params):
    """The param_digest of plo for params of torch_gpt.py, in fp32; slow, for small models."""
    params = {}
    for name, value in named_params:
        linear = value.dim() == 2 and name not in PLO_NAMES
        params[plo_name(name)] = value.detach().t() if linear else value.detach()
    state = 0xCBF29CE484222325

    def add(data):
        nonlocal state
        for at in range(0, len(data), 8):
            state = ((state ^ int.from_bytes(data[at:at + 8], "little")) * 0x100000001B3) & MASK64
            state ^= state >> 32

    def add_text(text):
        add(len(text).to_bytes(8, "little"))
        add(text.encode())

    for name in sorted(params):
        value = params[name]
        add_text(name)
        add_text("fp32")
        add_text("[" + ", ".join(map(str, value.shape)) + "]")
        add(bytes(value.contiguous().flatten().view(torch.uint8).tolist()))
    x = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return f"{x ^ (x >> 31):016x}"
