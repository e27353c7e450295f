#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completes a stand-in library: every function the real library exports and the stand-in does not define
gets a stub that says so on stderr and returns an error; *_ptsz/_ptds variants jump to their base function.

usage: gen_stubs.py REAL.so ERROR_CODE OBJECT... > stubs.s   (a list of names on stdin if REAL.so is '-')"""
import subprocess
import sys


def exported(path, *flags):
    out = subprocess.run(['nm', *flags, '--defined-only', path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split('@')[0] for line in out.splitlines() if len(line.split()) == 3 and line.split()[1] in 'TW'}


real, code, objects = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
names = set(sys.stdin.read().split()) if real == '-' else exported(real, '-D')
defined = set().union(*(exported(o, '-g') for o in objects))
print('.section .note.GNU-stack,"",@progbits\n.text')
for name in sorted(names - defined):
    if name.startswith('_') and not name.startswith('__cuda') or name.startswith('p') and name[1:5] == 'nccl': continue
    base = name[:-5] if name.endswith(('_ptsz', '_ptds')) else None
    print('.globl %s\n.type %s,@function\n%s:' % (name, name, name))
    if base in defined: print('  jmp %s@PLT' % base)
    else:
        print('  sub $8,%%rsp\n  lea 1f(%%rip),%%rdi\n  call nogpu_missing@PLT\n  mov $%d,%%eax\n  add $8,%%rsp\n  ret\n1: .asciz "%s"' % (code, name))
