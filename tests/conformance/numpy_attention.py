"""Attention in NumPy alone, on the cases of Regard: python numpy_attention.py FOLDER RESULTS.safetensors"""

import json
import struct
import sys

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "U8": "|u1"}


def read(path):
    """Read a safetensors file: a length, a JSON header, and the bytes that it describes."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        part = data[slice(*entry["data_offsets"])]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            x = (np.frombuffer(part, "<u2").astype("<u4") << 16).view("<f4")
        else:
            x = np.frombuffer(part, DTYPES[entry["dtype"]])
        tensors[name] = x.reshape(entry["shape"])
    return tensors


def write(path, tensors):
    """Write float32 tensors as a safetensors file."""
    header, data = {}, b""
    for name, x in tensors.items():
        part = np.ascontiguousarray(x, "<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def attention(case, q, k, v, mask=None, padding=None, bias=None, sinks=None):
    """Return the output (B, H, T, E) and the log-sum-exp (B, H, T)."""
    (B, H, T), (G, S) = q.shape[:3], k.shape[1:3]
    k, v = np.repeat(k, H // G, 1), np.repeat(v, H // G, 1)
    scale = case["scale"]
    scores = q @ np.swapaxes(k, -1, -2) * scale
    if case["softcap"] is not None:
        scores = case["softcap"] * np.tanh(scores / case["softcap"])
    if bias is not None:
        scores = scores + bias
    i, j = np.arange(T)[:, None] + S - T, np.arange(S)
    masks = []
    if case["causal"]:
        masks.append(j <= i)
    if case["window"] is not None:
        masks.append(j > i - case["window"])
    if case["ahead"] is not None:
        masks.append(j <= i + case["ahead"])
    if mask is not None:
        masks.append(mask != 0)
    if padding is not None:
        masks.append(padding[:, None, None, :] != 0)
    visible = np.ones((B, H, T, S), bool)
    for part in masks:
        visible = visible & part
    scores = np.where(visible, scores, -np.inf)
    logits = scores
    if sinks is not None:
        logits = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (B, H, T, 1))], -1)
    weights = softmax(logits)[..., :S]
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores - peak(scores)).sum(-1)) + peak(scores)[..., 0]
    return weights @ v, lse


def peak(scores, axis=-1):
    highest = scores.max(axis, keepdims=True, initial=-np.inf)  # there may be no key at all
    return np.where(np.isfinite(highest), highest, 0)


def softmax(scores, axis=-1):
    weights = np.exp(scores - peak(scores, axis))
    total = weights.sum(axis, keepdims=True)
    return weights / np.where(total > 0, total, 1)  # a row without a visible key is zeros


def packed(case, q, k, v, sinks=None):
    outputs, lses, a, b = [], [], 0, 0
    for n, m in zip(case["lengths"]["queries"], case["lengths"]["keys"], strict=True):
        parts = (np.swapaxes(x, 0, 1)[None] for x in (q[a : a + n], k[b : b + m], v[b : b + m]))
        output, lse = attention(case, *parts, sinks=sinks)
        outputs.append(np.swapaxes(output[0], 0, 1))
        lses.append(lse[0].T)
        a, b = a + n, b + m
    return np.concatenate(outputs), np.concatenate(lses)


def cached(case, q, k, v, padding=None, sinks=None):
    outputs, lses, start = [], [], 0
    keys, values = k[:, :, :0], v[:, :, :0]
    for n in case["pieces"]:
        new = slice(start, start + n)
        keys, values = np.concatenate([keys, k[:, :, new]], 2), np.concatenate([values, v[:, :, new]], 2)
        there = None if padding is None else padding[:, : start + n]
        output, lse = attention(case, q[:, :, new], keys, values, padding=there, sinks=sinks)
        outputs.append(output)
        lses.append(lse)
        start += n
    return np.concatenate(outputs, 2), np.concatenate(lses, 2)


def solve(folder):
    with open(f"{folder}/index.json", encoding="utf-8") as file:
        index = json.load(file)
    tensors, results = read(f"{folder}/{index['tensors']}"), {}
    for case in index["cases"]:
        inputs = {name: tensors[key] for name, key in case["inputs"].items()}
        inputs = {name: x if x.dtype == np.uint8 else x.astype(np.float32) for name, x in inputs.items()}
        run = packed if case["lengths"] else cached if case["pieces"] else attention
        try:
            output, lse = run(case, **inputs)
        except ValueError:  # what it cannot do is left out, and is not judged
            continue
        results[f"{case['name']}.output"], results[f"{case['name']}.lse"] = output, lse
    return results


if __name__ == "__main__":
    write(sys.argv[2], solve(sys.argv[1]))
