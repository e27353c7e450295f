# SPDX-License-Identifier: Apache-2.0
"""PTX types and the C++ types that carry them (16-bit floats travel as their bits)."""

C_TYPE = {
    'u8': 'u8', 'u16': 'u16', 'u32': 'u32', 'u64': 'u64',
    's8': 's8', 's16': 's16', 's32': 's32', 's64': 's64',
    'b8': 'u8', 'b16': 'u16', 'b32': 'u32', 'b64': 'u64',
    'f32': 'f32', 'f64': 'f64', 'tf32': 'u32', 'pred': 'bool',
    'f16': 'u16', 'bf16': 'u16', 'f16x2': 'u32', 'bf16x2': 'u32',
    'e4m3': 'u8', 'e5m2': 'u8', 'e4m3x2': 'u16', 'e5m2x2': 'u16',
}
SIZE = {'u8': 1, 's8': 1, 'u16': 2, 's16': 2, 'u32': 4, 's32': 4, 'f32': 4,
        'u64': 8, 's64': 8, 'f64': 8, 'bool': 1}
UNSIGNED = {'s8': 'u8', 's16': 'u16', 's32': 'u32', 's64': 'u64'}
FLOATS = ('f32', 'f64')
UINT_OF_SIZE = {1: 'u8', 2: 'u16', 4: 'u32', 8: 'u64'}


class Untranslated(Exception):
    """An instruction or operand the translator does not know."""


def unsigned(ctype):
    return UNSIGNED.get(ctype, ctype)


def is_float(ctype):
    return ctype in FLOATS
