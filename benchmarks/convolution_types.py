"""How long E1's convolutions take in each type on this CPU, with oneDNN and without it.

    python benchmarks/convolution_types.py [--rounds 5]

Each convolution of the network at 64 pixels and batch 32: forward, the gradient of its input and
that of its weights. The types take turns within a process; one process has oneDNN, the next has
not. Printed are the medians of float32 in ms and of the others as times float32's (2: twice as
long). Where a type has no kernel, reference code takes hundreds of times as long: that is measured
once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TYPES = ("float32", "bfloat16", "float16")
PASSES = ("forward", "gradient of inputs", "gradient of weights")
LAYERS = ((5, 3, 32, 64), (7, 32, 64, 32), (11, 64, 128, 16))  # kernel, channels in, out, side
LONG_S = 1.0  # a call that takes longer is made once


def child() -> None:
    """Prints the seconds of each layer, pass and type of this process."""
    import tensorflow as tf

    def calls(kernel: int, inputs: int, outputs: int, side: int, dtype: str) -> tuple:
        x = tf.cast(tf.random.normal((32, side, side, inputs)), dtype)
        w = tf.cast(tf.random.normal((kernel, kernel, inputs, outputs)), dtype)
        y = tf.nn.conv2d(x, w, 2, "SAME")
        how = {"strides": [1, 2, 2, 1], "padding": "SAME"}
        of_input = tf.raw_ops.Conv2DBackpropInput
        of_weights = tf.raw_ops.Conv2DBackpropFilter
        return (
            tf.function(lambda: tf.nn.conv2d(x, w, 2, "SAME")),
            tf.function(lambda: of_input(input_sizes=x.shape, filter=w, out_backprop=y, **how)),
            tf.function(lambda: of_weights(input=x, filter_sizes=w.shape, out_backprop=y, **how)),
        )

    def took(call: tf.types.experimental.Callable) -> float:
        began = time.perf_counter()
        call().numpy()
        return time.perf_counter() - began

    found = []
    for layer in LAYERS:
        for name, row in zip(
            PASSES, zip(*(calls(*layer, t) for t in TYPES), strict=True), strict=True
        ):
            first = [took(call) for call in row]
            times = {dtype: [] for dtype in TYPES}
            for _ in range(int(sys.argv[2])):
                for dtype, call, once in zip(TYPES, row, first, strict=True):
                    times[dtype].append(once if once > LONG_S else took(call))
            found.append([f"{layer[0]}x{layer[0]}", name, *map(statistics.median, times.values())])
    print(json.dumps(found))


def measured(rounds: int, onednn: bool) -> list:
    """What `child` prints in a process with oneDNN or without it."""
    environ = os.environ | {"TF_ENABLE_ONEDNN_OPTS": str(int(onednn)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--child", str(rounds)]
    return json.loads(subprocess.run(command, env=environ, check=True, stdout=-1).stdout)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'':34}{'float32':>10}" + "".join(f"{t:>10}" for t in TYPES[1:]))
    for onednn in (True, False):
        for kernel, name, base, *others in measured(rounds, onednn):
            ratios = "".join(f"{seconds / base:10.3g}" for seconds in others)
            label = f"{'with' if onednn else 'without'} oneDNN, {kernel}, {name}"
            print(f"{label:44}{base * 1e3:7.2f} ms{ratios}")


if __name__ == "__main__":
    child() if "--child" in sys.argv else main()
