# SPDX-License-Identifier: Apache-2.0
"""What cffi is told of the library: the declarations of the public headers, as the compiler reads
them.

The headers are preprocessed with attributes defined away, and lines of other headers than ours and
DLPack's are dropped; what is left are the declarations that a program sees. Inline functions keep
their prototype, since the extension is compiled against the same headers.
"""
import os
import re
import subprocess
from pathlib import Path
from typing import List

from cffi import FFI

# Functions of libdualpipe._native and ._stage that the library calls.
CALLBACKS = """
extern "Python" int dpy_store_put(void *, const char *, const void *, size_t);
extern "Python" int dpy_store_get(void *, const char *, void *, size_t *);
extern "Python" int dpy_poll(void *);
extern "Python" void dpy_log(void *, enum dp_log_level, const char *);
extern "Python" int dpy_forward(void *, const struct dp_stage_call *, const DLTensor *,
                                DLTensor *);
extern "Python" int dpy_backward(void *, const struct dp_stage_call *, const DLTensor *, DLTensor *,
                                 enum dp_backward_mode);
extern "Python" int dpy_weight(void *, const struct dp_stage_call *);
extern "Python" void dpy_given_back(void *, void *);
extern "Python" int dpy_pair(const struct dp_pair *);
extern "Python" int dpy_device_alloc(void *, size_t, void **);
extern "Python" void dpy_device_free(void *, void *);
extern "Python" int dpy_model_fill(void *, int32_t, uint64_t, DLTensor *);
extern "Python" int dpy_model_forward(void *, const struct dp_layer_call *, const DLTensor *,
                                      DLTensor *);
extern "Python" int dpy_model_backward(void *, const struct dp_layer_call *, const DLTensor *,
                                       DLTensor *, enum dp_backward_mode);
extern "Python" int dpy_model_weight(void *, const struct dp_layer_call *);
extern "Python" void dpy_model_leave(void *);
extern "Python" int dpy_model_loss(void *, const struct dp_stage_call *, const DLTensor *,
                                   const DLTensor *, double *, int32_t, int32_t *);
extern "Python" int dpy_model_loss_backward(void *, const struct dp_stage_call *, const DLTensor *,
                                            const DLTensor *, double, DLTensor *);
extern "Python" int dpy_update(void *, struct dp_mixer_update_info *);
extern "Python" int dpy_pre_average(void *, const struct dp_mixer_average_info *);
extern "Python" int dpy_layer_forward(void *, const struct dp_offload_call *, const DLTensor *,
                                      DLTensor *);
extern "Python" int dpy_layer_backward(void *, const struct dp_offload_call *, const DLTensor *,
                                       DLTensor *);
"""


def header_names(includes: List[Path]) -> List[str]:
    return sorted(header.name for path in includes for header in (path / "dualpipe").glob("*.h"))


def preprocessed(source: str, includes: List[Path]) -> str:
    command = [
        *os.environ.get("CC", "cc").split(), "-E", "-xc", "-", "-D__attribute__(x)=",
        "-D__restrict=", "-D__extension__=", "-D_Bool=bool", *(f"-I{path}" for path in includes)
    ]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def own_lines(text: str) -> str:
    kept, is_ours = [], False
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            is_ours = re.search(r"/(dualpipe|dlpack)/[a-z_]+\.h$", marker.group(1)) is not None
        elif is_ours:
            kept.append(line)
    return "\n".join(kept)


def without_bodies(text: str) -> str:
    """Inline functions as one prototype each; those with "..." are for C alone."""
    text = re.sub(r"static inline [^;{]*;", "", text)
    done = []
    while True:
        head = re.search(r"static inline ([^;{]*)\{", text)
        if not head:
            return "".join(done) + text
        end, depth = head.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        done += [text[:head.start()], "" if "..." in head.group(1) else head.group(1) + ";"]
        text = text[end:]


def declarations(includes: List[Path], source: str) -> str:
    text = without_bodies(own_lines(preprocessed(source, includes)))
    text = re.sub(r"\(1U? << (\d+)\)", lambda shift: str(1 << int(shift.group(1))), text)
    return re.sub(r"[^;]*\bva_list\b[^;]*;", "", text)


def write_source(path: Path, includes: List[Path], temporary: str) -> None:
    """Write the C source of the extension module libdualpipe._dp."""
    source = "#include <stdlib.h>\n"
    source += "".join(f"#include <dualpipe/{name}>\n" for name in header_names(includes))
    ffi = FFI()
    ffi.cdef(declarations(includes, source))
    ffi.cdef(CALLBACKS)
    ffi.cdef("void free(void *);")
    ffi.set_source("libdualpipe._dp", source)
    ffi.emit_c_code(str(path))
