# SPDX-License-Identifier: Apache-2.0
"""Barriers and warp-wide instructions: every lane leaves its operands in the thread's mailbox, the last
one to arrive computes all results (runtime/warp_ops.cpp)."""
from emitter import op
from ops_arith import result_type
from ptx_types import UNSIGNED, Untranslated

FULL = '~0u'


def aligned(inst):
    return int(inst.opcode == 'bar' or 'aligned' in inst.mods)


@op('bar', 'barrier')
def barrier(f, inst):
    f.uses.add('fibers')
    if 'warp' in inst.mods: return f.warp_op('OP_SYNC', f.read(inst.args[0], 'u32'))
    if 'cluster' in inst.mods:  # a cluster is one block: meet at its wait
        return ';' if 'arrive' in inst.mods else 'nogpu_barrier(T,15,0,0,%d);' % f.line
    if 'red' in inst.mods:
        kind = 'BAR_POPC' if 'popc' in inst.mods else 'BAR_AND' if 'and' in inst.mods else 'BAR_OR'
        count = f.read(inst.args[2], 'u32') if len(inst.args) > 3 else '0'
        e = 'nogpu_barrier_reduce(T,%s,%s,%s,%s,%d,%d)' % (f.read(inst.args[1], 'u32'), count, f.read(inst.args[-1], 'bool'), kind, aligned(inst), f.line)
        return f.write(inst.args[0], 'u32' if kind == 'BAR_POPC' else 'bool', e)
    number = f.read(inst.args[0], 'u32')
    count = f.read(inst.args[1], 'u32') if len(inst.args) > 1 else '0'
    if 'arrive' in inst.mods: return 'nogpu_barrier_arrive(T,%s,%s,%d);' % (number, count, f.line)
    return 'nogpu_barrier(T,%s,%s,%d,%d);' % (number, count, aligned(inst), f.line)


@op('shfl')
def shuffle(f, inst):
    targets = [x.strip() for x in inst.args[0].split('|')]
    mode = next(m for m in inst.mods if m in ('up', 'down', 'bfly', 'idx')).upper()
    mask = f.read(inst.args[4], 'u32') if 'sync' in inst.mods else FULL
    code = ''.join('T->in[%d]=%s;' % (i, f.read(inst.args[i + 1], 'u32')) for i in range(3))
    code += f.warp_op('OP_SHFL_' + mode, mask) + f.write(targets[0], 'u32', 'T->out[0]')
    if len(targets) > 1: code += f.write(targets[1], 'bool', '(bool)T->out_pred')
    return '{%s}' % code


@op('vote')
def vote(f, inst):
    kind = next(m for m in inst.mods if m in ('ballot', 'any', 'all', 'uni'))
    mask = f.read(inst.args[2], 'u32') if 'sync' in inst.mods else FULL
    return '{T->in[0]=%s;%s%s}' % (f.read(inst.args[1], 'bool'), f.warp_op('OP_' + kind.upper(), mask),
                                   f.write(inst.args[0], 'u32' if kind == 'ballot' else 'bool', 'T->out[0]' if kind == 'ballot' else '(bool)T->out[0]'))


@op('match')
def match(f, inst):
    _, ct = result_type(inst)
    targets = [x.strip() for x in inst.args[0].split('|')]
    kind = 'OP_MATCH_ANY' if 'any' in inst.mods else 'OP_MATCH_ALL'
    code = 'u64 v_=%s;T->in[0]=(u32)v_;T->in[1]=(u32)(v_>>32);' % f.read(inst.args[1], ct)
    code += f.warp_op(kind, f.read(inst.args[2], 'u32')) + f.write(targets[0], 'u32', 'T->out[0]')
    if len(targets) > 1: code += f.write(targets[1], 'bool', '(bool)T->out_pred')
    return '{%s}' % code


@op('redux')
def reduce(f, inst):
    _, ct = result_type(inst)
    if ct == 'f32': raise Untranslated('redux on f32')
    kind = next(m for m in inst.mods if m in ('add', 'min', 'max', 'and', 'or', 'xor')).upper()
    if kind in ('MIN', 'MAX'): kind += '_S' if ct in UNSIGNED else '_U'
    return '{T->in[0]=%s;%s%s}' % (f.read(inst.args[1], 'u32'), f.warp_op('OP_RED_' + kind, f.read(inst.args[2], 'u32')), f.write(inst.args[0], 'u32', 'T->out[0]'))


@op('activemask')
def active_mask(f, inst):
    f.uses.add('fibers')
    return f.write(inst.args[0], 'u32', 'nogpu_activemask(T,%d)' % f.line)


@op('elect')
def elect(f, inst):
    targets = [x.strip() for x in inst.args[0].split('|')]
    f.uses.add('fibers')
    return '{u32 m_=%s;%s%s}' % (f.read(inst.args[1], 'u32'), f.write(targets[0], 'u32', '(u32)__builtin_ctz(m_)'),
                                 f.write(targets[1], 'bool', '((u32)__builtin_ctz(m_)==T->lane)'))
