# SPDX-License-Identifier: Apache-2.0
"""Loads, stores, atomics, asynchronous copies, fences, mbarrier."""
from emitter import op
from ops_arith import HALF_TYPES, types_of
from ptx_parser import elements
from ptx_types import C_TYPE, SIZE, Untranslated, is_float, unsigned

STRONG = {'volatile', 'relaxed', 'acquire', 'release', 'mmio', 'acq_rel'}
SPACES = {'global': 'GLOBAL', 'const': 'GLOBAL', 'nc': 'GLOBAL', 'shared': 'SHARED', 'local': 'LOCAL'}


def space_of(inst):
    return next((SPACES[m] for m in inst.mods if m in SPACES), 'GENERIC')


@op('ld', 'ldu')
def load(f, inst):
    if 'b128' in inst.mods: raise Untranslated('128-bit registers')
    ptx = types_of(inst)[-1]
    ct = C_TYPE[ptx]
    address = f.memory(inst.args[1])
    parts = elements(inst.args[0])
    if f.is_param_memory(inst.args[1]):
        return ''.join(f.write(x, ct, 'raw_load<%s>(%s+%d)' % (ct, address, i * SIZE[ct])) for i, x in enumerate(parts))
    space = space_of(inst)
    if STRONG & set(inst.mods):
        stores = ''.join(f.write(x, ct, 'v_[%d]' % i) for i, x in enumerate(parts))
        return '%s{%s v_[%d];load_strong<%s,%d,%s>(T,%s,v_,%d);%s}' % (f.yield_point(), ct, len(parts), ct, len(parts), space, address, f.line, stores)
    if len(parts) > 1 or inst.args[0].startswith('{'):
        stores = ''.join(f.write(x, ct, 'v_[%d]' % i) for i, x in enumerate(parts))
        return '{%s v_[%d];load_vec<%s,%d,%s>(T,%s,v_,%d);%s}' % (ct, len(parts), ct, len(parts), space, address, f.line, stores)
    return f.write(parts[0], ct, 'load<%s,%s>(T,%s,%d)' % (ct, space, address, f.line))


@op('st')
def store(f, inst):
    if 'b128' in inst.mods: raise Untranslated('128-bit registers')
    ptx = types_of(inst)[-1]
    ct = C_TYPE[ptx]
    address = f.memory(inst.args[0])
    parts = elements(inst.args[1])
    values = [f.read(x, ct) for x in parts]
    if f.is_param_memory(inst.args[0]):
        return ''.join('raw_store<%s>(%s+%d,%s);' % (ct, address, i * SIZE[ct], v) for i, v in enumerate(values))
    space = space_of(inst)
    if STRONG & set(inst.mods):
        return '{%s v_[%d]={%s};store_strong<%s,%d,%s>(T,%s,v_,%d);}' % (ct, len(parts), ','.join(values), ct, len(parts), space, address, f.line)
    if len(parts) > 1:
        return '{%s v_[%d]={%s};store_vec<%s,%d,%s>(T,%s,v_,%d);}' % (ct, len(parts), ','.join(values), ct, len(parts), space, address, f.line)
    return 'store<%s,%s>(T,%s,%s,%d);' % (ct, space, address, values[0], f.line)


def combined(operation, ptx, ct):
    """The new value of an atomic as a function of x (old), v (operand) and w (second operand of cas)."""
    if ptx in HALF_TYPES:
        if operation not in ('add', 'min', 'max', 'exch'): raise Untranslated('atomic %s on %s' % (operation, ptx))
        if operation == 'exch': return 'v'
        body = {'add': 'a+b', 'min': 'fmin_ptx<f32>(a,b)', 'max': 'fmax_ptx<f32>(a,b)'}[operation]
        return '%s<%s>([](f32 a,f32 b)->f32{return %s;},x,v)' % ('half2_map' if ptx.endswith('x2') else 'half_map', 'BF16' if ptx.startswith('bf16') else 'F16', body)
    return {'add': '(%s)(x+v)' % ct, 'min': 'min_<%s>(x,v)' % ct, 'max': 'max_<%s>(x,v)' % ct, 'and': '(%s)(x&v)' % ct, 'or': '(%s)(x|v)' % ct,
            'xor': '(%s)(x^v)' % ct, 'exch': 'v', 'inc': '(%s)(x>=v?0:x+1)' % ct, 'dec': '(%s)((x==0||x>v)?v:x-1)' % ct, 'cas': '(x==v?w:x)'}[operation]


@op('atom', 'red')
def atomic(f, inst):
    if 'async' in inst.mods or 'b128' in inst.mods: raise Untranslated('this atomic form')
    returns = inst.opcode == 'atom'
    operation = next(m for m in inst.mods if m in ('add', 'min', 'max', 'and', 'or', 'xor', 'exch', 'cas', 'inc', 'dec'))
    ptx = types_of(inst)[-1]
    ct = C_TYPE[ptx]
    if is_float(ct) and operation in ('exch', 'cas'): ct = 'u32' if ct == 'f32' else 'u64'
    address = f.memory(inst.args[1 if returns else 0])
    operand = inst.args[2 if returns else 1]
    space, code = space_of(inst), ''
    for i, x in enumerate(elements(operand)):
        where = '%s+%d' % (address, i * SIZE[ct]) if i else address
        value = f.read(x, ct)
        if operation == 'add' and not is_float(ct) and ptx not in HALF_TYPES:
            u = unsigned(ct)
            rmw = 'atomic_add_int<%s,%s>(T,%s,(%s)v,%d)' % (u, space, where, u, f.line)
        else: rmw = 'atomic_rmw<%s,%s>(T,%s,%d,[&](%s x)->%s{return %s;})' % (ct, space, where, f.line, ct, ct, combined(operation, ptx, ct))
        second = '%s w=%s;' % (ct, f.read(inst.args[3 if returns else 2], ct)) if operation == 'cas' else ''
        keep = f.write(elements(inst.args[0])[i], ct, 'o_') if returns else '(void)o_;'
        code += '{%s v=%s;%s%s o_=%s;%s}' % (ct, value, second, ct, rmw, keep)
    return code + (f.yield_point() if returns else '')


@op('membar', 'fence')
def fence(f, inst):
    return '__atomic_thread_fence(__ATOMIC_SEQ_CST);'


@op('prefetch', 'prefetchu', 'discard', 'applypriority', 'griddepcontrol', 'setmaxnreg', 'createpolicy', 'pmevent')
def no_effect(f, inst):
    if inst.opcode == 'createpolicy': return f.write(inst.args[0], 'u64', '0ull')
    return ';'


@op('nanosleep')
def sleep(f, inst):
    return f.yield_point() or ';'


# ---------------------------------------------------------------- asynchronous copies
@op('cp')
def copy_async(f, inst):
    """cp.async copies when the program waits for it, the last moment a GPU may: a missing wait then shows."""
    if inst.mods[0] != 'async': raise Untranslated('cp.' + inst.mods[0])
    f.uses.update(('async', 'fibers'))
    if inst.mods[1] == 'bulk': return copy_bulk(f, inst)
    if inst.mods[1] == 'commit_group': return 'nogpu_async_commit(T);'
    if inst.mods[1] == 'wait_group': return 'nogpu_async_wait(T,%s);' % f.read(inst.args[0], 'u32')
    if inst.mods[1] == 'wait_all': return 'nogpu_async_wait_all(T);'
    if inst.mods[1] == 'mbarrier':
        noinc = 'noinc' in inst.mods
        return 'nogpu_async_wait_all(T);' + mbarrier_apply(f, f.memory(inst.args[0]), 'mbarrier_update(w_,%d,0)' % (1 if noinc else 0))
    bytes_ = f.read(inst.args[2], 'u32')
    valid = bytes_
    for extra in inst.args[3:]:   # src-size, ignore-src or cache policy
        rtype = f.register_type(extra)
        if rtype == 'bool': valid = '(%s?0u:%s)' % (f.read(extra, 'bool'), bytes_)
        elif rtype is None or SIZE[rtype] == 4: valid = f.read(extra, 'u32')
    return ('{u64 d_=%s,s_=%s;u32 n_=%s,k_=%s;if(k_>n_)k_=n_;check<SHARED,%s,WRITE>(T,d_,%d);if(k_)nogpu_check_source(T,s_,n_,k_,%d);nogpu_async_copy(T,d_,s_,n_,k_);}'
            % (f.memory(inst.args[0]), f.memory(inst.args[1]), bytes_, valid, inst.args[2], f.line, f.line))


def copy_bulk(f, inst):
    if 'tensor' in inst.mods or 'reduce' in inst.mods: raise Untranslated('tensor or reducing bulk copy')
    if 'commit_group' in inst.mods or 'wait_group' in inst.mods: return ';'
    if 'prefetch' in inst.mods: return ';'
    spaces = [m for m in inst.mods if m in ('global', 'shared')]
    d, s, n = f.memory(inst.args[0]), f.memory(inst.args[1]), f.read(inst.args[2], 'u32')
    code = '{u64 d_=%s,s_=%s;u32 n_=%s;nogpu_check_bulk(T,d_,s_,n_,%d,%d);memcpy((void*)d_,(void*)s_,n_);' % (d, s, n, spaces[0] == 'shared', f.line)
    if spaces[0] == 'shared' and len(inst.args) > 3:
        code += mbarrier_apply(f, f.memory(inst.args[3]), 'mbarrier_update(w_,0,-(s64)n_)')
    return code + '}'


# ---------------------------------------------------------------- mbarrier
def mbarrier_apply(f, address, expression, result=None):
    f.uses.add('fibers')
    store = f.write(result, 'u64', 'w_') if result and result != '_' else ''
    return '{u64 b_=%s;check<SHARED,8,ATOMIC>(T,b_,%d);u64 w_=raw_load<u64>(b_);mbarrier_store(T,b_,w_,%s);%s}' % (address, f.line, expression, store)


@op('mbarrier')
def mbarrier(f, inst):
    kind, args = inst.mods[0], inst.args
    f.uses.add('fibers')
    if kind == 'init':
        return '{u64 b_=%s;check<SHARED,8,ATOMIC>(T,b_,%d);raw_store<u64>(b_,mbarrier_init(%s));}' % (f.memory(args[0]), f.line, f.read(args[1], 'u32'))
    if kind == 'inval': return ';'
    if kind in ('expect_tx', 'complete_tx'):
        sign = '' if kind == 'expect_tx' else '-'
        return mbarrier_apply(f, f.memory(args[0]), 'mbarrier_update(w_,0,%s(s64)%s)' % (sign, f.read(args[1], 'u32')))
    if kind in ('arrive', 'arrive_drop'):
        has_result = not args[0].startswith('[')
        rest = args[1:] if has_result else args
        amount = f.read(rest[1], 'u32') if len(rest) > 1 else None
        drop = 'true' if kind == 'arrive_drop' else 'false'
        if 'expect_tx' in inst.mods: update = 'mbarrier_update(w_,1,(s64)%s,%s)' % (amount, drop)
        else: update = 'mbarrier_update(w_,%s,0,%s)' % (amount or '1', drop)
        return mbarrier_apply(f, f.memory(rest[0]), update, args[0] if has_result else None)
    if kind in ('test_wait', 'try_wait'):
        f.uses.add('spins')
        phase = '(%s&1)' % f.read(args[2], 'u32') if 'parity' in inst.mods else 'mbarrier_phase(%s)' % f.read(args[2], 'u64')
        done = 'mbarrier_phase(raw_load<u64>(b_))!=%s' % phase
        return '{u64 b_=%s;check<SHARED,8,ATOMIC>(T,b_,%d);if(!(%s))nogpu_yield(T,%d);%s}' % (f.memory(args[1]), f.line, done, f.line, f.write(args[0], 'bool', done))
    if kind == 'pending_count': return f.write(args[0], 'u32', '(u32)(%s&0xfffff)' % f.read(args[1], 'u64'))
    raise Untranslated('mbarrier.' + kind)
