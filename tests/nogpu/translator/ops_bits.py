# SPDX-License-Identifier: Apache-2.0
"""Moves, bitwise logic, shifts and bit-field instructions."""
from emitter import op
from ops_arith import result_type
from ptx_parser import elements
from ptx_types import SIZE, UINT_OF_SIZE, unsigned


@op('mov')
def move(f, inst):
    d, s = inst.args
    if 'b128' in inst.mods: return move_128(f, d, s)
    _, ct = result_type(inst)
    if s.startswith('{'):   # pack
        parts = elements(s)
        part, whole = UINT_OF_SIZE[SIZE[ct] // len(parts)], UINT_OF_SIZE[SIZE[ct]]
        shift = SIZE[ct] * 8 // len(parts)
        return f.write(d, whole, '|'.join('((%s)%s<<%d)' % (whole, f.read(x, part), shift * i) for i, x in enumerate(parts)))
    if d.startswith('{'):   # unpack
        parts = elements(d)
        part, whole = UINT_OF_SIZE[SIZE[ct] // len(parts)], UINT_OF_SIZE[SIZE[ct]]
        shift = SIZE[ct] * 8 // len(parts)
        stores = ''.join(f.write(x, part, '(%s)(m_>>%d)' % (part, shift * i)) for i, x in enumerate(parts))
        return '{%s m_=%s;%s}' % (whole, f.read(s, whole), stores)
    return f.write(d, ct, f.read(s, ct))


def move_128(f, d, s):
    return ''.join(f.write(a, 'u64', f.read(b, 'u64')) for a, b in zip(elements(d), elements(s)))


@op('and', 'or', 'xor')
def logic(f, inst):
    _, ct = result_type(inst)
    sign = {'and': '&', 'or': '|', 'xor': '^'}[inst.opcode]
    return f.write(inst.args[0], ct, '(%s)(%s%s%s)' % (ct, f.read(inst.args[1], ct), sign, f.read(inst.args[2], ct)))


@op('not')
def complement(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, '(!%s)' % f.read(inst.args[1], ct) if ct == 'bool' else '(%s)~%s' % (ct, f.read(inst.args[1], ct)))


@op('cnot')
def logical_not(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, '(%s)(%s==0)' % (ct, f.read(inst.args[1], ct)))


@op('shl')
def shift_left(f, inst):
    u = unsigned(result_type(inst)[1])
    return f.write(inst.args[0], u, 'shift_left<%s>(%s,%s)' % (u, f.read(inst.args[1], u), f.read(inst.args[2], 'u32')))


@op('shr')
def shift_right(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, 'shift_right<%s>(%s,%s)' % (ct, f.read(inst.args[1], ct), f.read(inst.args[2], 'u32')))


@op('shf')
def funnel_shift(f, inst):
    d, lo, hi, n = inst.args
    amount = f.read(n, 'u32')
    amount = 'min_<u32>(%s,32)' % amount if 'clamp' in inst.mods else '(%s&31)' % amount
    return f.write(d, 'u32', 'funnel_%s(%s,%s,%s)' % ('left' if 'l' in inst.mods else 'right', f.read(lo, 'u32'), f.read(hi, 'u32'), amount))


@op('bfe')
def bit_extract(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, 'bit_extract<%s>(%s,%s,%s)' % (ct, f.read(inst.args[1], ct), f.read(inst.args[2], 'u32'), f.read(inst.args[3], 'u32')))


@op('bfi')
def bit_insert(f, inst):
    _, ct = result_type(inst)
    a, b = (f.read(x, ct) for x in inst.args[1:3])
    return f.write(inst.args[0], ct, 'bit_insert<%s>(%s,%s,%s,%s)' % (ct, a, b, f.read(inst.args[3], 'u32'), f.read(inst.args[4], 'u32')))


@op('bmsk')
def bit_mask(f, inst):
    return f.write(inst.args[0], 'u32', 'bit_mask_%s(%s,%s)' % ('clamp' if 'clamp' in inst.mods else 'wrap', f.read(inst.args[1], 'u32'), f.read(inst.args[2], 'u32')))


@op('szext')
def sign_extend(f, inst):
    _, ct = result_type(inst)
    n = f.read(inst.args[2], 'u32')
    n = 'min_<u32>(%s,32)' % n if 'clamp' in inst.mods else '(%s&31)' % n
    return f.write(inst.args[0], ct, 'bit_extract<%s>(%s,0,%s)' % (ct, f.read(inst.args[1], ct), n))


@op('brev')
def reverse(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, 'bit_reverse(%s)' % f.read(inst.args[1], ct))


@op('clz')
def leading_zeros(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], 'u32', 'count_leading_zeros(%s)' % f.read(inst.args[1], ct))


@op('popc')
def population_count(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], 'u32', '(u32)__builtin_popcountll(%s)' % f.read(inst.args[1], ct))


@op('bfind')
def find_leading(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], 'u32', 'find_leading<%s>(%s,%d)' % (ct, f.read(inst.args[1], ct), 'shiftamt' in inst.mods))


@op('fns')
def find_nth(f, inst):
    return f.write(inst.args[0], 'u32', 'find_nth_set(%s,%s,%s)' % (f.read(inst.args[1], 'u32'), f.read(inst.args[2], 'u32'), f.read(inst.args[3], 's32')))


@op('prmt')
def permute(f, inst):
    args = ','.join(f.read(x, 'u32') for x in inst.args[1:4])
    mode = next((i for i, m in enumerate(('f4e', 'b4e', 'rc8', 'ecl', 'ecr', 'rc16')) if m in inst.mods), None)
    return f.write(inst.args[0], 'u32', 'permute_bytes(%s)' % args if mode is None else 'permute_mode(%s,%d)' % (args, mode))


@op('lop3')
def logic_3(f, inst):
    args = inst.args
    if 'BOOL' in inst.mods: raise KeyError('lop3.BOOL')
    return f.write(args[0], 'u32', 'lop3(%s,%s)' % (','.join(f.read(x, 'u32') for x in args[1:4]), args[4]))
