#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Translates one unit, a kernel and what it calls (see runtime/ptx_module.cpp), to C++.

usage: ptx2cpp.py UNIT.ptx OUT.cpp
"""
import sys

import ops_arith, ops_bits, ops_control, ops_convert, ops_matrix, ops_memory, ops_warp  # noqa: F401  (fill the handler table)
from emitter import FunctionEmitter, c_name
from ptx_parser import Unit
from ptx_types import Untranslated


def signature(function, entry_name):
    if function.kind == 'entry': return 'extern "C" void %s(Thread*T,char*P)' % entry_name
    return 'static void %s(Thread*T%s)' % (c_name(function.name), ''.join(',char*' + c_name(p) for p in function.returns + function.params))


def translate(text):
    """The unit as C++. If an instruction is unknown the kernel is left empty and nogpu_problem says why."""
    unit = Unit(text)
    names = {x.name for x in unit.functions if x.kind == 'func'}
    out, uses, problems = ['#include "device.h"'], set(), []
    entry_name = 'nogpu_kernel'
    for function in unit.functions:
        if function.kind == 'func': out.append(signature(function, '') + ';')
    exported = [function.name for function in unit.functions if function.kind == 'func' and not any(g.kind == 'entry' for g in unit.functions)]
    for function in unit.functions:
        f = FunctionEmitter(unit, names)
        f.is_kernel = function.kind == 'entry'
        if f.is_kernel: f.param_base = {p: '(P+%d)' % unit.param_offset[p] for p in function.params}
        else: f.param_base = {p: c_name(p) for p in function.returns + function.params}
        out.append(signature(function, entry_name) + '{')
        try:
            f.emit_body(function)
            out += f.declarations + f.body
        except Untranslated as problem:
            message = '%s in %s' % (problem, function.name)
            problems.append(message)
        out.append('}')
        uses |= f.uses
    if exported:  # a unit of functions whose addresses are stored in module variables
        out.append('extern "C" void*const nogpu_functions[]={%s};' % ','.join('(void*)&' + c_name(n) for n in exported))
        out.append('extern "C" const char*const nogpu_function_names[]={%s,0};' % ','.join('"%s"' % n for n in exported))
    if problems: out.append('extern "C" const char nogpu_problem[]="%s";' % problems[0].replace('\\', '\\\\').replace('"', "'"))
    flags = sum(bit for name, bit in (('fibers', 1), ('spins', 2), ('async', 4)) if name in uses)
    out.append('extern "C" const u32 nogpu_flags=%d;' % flags)
    return '\n'.join(out) + '\n'


def main():
    with open(sys.argv[1]) as file: code = translate(file.read())
    with open(sys.argv[2], 'w') as file: file.write(code)


if __name__ == '__main__':
    main()
