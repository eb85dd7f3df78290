"""CUDA graphs: what a function launches on a device, recorded once and repeated by one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Capture = Callable[[Callable[[], None]], Callable[[], None]]

# CUDA records one graph at a time in a process.
_recording = threading.Lock()


def cuda_graphs(torch: Any, device: Any) -> Capture:
    """Records as CUDA graphs that share their work space: they must run one after another, on one stream."""
    # A stream of this device: torch's own for recording belongs to the device that used it first.
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        with _recording:
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                # Triton compiles and cuBLAS takes its work space at first use, which must not happen in a recording.
                run()
                run()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                run()
        replay: Callable[[], None] = graph.replay
        return replay

    return capture
