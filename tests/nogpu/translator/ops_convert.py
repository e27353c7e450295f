# SPDX-License-Identifier: Apache-2.0
"""cvt and address-space conversions."""
from emitter import op
from ops_arith import ROUNDING, types_of
from ptx_parser import elements
from ptx_types import C_TYPE, Untranslated, is_float

FP8 = {'e4m3': '3,7,false', 'e5m2': '2,15,true'}
TO_INTEGER = {'rni': '__builtin_nearbyint(%s)', 'rzi': '__builtin_trunc(%s)', 'rmi': '__builtin_floor(%s)', 'rpi': '__builtin_ceil(%s)', None: '%s'}


def half_format(ptx):
    return 'BF16' if ptx.startswith('bf16') else 'F16'


def narrow_half(ptx, expression, inst):
    if 'relu' in inst.mods: expression = 'fmax_nan<f32>(%s,0.f)' % expression
    if 'sat' in inst.mods: expression = 'saturate<f32>(%s)' % expression
    if 'rz' in inst.mods: return 'f32_to_%s_rz(%s)' % ('bf16' if ptx.startswith('bf16') else 'f16', expression)
    if 'rm' in inst.mods or 'rp' in inst.mods: raise Untranslated('directed rounding to ' + ptx)
    return '%s::down(%s)' % (half_format(ptx), expression)


@op('cvt')
def convert(f, inst):
    types = types_of(inst)
    dst, src = types[0], types[-1]
    d, s = inst.args[0], inst.args[1]
    if dst in ('f16x2', 'bf16x2') and src == 'f32':   # first source goes to the high half
        hi, lo = (narrow_half(dst, f.read(x, 'f32'), inst) for x in inst.args[1:3])
        return f.write(d, 'u32', '(u32)%s<<16|(u32)%s' % (hi, lo))
    if dst in ('e4m3x2', 'e5m2x2'):
        if src == 'f32': hi, lo = (f.read(x, 'f32') for x in inst.args[1:3])
        else: hi, lo = ('%s::up((u16)(%s>>%d))' % (half_format(src), f.read(s, 'u32'), shift) for shift in (16, 0))
        if 'relu' in inst.mods: hi, lo = 'fmax_nan<f32>(%s,0.f)' % hi, 'fmax_nan<f32>(%s,0.f)' % lo
        fmt = FP8[dst[:4]]
        return f.write(d, 'u16', '(u16)((u32)f32_to_fp8<%s>(%s)<<8|f32_to_fp8<%s>(%s))' % (fmt, hi, fmt, lo))
    if src in ('e4m3x2', 'e5m2x2'):
        fmt, x, down = FP8[src[:4]], f.read(s, 'u16'), half_format(dst)
        return f.write(d, 'u32', '(u32)%s::down(fp8_to_f32<%s>((u8)(%s>>8)))<<16|(u32)%s::down(fp8_to_f32<%s>((u8)%s))' % (down, fmt, x, down, fmt, x))
    if dst == 'tf32': return f.write(d, 'u32', 'f32_to_tf32_%s(%s)' % ('rn' if 'rn' in inst.mods else 'rna', f.read(s, 'f32')))

    cd, cs = C_TYPE[dst], C_TYPE[src]
    value = f.read(s, cs)
    if src in ('f16', 'bf16'): value, cs = '%s::up(%s)' % (half_format(src), value), 'f32'
    rounding = next((m for m in inst.mods if m in ('rn', 'rz', 'rm', 'rp', 'rni', 'rzi', 'rmi', 'rpi')), None)
    if dst in ('f16', 'bf16'):
        if cs == 'f32' and rounding and rounding.endswith('i'): value = TO_INTEGER[rounding] % value
        if cs == 'f64': value = 'f64_to_f32_odd(%s)' % value
        elif not is_float(cs): value = 'f64_to_f32_odd((f64)%s)' % value
        return f.write(d, 'u16', narrow_half(dst, '(f32)' + value, inst))
    if is_float(cs) and is_float(cd): return f.write(d, cd, float_to_float(inst, cd, cs, value, rounding))
    if is_float(cs):
        if 'ftz' in inst.mods and cs == 'f32': value = 'flush(%s)' % value
        return f.write(d, cd, 'float_to_int<%s>(%s)' % (cd, TO_INTEGER[rounding] % ('(f64)' + value)))
    if is_float(cd):
        e = '(%s)%s' % (cd, value) if rounding in (None, 'rn') else 'from_int<%s,%s,%s>(%s)' % (ROUNDING[rounding], cd, cs, value)
        return f.write(d, cd, 'saturate<%s>(%s)' % (cd, e) if 'sat' in inst.mods else e)
    if 'sat' in inst.mods: return f.write(d, cd, 'clamp_to<%s>((s128)%s)' % (cd, value))
    return f.write(d, cd, '(%s)%s' % (cd, value))


def float_to_float(inst, cd, cs, value, rounding):
    if 'ftz' in inst.mods and cs == 'f32': value = 'flush(%s)' % value
    if rounding in ('rni', 'rzi', 'rmi', 'rpi'): value = TO_INTEGER[rounding] % value
    if cs == 'f64' and cd == 'f32' and rounding in ('rz', 'rm', 'rp'): value = 'narrow<%s>(%s)' % (ROUNDING[rounding], value)
    value = '(%s)%s' % (cd, value)
    if 'sat' in inst.mods: value = 'saturate<%s>(%s)' % (cd, value)
    if 'ftz' in inst.mods and cd == 'f32': value = 'flush(%s)' % value
    return value


@op('cvta')
def convert_address(f, inst):
    """All windows live in one flat address space, so generic and specific addresses are equal."""
    return f.write(inst.args[0], 'u64', f.read(inst.args[1], 'u64')) if 'u64' in inst.mods else f.write(inst.args[0], 'u32', f.read(inst.args[1], 'u32'))


@op('isspacep')
def is_in_space(f, inst):
    a = f.read(inst.args[1], 'u64')
    shared, local = '(%s-T->shared_begin<T->shared_size)' % a, '(%s-T->stack_begin<T->stack_end-T->stack_begin)' % a
    param = '(%s-T->param_begin<T->param_size)' % a
    if 'shared' in inst.mods: e = shared
    elif 'local' in inst.mods: e = local
    elif 'param' in inst.mods: e = param
    elif 'global' in inst.mods: e = '!(%s||%s||%s)' % (shared, local, param)
    else: e = 'false'
    return f.write(inst.args[0], 'bool', e)


@op('mapa', 'getctarank')
def map_to_cluster(f, inst):
    if inst.opcode == 'getctarank': return f.write(inst.args[0], 'u32', '0u')
    return f.write(inst.args[0], 'u64' if 'u64' in inst.mods else 'u32', f.read(inst.args[1], 'u64' if 'u64' in inst.mods else 'u32'))
