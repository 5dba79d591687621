"""Uses a graphics processor through the driver's library alone. `scripts/gpu_test.py` runs it inside a sandbox.

It asks for the devices, writes to the memory of the first, reads back, has the driver compile a kernel, runs it, and
compares what it computed. Prints one line of JSON; ends with 1 and a sentence on stderr if anything is wrong.
"""

import ctypes
import json
import sys
import time

COUNT = 1 << 20
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r1, %r2, %r3, %r4;
    ld.param.u32 %r5, [n];
    setp.ge.u32 %p1, %r1, %r5;
    @%p1 bra DONE;
    mul.wide.u32 %rd4, %r1, 4;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
"""


class Cuda:
    """Calls the driver's library. Each call raises OSError with the driver's own words."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def call(*arguments):
            code = function(*arguments)
            if code:
                text = ctypes.c_char_p()
                self._library.cuGetErrorString(code, ctypes.byref(text))
                raise OSError(f"{name} gives {code}: {(text.value or b'?').decode()}")

        return call


def main():
    began, cuda = time.monotonic(), Cuda()
    cuda.cuInit(0)
    version, count, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    name, total = ctypes.create_string_buffer(100), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, 100, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    context = ctypes.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    ready = time.monotonic()
    numbers = ctypes.c_float * COUNT
    a, b, c = numbers(*range(COUNT)), numbers(*(2.0 * n for n in range(COUNT))), numbers()
    pointers = [ctypes.c_uint64() for _ in range(3)]
    for pointer in pointers:
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.sizeof(numbers))
    cuda.cuMemcpyHtoD_v2(pointers[0], a, ctypes.sizeof(numbers))
    cuda.cuMemcpyHtoD_v2(pointers[1], b, ctypes.sizeof(numbers))
    back = numbers()
    cuda.cuMemcpyDtoH_v2(back, pointers[0], ctypes.sizeof(numbers))
    if bytes(back) != bytes(a):
        raise OSError("what was written to the device's memory did not come back")
    module, kernel, n = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32(COUNT)
    cuda.cuModuleLoadData(ctypes.byref(module), PTX)
    cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"add")
    arguments = (ctypes.c_void_p * 4)(*(ctypes.addressof(each) for each in (*pointers, n)))
    cuda.cuLaunchKernel(kernel, (COUNT + 255) // 256, 1, 1, 256, 1, 1, 0, None, arguments, None)
    cuda.cuCtxSynchronize()
    cuda.cuMemcpyDtoH_v2(c, pointers[2], ctypes.sizeof(numbers))
    wrong = sum(c[i] != a[i] + b[i] for i in range(COUNT))
    if wrong:
        raise OSError(f"{wrong} of {COUNT} sums are wrong")
    for pointer in pointers:
        cuda.cuMemFree_v2(pointer)
    found = {
        "devices": count.value,
        "name": name.value.decode(),
        "memory_mib": total.value >> 20,
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "sums": COUNT,
        "init_s": round(ready - began, 2),
        "work_s": round(time.monotonic() - ready, 2),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    try:
        main()
    except OSError as exc:
        sys.exit(f"no CUDA: {exc}")
