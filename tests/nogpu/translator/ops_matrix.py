# SPDX-License-Identifier: Apache-2.0
"""Tensor-core instructions: ldmatrix, stmatrix, movmatrix, mma, wmma."""
import re
from emitter import op
from ops_arith import types_of
from ptx_parser import elements
from ptx_types import Untranslated

FULL = '~0u'


@op('ldmatrix')
def load_matrix(f, inst):
    if 'm8n8' not in inst.mods: raise Untranslated('ldmatrix shape')
    parts = elements(inst.args[0])
    code = 'u64 a_=%s;if(T->lane<%d)check<SHARED,16,READ>(T,a_,%d);' % (f.memory(inst.args[1]), 8 * len(parts), f.line)
    code += 'T->in[0]=(u32)a_;T->in[1]=(u32)(a_>>32);T->in[2]=%d;T->in[3]=%d;' % (len(parts), 'trans' in inst.mods)
    code += f.warp_op('OP_LDMATRIX', FULL)
    return '{%s%s}' % (code, ''.join(f.write(x, 'u32', 'T->out[%d]' % i) for i, x in enumerate(parts)))


@op('stmatrix')
def store_matrix(f, inst):
    if 'm8n8' not in inst.mods: raise Untranslated('stmatrix shape')
    parts = elements(inst.args[1])
    code = 'u64 a_=%s;if(T->lane<%d)check<SHARED,16,WRITE>(T,a_,%d);' % (f.memory(inst.args[0]), 8 * len(parts), f.line)
    code += 'T->in[0]=(u32)a_;T->in[1]=(u32)(a_>>32);T->in[2]=%d;T->in[3]=%d;' % (len(parts), 'trans' in inst.mods)
    code += ''.join('T->in[%d]=%s;' % (4 + i, f.read(x, 'u32')) for i, x in enumerate(parts))
    return '{%s%s}' % (code, f.warp_op('OP_STMATRIX', FULL))


@op('movmatrix')
def move_matrix(f, inst):
    return '{T->in[0]=%s;%s%s}' % (f.read(inst.args[1], 'u32'), f.warp_op('OP_MOVMATRIX', FULL), f.write(inst.args[0], 'u32', 'T->out[0]'))


def read_accumulators(f, registers, ptx, base):
    """Puts C into the mailbox as 32-bit words, f16 widened to f32."""
    if ptx in ('f32', 's32'):
        ct = 'f32' if ptx == 'f32' else 's32'
        return ''.join('T->in[%d]=bits<u32>(%s);' % (base + i, f.read(x, ct)) for i, x in enumerate(registers))
    return ''.join('{u32 q_=%s;T->in[%d]=bits<u32>(F16::up((u16)q_));T->in[%d]=bits<u32>(F16::up((u16)(q_>>16)));}'
                   % (f.read(x, 'u32'), base + 2 * i, base + 2 * i + 1) for i, x in enumerate(registers))


def write_accumulators(f, registers, ptx):
    if ptx in ('f32', 's32'):
        return ''.join(f.write(x, ptx, 'bits<%s>(T->out[%d])' % (ptx, i)) for i, x in enumerate(registers))
    return ''.join(f.write(x, 'u32', '(u32)F16::down(bits<f32>(T->out[%d]))|(u32)F16::down(bits<f32>(T->out[%d]))<<16' % (2 * i, 2 * i + 1))
                   for i, x in enumerate(registers))


MMA_TYPES = {'f16': 'MMA_F16', 'bf16': 'MMA_BF16', 'tf32': 'MMA_TF32', 's8': 'MMA_S8', 'u8': 'MMA_U8'}
MMA_K = {'f16': (8, 16), 'bf16': (8, 16), 'tf32': (4, 8), 's8': (16, 32), 'u8': (16, 32)}


@op('mma')
def matrix_multiply(f, inst):
    shape = next((m for m in inst.mods if re.match(r'm\d+n\d+k\d+$', m)), '')
    d_type, a_type, b_type, c_type = types_of(inst)[-4:]
    m, n, k = map(int, re.match(r'm(\d+)n(\d+)k(\d+)', shape).groups())
    known = a_type in MMA_TYPES and a_type == b_type and (m, n) == (16, 8) and k in MMA_K[a_type] and not ('sp' in inst.mods or 'satfinite' in inst.mods)
    if not known or d_type != c_type or d_type not in ('f32', 'f16', 's32'): raise Untranslated('mma shape or types')
    d, a, b, c = (elements(x) for x in inst.args[:4])
    code = ''.join('T->in[%d]=%s;' % (i, f.read(x, 'u32')) for i, x in enumerate(a))
    code += ''.join('T->in[%d]=%s;' % (4 + i, f.read(x, 'u32')) for i, x in enumerate(b))
    code += read_accumulators(f, c, c_type, 8)
    code += 'T->in[12]=%d;T->in[13]=%s;%s' % (k, MMA_TYPES[a_type], f.warp_op('OP_MMA', FULL))
    return '{%s%s}' % (code, write_accumulators(f, d, d_type))


# wmma fragments are opaque, so their layout is free: lane l holds, of a 16x16 tile,
#   f16 a/b: row (column) l%16, all 16 entries;  bf16 a/b and accumulators: 8 entries of row (column) l/2.
def fragment_position(which, count, e):
    if which == 'a': return ('(T->lane%16)', str(e)) if count == 16 else ('(T->lane/2)', '(T->lane%%2*8+%d)' % e)
    if which == 'b': return (str(e), '(T->lane%16)') if count == 16 else ('(T->lane%%2*8+%d)' % e, '(T->lane/2)')
    return '(T->lane/2)', '(T->lane%%2*8+%d)' % e


@op('wmma')
def warp_matrix(f, inst):
    if 'm16n16k16' not in inst.mods: raise Untranslated('wmma shape')
    if inst.mods[0] in ('load', 'store'): return fragment_transfer(f, inst)
    d, a, b, c = (elements(x) for x in inst.args[:4])
    types = types_of(inst)
    if any(t not in ('f16', 'f32', 'bf16') for t in types): raise Untranslated('wmma types')
    code = ''.join('T->in[%d]=%s;' % (i, f.read(x, 'u32')) for i, x in enumerate(a))
    code += ''.join('T->in[%d]=%s;' % (8 + i, f.read(x, 'u32')) for i, x in enumerate(b))
    code += read_accumulators(f, c, types[-1], 16)
    code += 'T->in[24]=%d;%s' % ('bf16' in inst.mods, f.warp_op('OP_WMMA', FULL))
    return '{%s%s}' % (code, write_accumulators(f, d, types[0]))


def fragment_transfer(f, inst):
    which, loading, row_major = inst.mods[1], inst.mods[0] == 'load', 'row' in inst.mods
    registers, where = (inst.args[0], inst.args[1]) if loading else (inst.args[1], inst.args[0])
    parts, wide = elements(registers), types_of(inst)[-1] == 'f32'
    if types_of(inst)[-1] not in ('f16', 'f32', 'bf16'): raise Untranslated('wmma types')
    size, per_register = (4, 1) if wide else (2, 2)
    stride = f.read(inst.args[2], 'u32') if len(inst.args) > 2 else '16u'
    code = '%s{u64 a_=%s,s_=%s;' % (f.warp_op('OP_SYNC', FULL), f.memory(where), stride)

    def element(e):
        row, column = fragment_position(which, len(parts) * per_register, e)
        return 'a_+%d*(u64)(%s*s_+%s)' % ((size, row, column) if row_major else (size, column, row))
    for i, x in enumerate(parts):
        if wide and loading: code += f.write(x, 'f32', 'load<f32,GENERIC>(T,%s,%d)' % (element(i), f.line))
        elif wide: code += 'store<f32,GENERIC>(T,%s,%s,%d);' % (element(i), f.read(x, 'f32'), f.line)
        elif loading: code += f.write(x, 'u32', 'load<u16,GENERIC>(T,%s,%d)|(u32)load<u16,GENERIC>(T,%s,%d)<<16' % (element(2 * i), f.line, element(2 * i + 1), f.line))
        else: code += '{u32 q_=%s;store<u16,GENERIC>(T,%s,(u16)q_,%d);store<u16,GENERIC>(T,%s,(u16)(q_>>16),%d);}' % (f.read(x, 'u32'), element(2 * i), f.line, element(2 * i + 1), f.line)
    return code + '}' + f.warp_op('OP_SYNC', FULL)
