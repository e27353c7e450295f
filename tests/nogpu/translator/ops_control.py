# SPDX-License-Identifier: Apache-2.0
"""Branches, calls, exits."""
from emitter import c_name, op
from ptx_parser import elements, split_operands
from ptx_types import Untranslated


@op('bra')
def branch(f, inst):
    return 'goto %s;' % f.label(inst.args[0])


@op('brx')
def branch_indexed(f, inst):
    targets = f.branch_targets[inst.args[1]]
    return 'switch(%s){%s}' % (f.read(inst.args[0], 'u32'), ''.join('case %d:goto %s;' % (i, f.label(t)) for i, t in enumerate(targets)))


@op('ret')
def ret(f, inst):
    return 'return;'


@op('exit')
def leave(f, inst):
    if f.is_kernel: return 'return;'
    f.uses.add('fibers')
    return 'nogpu_exit(T);'


@op('trap')
def trap(f, inst):
    return 'nogpu_trap(T,%d);' % f.line


@op('brkpt')
def breakpoint_(f, inst):
    return 'nogpu_trap(T,%d);' % f.line


@op('call')
def call(f, inst):
    """call (returns), function, (arguments); parameters are .param variables, passed by address."""
    rest, returns = list(inst.args), []
    if rest[0].startswith('('): returns = split_operands(rest.pop(0)[1:-1])
    target = rest.pop(0)
    arguments = split_operands(rest[0][1:-1]) if rest and rest[0].startswith('(') else []
    known = BUILTINS.get(target)
    if known: return known(f, [c_name(r) for r in returns], [c_name(a) for a in arguments])
    passed = ''.join(',(char*)' + c_name(x) for x in returns + arguments)
    if f.register_type(target):
        f.uses.add('fibers')   # an unknown callee may synchronise
        return '((void(*)(Thread*%s))%s)(T%s);' % (',char*' * len(returns + arguments), f.read(target, 'u64'), passed)
    if target not in f.functions: raise Untranslated('call of ' + target)
    return '%s(T%s);' % (c_name(target), passed)


def word(name):
    return '(*(u64*)%s)' % name


BUILTINS = {
    'vprintf': lambda f, r, a: 'raw_store<u32>((u64)%s,(u32)nogpu_printf(T,(const char*)%s,(const char*)%s));' % (r[0], word(a[0]), word(a[1])),
    '__assertfail': lambda f, r, a: 'nogpu_assert_fail(T,(const char*)%s,(const char*)%s,*(u32*)%s,(const char*)%s,%d);' % (word(a[0]), word(a[1]), a[2], word(a[3]), f.line),
    'malloc': lambda f, r, a: 'raw_store<u64>((u64)%s,nogpu_device_malloc(T,%s));' % (r[0], word(a[0])),
    'free': lambda f, r, a: 'nogpu_device_free(T,%s);' % word(a[0]),
}
