"""Quantised keys and values, unpacked in registers: the kernel reads 16-bit words and multiplies float16.

    format   elements a word   an element's bits                           element n of a row stands in
    fp8      2                 e4m3 (OCP 8-bit floating point, 1.0)        byte n
    int8     2                 two's complement                            byte n
    int4     4                 value + 8                                   byte n // 2, low nibble first

A tile of words is not spread into a tile of elements, which would move data between threads. It is multiplied plane by
plane: plane j holds element j of every word, so over X elements a word  q . k = sum_j <q[j::X], plane_j>. The float16 that
comes out is exact for every code; scales are applied to scores and probabilities, never to elements.

There are two paths to the same bits. The fast one is inline assembly on two words at a time: an integer placed in the
mantissa of 1024.0 (0x6400) is a float16 after one subtraction (Kim et al., arXiv 2211.10017), and e4m3 has an
instruction from compute capability 8.9 on. The plain one is integer arithmetic that runs everywhere, the interpreter
included, which can neither run assembly nor cast fp8.
"""

import triton
import triton.language as tl

FORMATS = {"native": 1, "fp8": 2, "int8": 2, "int4": 4}
"""Elements a word, by format; a native word is the element itself."""


def has_fast_path(format: str, capability: tuple[int, int]) -> bool:
    """Whether a GPU of that compute capability runs the assembly of a format."""
    return format != "native" and capability >= ((8, 9) if format == "fp8" else (8, 0))


@triton.jit
def unpack(words, PLANE: tl.constexpr, FORMAT: tl.constexpr, FAST: tl.constexpr):
    """Element PLANE of every word: int16 words to float16, native elements as they are."""
    if FORMAT == "native":
        return words
    elif FORMAT == "fp8":
        return _fp8_fast(words, PLANE) if FAST else _fp8(words, PLANE)
    elif FORMAT == "int8":
        return _int8_fast(words, PLANE) if FAST else _int8(words, PLANE)
    else:
        return _int4_fast(words, PLANE) if FAST else _int4(words, PLANE)


@triton.jit
def _fp8(words, PLANE: tl.constexpr):
    """e4m3 shifted into float16's place: there its exponent means 2^-8 of what it meant, subnormals included."""
    bits = words.to(tl.int32) >> (8 * PLANE)
    shifted = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    value = shifted.to(tl.int16).to(tl.float16, bitcast=True) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def _int8(words, PLANE: tl.constexpr):
    return (words.to(tl.int32) << (24 - 8 * PLANE) >> 24).to(tl.float16)


@triton.jit
def _int4(words, PLANE: tl.constexpr):
    return ((words.to(tl.int32) >> (4 * PLANE) & 15) - 8).to(tl.float16)


@triton.jit
def _fp8_fast(words, PLANE: tl.constexpr):
    """Gather the plane's two bytes into the low or the high half, then convert that half."""
    if PLANE == 0:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t; .reg .b16 a, b; prmt.b32 t, $1, 0, 0x3120; mov.b32 {a, b}, t; cvt.rn.f16x2.e4m3x2 $0, a;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t; .reg .b16 a, b; prmt.b32 t, $1, 0, 0x3120; mov.b32 {a, b}, t; cvt.rn.f16x2.e4m3x2 $0, b;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip


@triton.jit
def _int8_fast(words, PLANE: tl.constexpr):
    """value + 128 in the mantissa of 1024.0, less 1152."""
    if PLANE == 0:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t, c, m; xor.b32 t, $1, 0x80808080; mov.b32 m, 0x64646464; prmt.b32 t, t, m, 0x4240;"
            " mov.b32 c, 0xE480E480; add.rn.f16x2 $0, t, c;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t, c, m; xor.b32 t, $1, 0x80808080; mov.b32 m, 0x64646464; prmt.b32 t, t, m, 0x4341;"
            " mov.b32 c, 0xE480E480; add.rn.f16x2 $0, t, c;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip


@triton.jit
def _int4_fast(words, PLANE: tl.constexpr):
    """Low nibble n of a byte: 1024 + n, less 1032. High nibble: 1024 + 16 n, over 16, less 72. Planes 2, 3: next byte."""
    if PLANE == 0:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t, c; lop3.b32 t, $1, 0x000F000F, 0x64006400, 0xEA; mov.b32 c, 0xE408E408;"
            " add.rn.f16x2 $0, t, c;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    elif PLANE == 1:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t, s, c; lop3.b32 t, $1, 0x00F000F0, 0x64006400, 0xEA; mov.b32 s, 0x2C002C00;"
            " mov.b32 c, 0xD480D480; fma.rn.f16x2 $0, t, s, c;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    elif PLANE == 2:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t, c; shr.u32 t, $1, 8; lop3.b32 t, t, 0x000F000F, 0x64006400, 0xEA; mov.b32 c, 0xE408E408;"
            " add.rn.f16x2 $0, t, c;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t, s, c; shr.u32 t, $1, 8; lop3.b32 t, t, 0x00F000F0, 0x64006400, 0xEA; mov.b32 s, 0x2C002C00;"
            " mov.b32 c, 0xD480D480; fma.rn.f16x2 $0, t, s, c;}",
            "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
