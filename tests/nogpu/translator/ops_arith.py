# SPDX-License-Identifier: Apache-2.0
"""Integer and floating-point arithmetic, comparison, selection."""
from emitter import op
from ptx_types import C_TYPE, FLOATS, SIZE, Untranslated, is_float, unsigned

PTX_TYPES = set(C_TYPE)
HALF_TYPES = ('f16', 'bf16', 'f16x2', 'bf16x2')
ROUNDING = {'rn': 'RN', 'rz': 'RZ', 'rm': 'RM', 'rp': 'RP'}


def types_of(inst):
    return [m for m in inst.mods if m in PTX_TYPES]


def result_type(inst):
    """(PTX type, C type) the instruction works in: its last type modifier."""
    ptx = types_of(inst)[-1]
    return ptx, C_TYPE[ptx]


def float_result(inst, ctype, expression):
    """Applies .ftz and .sat to a result."""
    if 'ftz' in inst.mods and ctype == 'f32': expression = 'flush(%s)' % expression
    if 'sat' in inst.mods: expression = 'saturate<%s>(%s)' % (ctype, expression)
    return expression


def float_operand(f, inst, operand, ctype):
    """Reads an operand; .ftz treats subnormal inputs as zero."""
    value = f.read(operand, ctype)
    return 'flush(%s)' % value if 'ftz' in inst.mods and ctype == 'f32' else value


def half_op(f, inst, function, count):
    """function: a C++ callable on f32; operands are count half or packed-half registers."""
    ptx = types_of(inst)[-1]
    fmt = 'BF16' if ptx.startswith('bf16') else 'F16'
    packed = ptx.endswith('x2')
    ctype = 'u32' if packed else 'u16'
    args = ','.join(f.read(a, ctype) for a in inst.args[1:1 + count])
    return f.write(inst.args[0], ctype, '%s<%s>(%s,%s)' % ('half2_map' if packed else 'half_map', fmt, function, args))


def lambda_(params, body):
    return '[](%s)->f32{return %s;}' % (','.join('f32 ' + p for p in params), body)


@op('add', 'sub')
def add_sub(f, inst):
    ptx, ct = result_type(inst)
    sign = '+' if inst.opcode == 'add' else '-'
    if ptx in HALF_TYPES:
        body = 'a%sb' % sign
        if 'sat' in inst.mods: body = 'saturate<f32>(%s)' % body
        return half_op(f, inst, lambda_('ab', body), 2)
    if 'cc' in inst.mods: return carry_add(f, inst, ct, sign, False)
    d, a, b = inst.args
    if is_float(ct):
        mode = next((m for m in inst.mods if m in ('rz', 'rm', 'rp')), None)
        x, y = float_operand(f, inst, a, ct), float_operand(f, inst, b, ct)
        e = 'rounded<%s,%s>([](%s a,%s b,%s){return a%sb;},%s,%s)' % (ROUNDING[mode], ct, ct, ct, ct, sign, x, y) if mode else '(%s%s%s)' % (x, sign, y)
        return f.write(d, ct, float_result(inst, ct, e))
    if 'sat' in inst.mods:
        return f.write(d, ct, 'clamp_to<s32>((s64)%s%s(s64)%s)' % (f.read(a, ct), sign, f.read(b, ct)))
    u = unsigned(ct)
    return f.write(d, u, '(%s)(%s%s%s)' % (u, f.read(a, u), sign, f.read(b, u)))


@op('addc', 'subc')
def add_with_carry(f, inst):
    return carry_add(f, inst, result_type(inst)[1], '+' if inst.opcode == 'addc' else '-', True)


def carry_add(f, inst, ct, sign, carry_in):
    u, bits = unsigned(ct), SIZE[ct] * 8
    wide = 'u128' if bits == 64 else 'u64'
    carry_out = 'T->carry=(u32)(w_>>%d)&1;' % bits if 'cc' in inst.mods else ''
    return '{%s w_=(%s)%s%s(%s)%s%s%s;%s%s}' % (wide, wide, f.read(inst.args[1], u), sign, wide, f.read(inst.args[2], u), sign,
                                                'T->carry' if carry_in else '0', carry_out, f.write(inst.args[0], u, '(%s)w_' % u))


@op('madc')
def mad_with_carry(f, inst):
    return carry_mad(f, inst, result_type(inst)[1], True)


def carry_mad(f, inst, ct, carry_in):
    u, bits = unsigned(ct), SIZE[ct] * 8
    wide = 'u128' if bits == 64 else 'u64'
    product_type = {'s32': 's64', 's64': 's128'}.get(ct, wide)
    d, a, b, c = inst.args
    product = '(%s)(((%s)%s*(%s)%s)>>%d)' % (u, product_type, f.read(a, ct), product_type, f.read(b, ct), bits if 'hi' in inst.mods else 0)
    carry_out = 'T->carry=(u32)(w_>>%d)&1;' % bits if 'cc' in inst.mods else ''
    return '{%s w_=(%s)%s+(%s)%s+%s;%s%s}' % (wide, wide, product, wide, f.read(c, u), 'T->carry' if carry_in else '0',
                                              carry_out, f.write(d, u, '(%s)w_' % u))


@op('mul', 'mad', 'mul24', 'mad24')
def multiply(f, inst):
    ptx, ct = result_type(inst)
    mad = inst.opcode.startswith('mad')
    if ptx in HALF_TYPES: return fused_multiply_add(f, inst) if mad else half_op(f, inst, lambda_('ab', 'saturate<f32>(a*b)' if 'sat' in inst.mods else 'a*b'), 2)
    if mad and 'cc' in inst.mods: return carry_mad(f, inst, ct, False)
    if is_float(ct):
        if mad: return fused_multiply_add(f, inst)
        x, y = (float_operand(f, inst, a, ct) for a in inst.args[1:3])
        mode = next((m for m in inst.mods if m in ('rz', 'rm', 'rp')), None)
        e = 'rounded<%s,%s>([](%s a,%s b,%s){return a*b;},%s,%s)' % (ROUNDING[mode], ct, ct, ct, ct, x, y) if mode else '(%s*%s)' % (x, y)
        return f.write(inst.args[0], ct, float_result(inst, ct, e))
    d, a, b = inst.args[:3]
    if 'wide' in inst.mods:
        w = {'u16': 'u32', 's16': 's32', 'u32': 'u64', 's32': 's64'}[ct]
        product, u = '(%s)%s*(%s)%s' % (w, f.read(a, ct), w, f.read(b, ct)), unsigned(w)
        if mad: return f.write(d, u, '(%s)(%s)+%s' % (u, product, f.read(inst.args[3], u)))
        return f.write(d, w, product)
    u = unsigned(ct)
    if 'hi' in inst.mods:
        w = {'u64': 'u128', 's64': 's128', 'u32': 'u64', 's32': 's64', 'u16': 'u32', 's16': 's32'}[ct]
        e = '(%s)(((%s)%s*(%s)%s)>>%d)' % (u, w, f.read(a, ct), w, f.read(b, ct), 16 if '24' in inst.opcode else SIZE[ct] * 8)
    elif SIZE[ct] > 2: e = '(%s)(%s*%s)' % (u, f.read(a, u), f.read(b, u))
    else: e = '(%s)((u32)%s*(u32)%s)' % (u, f.read(a, u), f.read(b, u))
    if mad:
        if 'sat' in inst.mods: return f.write(d, ct, 'clamp_to<s32>((s64)(s32)%s+(s64)%s)' % (e, f.read(inst.args[3], 's32')))
        e = '(%s)(%s+%s)' % (u, e, f.read(inst.args[3], u))
    return f.write(d, u, e)


@op('fma')
def fused_multiply_add(f, inst):
    ptx, ct = result_type(inst)
    if ptx in HALF_TYPES:
        return half_op(f, inst, 'half_fma_relu' if 'relu' in inst.mods else 'half_fma_sat' if 'sat' in inst.mods else 'half_fma', 3)
    x, y, z = (float_operand(f, inst, a, ct) for a in inst.args[1:4])
    name = '__builtin_fmaf' if ct == 'f32' else '__builtin_fma'
    mode = next((m for m in inst.mods if m in ('rz', 'rm', 'rp')), None)
    e = 'rounded<%s,%s>([](%s a,%s b,%s c){return %s(a,b,c);},%s,%s,%s)' % (ROUNDING[mode], ct, ct, ct, ct, name, x, y, z) if mode else '%s(%s,%s,%s)' % (name, x, y, z)
    return f.write(inst.args[0], ct, float_result(inst, ct, e))


@op('div')
def divide(f, inst):
    _, ct = result_type(inst)
    x, y = (float_operand(f, inst, a, ct) for a in inst.args[1:3])
    if not is_float(ct): return f.write(inst.args[0], ct, 'divide<%s>(%s,%s)' % (ct, x, y))
    mode = next((m for m in inst.mods if m in ('rz', 'rm', 'rp')), None)
    e = 'rounded<%s,%s>([](%s a,%s b,%s){return a/b;},%s,%s)' % (ROUNDING[mode], ct, ct, ct, ct, x, y) if mode else '(%s/%s)' % (x, y)
    return f.write(inst.args[0], ct, float_result(inst, ct, e))


@op('rem')
def remainder(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, 'remainder_<%s>(%s,%s)' % (ct, f.read(inst.args[1], ct), f.read(inst.args[2], ct)))


@op('min', 'max')
def minimum_maximum(f, inst):
    ptx, ct = result_type(inst)
    nan = 'NaN' in inst.mods
    name = 'f%s_%s' % (inst.opcode, 'nan' if nan else 'ptx')
    if 'xorsign' in inst.mods: raise Untranslated('.xorsign')
    if ptx in HALF_TYPES: return half_op(f, inst, lambda_('ab', '%s<f32>(a,b)' % name), 2)
    args = [float_operand(f, inst, a, ct) for a in inst.args[1:]]
    if is_float(ct):
        e = '%s<%s>(%s,%s)' % (name, ct, args[0], args[1])
        if len(args) == 3: e = '%s<%s>(%s,%s)' % (name, ct, e, args[2])
        return f.write(inst.args[0], ct, float_result(inst, ct, e))
    if 'relu' in inst.mods:
        return f.write(inst.args[0], ct, 'max_<%s>(%s_<%s>(%s,%s),0)' % (ct, inst.opcode, ct, args[0], args[1]))
    return f.write(inst.args[0], ct, '%s_<%s>(%s,%s)' % (inst.opcode, ct, args[0], args[1]))


@op('abs')
def absolute(f, inst):
    ptx, ct = result_type(inst)
    if ptx in HALF_TYPES: return sign_bits(f, inst, ptx, '&', 0x7fff)
    a = f.read(inst.args[1], ct)
    if is_float(ct): return f.write(inst.args[0], ct, float_result(inst, ct, ('__builtin_fabsf(%s)' if ct == 'f32' else '__builtin_fabs(%s)') % a))
    u = unsigned(ct)
    return f.write(inst.args[0], ct, '(%s<0?(%s)(0-(%s)%s):%s)' % (a, ct, u, a, a))


@op('neg')
def negate(f, inst):
    ptx, ct = result_type(inst)
    if ptx in HALF_TYPES: return sign_bits(f, inst, ptx, '^', 0x8000)
    a = f.read(inst.args[1], ct)
    if is_float(ct): return f.write(inst.args[0], ct, float_result(inst, ct, '(-%s)' % a))
    return f.write(inst.args[0], ct, '(%s)(0-(%s)%s)' % (ct, unsigned(ct), a))


def sign_bits(f, inst, ptx, operator, mask):
    ct = 'u32' if ptx.endswith('x2') else 'u16'
    if ct == 'u32': mask |= mask << 16
    return f.write(inst.args[0], ct, '(%s)(%s%s0x%xu)' % (ct, f.read(inst.args[1], ct), operator, mask))


@op('sqrt', 'rcp', 'rsqrt', 'ex2', 'lg2', 'sin', 'cos', 'tanh')
def transcendental(f, inst):
    """.approx forms get the accurate value: results differ from a GPU's in the last bits."""
    ptx, ct = result_type(inst)
    formula = {'sqrt': '__builtin_sqrt{s}({x})', 'rcp': '({t})1/{x}', 'rsqrt': '({t})1/__builtin_sqrt{s}({x})', 'ex2': '__builtin_exp2{s}({x})',
               'lg2': '__builtin_log2{s}({x})', 'sin': '__builtin_sin{s}({x})', 'cos': '__builtin_cos{s}({x})', 'tanh': '__builtin_tanh{s}({x})'}[inst.opcode]
    if ptx in HALF_TYPES: return half_op(f, inst, lambda_('a', formula.format(t='f32', s='f', x='a')), 1)
    x = float_operand(f, inst, inst.args[1], ct)
    e = '(%s)' % formula.format(t=ct, s='f' if ct == 'f32' else '', x=x)
    mode = next((m for m in inst.mods if m in ('rz', 'rm', 'rp')), None)
    if mode: e = 'rounded<%s,%s>([](%s a,%s,%s){return %s;},%s)' % (ROUNDING[mode], ct, ct, ct, ct, formula.format(t=ct, s='f' if ct == 'f32' else '', x='a'), x)
    return f.write(inst.args[0], ct, float_result(inst, ct, e))


@op('copysign')
def copy_sign(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, '__builtin_copysign%s(%s,%s)' % ('f' if ct == 'f32' else '', f.read(inst.args[2], ct), f.read(inst.args[1], ct)))


@op('testp')
def test_property(f, inst):
    _, ct = result_type(inst)
    x = f.read(inst.args[1], ct)
    e = {'finite': '__builtin_isfinite(%s)', 'infinite': '__builtin_isinf(%s)', 'number': '!is_nan(%s)', 'notanumber': 'is_nan(%s)',
         'normal': '__builtin_isnormal(%s)', 'subnormal': '(%s!=0&&__builtin_isfinite(%s)&&!__builtin_isnormal(%s))'}[inst.mods[0]]
    return f.write(inst.args[0], 'bool', e.replace('%s', x))


# ---------------------------------------------------------------- comparison
OPERATOR = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>=', 'lo': '<', 'ls': '<=', 'hi': '>', 'hs': '>='}


def comparison(name, a, b, floating):
    if floating:
        if name == 'num': return '(!is_nan(%s)&&!is_nan(%s))' % (a, b)
        if name == 'nan': return '(is_nan(%s)||is_nan(%s))' % (a, b)
        if name.endswith('u') and name[:-1] in OPERATOR: return '(is_nan(%s)||is_nan(%s)||%s%s%s)' % (a, b, a, OPERATOR[name[:-1]], b)
        if name == 'ne': return '(!is_nan(%s)&&!is_nan(%s)&&%s!=%s)' % (a, b, a, b)
    return '(%s%s%s)' % (a, OPERATOR[name], b)


def compare_operands(f, inst, ptx):
    """(comparison expression(s) for the low and, when packed, the high element)"""
    name = inst.mods[0]
    if ptx in ('f16', 'bf16'):
        up = '%s::up(%%s)' % ('BF16' if ptx == 'bf16' else 'F16')
        return [comparison(name, up % f.read(inst.args[1], 'u16'), up % f.read(inst.args[2], 'u16'), True)]
    if ptx in ('f16x2', 'bf16x2'):
        up = '%s::up((u16)(%%s>>%%d))' % ('BF16' if ptx == 'bf16x2' else 'F16')
        a, b = f.read(inst.args[1], 'u32'), f.read(inst.args[2], 'u32')
        return [comparison(name, up % (a, s), up % (b, s), True) for s in (0, 16)]
    ct = C_TYPE[ptx]
    a, b = f.read(inst.args[1], ct), f.read(inst.args[2], ct)
    if 'ftz' in inst.mods and ct == 'f32': a, b = 'flush(%s)' % a, 'flush(%s)' % b
    return [comparison(name, a, b, is_float(ct))]


@op('setp')
def set_predicate(f, inst):
    ptx, _ = result_type(inst)
    tests = compare_operands(f, inst, ptx)
    combine = next((m for m in inst.mods[1:] if m in ('and', 'or', 'xor')), None)
    targets = [t.strip() for t in inst.args[0].split('|')]
    code = 'bool c_=%s;' % tests[0]
    first, second = 'c_', '!c_'
    if len(tests) == 2:
        code += 'bool e_=%s;' % tests[1]
        second = 'e_'
    if combine:
        sign = {'and': '&&', 'or': '||', 'xor': '!='}[combine]
        code += 'bool p_=%s;' % f.read(inst.args[3], 'bool')
        first, second = '%s%sp_' % (first, sign), '%s%sp_' % (second, sign)
    code += f.write(targets[0], 'bool', first)
    if len(targets) > 1: code += f.write(targets[1], 'bool', second)
    return '{%s}' % code


@op('set')
def set_value(f, inst):
    types = types_of(inst)
    tests = compare_operands(f, inst, types[-1])
    combine = next((m for m in inst.mods[1:] if m in ('and', 'or', 'xor')), None)
    if combine:
        p = f.read(inst.args[3], 'bool')
        tests = ['(%s%s%s)' % (t, {'and': '&&', 'or': '||', 'xor': '!='}[combine], p) for t in tests]
    dst = types[0]
    ct = C_TYPE[dst]
    if dst in HALF_TYPES:
        one = 0x3f80 if dst.startswith('bf16') else 0x3c00
        e = '|'.join('((u32)(%s?0x%x:0)<<%d)' % (t, one, 16 * i) for i, t in enumerate(tests))
        return f.write(inst.args[0], ct, '(%s)(%s)' % (ct, e))
    if len(tests) == 2: return f.write(inst.args[0], 'u32', '(%s?0xffffu:0)|(%s?0xffff0000u:0)' % tuple(tests))
    return f.write(inst.args[0], ct, '(%s?%s:0)' % (tests[0], '1.0f' if ct == 'f32' else '(%s)-1' % ct))


@op('selp')
def select(f, inst):
    _, ct = result_type(inst)
    return f.write(inst.args[0], ct, '(%s?%s:%s)' % (f.read(inst.args[3], 'bool'), f.read(inst.args[1], ct), f.read(inst.args[2], ct)))


@op('slct')
def select_by_sign(f, inst):
    value, sign = (C_TYPE[t] for t in types_of(inst))
    return f.write(inst.args[0], value, '(%s>=0?%s:%s)' % (f.read(inst.args[3], sign), f.read(inst.args[1], value), f.read(inst.args[2], value)))


@op('sad')
def absolute_difference(f, inst):
    _, ct = result_type(inst)
    a, b, c = (f.read(x, ct) for x in inst.args[1:4])
    return f.write(inst.args[0], ct, '(%s)(%s+(%s>%s?%s-%s:%s-%s))' % (ct, c, a, b, a, b, b, a))


@op('dp4a')
def dot_product_4(f, inst):
    a, b = types_of(inst)[:2]
    lanes = ['s8' if t[0] == 's' else 'u8' for t in (a, b)]
    return f.write(inst.args[0], 'u32', 'dot4<%s,%s>(%s)' % (lanes[0], lanes[1], ','.join(f.read(x, 'u32') for x in inst.args[1:4])))


@op('dp2a')
def dot_product_2(f, inst):
    a, b = types_of(inst)[:2]
    return f.write(inst.args[0], 'u32', 'dot2<%s,%s>(%s,%d)' % ('s16' if a[0] == 's' else 'u16', 's8' if b[0] == 's' else 'u8',
                                                                ','.join(f.read(x, 'u32') for x in inst.args[1:4]), 'hi' in inst.mods))
