# SPDX-License-Identifier: Apache-2.0
"""Splits one translation unit (a kernel, the functions it calls, and the runtime's layout directives)
into functions, statements and operands. The unit is written by the runtime (runtime/ptx_module.cpp)."""
import re
from collections import namedtuple

Instruction = namedtuple('Instruction', 'predicate opcode mods args line text')
Function = namedtuple('Function', 'kind name returns params body body_line header')


class Unit:
    """directives: //@shared NAME OFFSET, //@dynamic NAME, //@static SIZE, //@symbol NAME INDEX, //@param NAME OFFSET"""

    def __init__(self, text):
        self.shared, self.symbols, self.param_offset = {}, {}, {}
        self.dynamic, self.static_size = set(), 0
        for kind, rest in re.findall(r'^//@(\w+) (.*)$', text, re.M):
            fields = rest.split()
            if kind == 'shared': self.shared[fields[0]] = int(fields[1])
            elif kind == 'dynamic': self.dynamic.add(fields[0])
            elif kind == 'static': self.static_size = int(fields[0])
            elif kind == 'symbol': self.symbols[fields[0]] = int(fields[1])
            elif kind == 'param': self.param_offset[fields[0]] = int(fields[1])
        self.text = _blank_comments(text)
        self.functions, self.prototypes = _functions(self.text)


def _blank_comments(text):
    # Newlines stay, so that line numbers keep meaning something in error reports.
    text = re.sub(r'//[^\n]*', '', text)
    return re.sub(r'/\*.*?\*/', lambda m: '\n' * m.group(0).count('\n'), text, flags=re.S)


def _names(parameter_list):
    return [re.search(r'([\w$]+)\s*(?:\[\d*\])*\s*$', p.strip()).group(1)
            for p in parameter_list.split(',') if p.strip()]


def _functions(text):
    functions, prototypes = [], []
    head = re.compile(r'(?:\.(?:visible|weak|extern|common)\s+)*\.(entry|func)\b')
    position = 0
    while True:
        m = head.search(text, position)
        if not m: return functions, prototypes
        brace, semicolon = text.find('{', m.end()), text.find(';', m.end())
        header = text[m.start():semicolon if brace < 0 or 0 <= semicolon < brace else brace]
        parts = re.search(r'\.(entry|func)\s*(\([^)]*\))?\s*([\w$]+)\s*(?:\(([^)]*)\))?', header, re.S)
        kind, returns, name, params = parts.groups()
        returns, params = _names((returns or '()')[1:-1]), _names(params or '')
        if brace < 0 or 0 <= semicolon < brace:
            prototypes.append(Function(kind, name, returns, params, None, 0, header))
            position = semicolon + 1
            continue
        end = matching_brace(text, brace)
        functions.append(Function(kind, name, returns, params, text[brace + 1:end], text.count('\n', 0, brace) + 1, header))
        position = end + 1


def matching_brace(text, start):
    depth = 0
    for m in re.compile(r'[{}]').finditer(text, start):
        depth += 1 if m.group(0) == '{' else -1
        if depth == 0: return m.start()
    raise ValueError('unbalanced braces')


def split_operands(text):
    """Splits at commas outside brackets."""
    if '{' not in text and '(' not in text and '[' not in text:
        return [x.strip() for x in text.split(',')] if text.strip() else []
    parts, depth, current = [], 0, ''
    for ch in text:
        if ch in '{[(': depth += 1
        elif ch in '}])': depth -= 1
        if ch == ',' and depth == 0:
            parts.append(current.strip())
            current = ''
        else: current += ch
    if current.strip(): parts.append(current.strip())
    return parts


def elements(operand):
    """'{%f1, %f2}' -> ['%f1', '%f2']; a scalar -> [scalar]."""
    return split_operands(operand[1:-1]) if operand.startswith('{') else [operand]


_SPACE = re.compile(r'\s*')
_LABEL = re.compile(r'([\w$]+)\s*:(?!:)')
_PREDICATE = re.compile(r'@(!?)\s*(%?[\w$]+)\s+(.*)')
_OPCODE = re.compile(r'([\w.:]+)\s*(.*)')


def statements(body, first_line):
    """Yields ('open'|'close'|'label'|'directive'|'instruction', value, line)."""
    i, line, counted = 0, first_line, 0
    while True:
        i = _SPACE.match(body, i).end()
        if i >= len(body): return
        line += body.count('\n', counted, i)
        counted = i
        if body[i] in '{}':
            yield ('open' if body[i] == '{' else 'close'), None, line
            i += 1
            continue
        m = _LABEL.match(body, i)
        if m:
            yield 'label', m.group(1), line
            i = m.end()
            continue
        if body.startswith(('.loc ', '.loc\t', '.pragma'), i):
            # .loc has no semicolon: it ends with its line
            end = body.find('\n', i)
            if body.startswith('.pragma', i): end = body.find(';', i)
            i = (end if end >= 0 else len(body)) + 1
            continue
        end = body.index(';', i)
        text = ' '.join(body[i:end].split())
        i = end + 1
        if not text: continue
        if text[0] == '.':
            yield 'directive', text, line
            continue
        predicate, rest = None, text
        m = _PREDICATE.match(text)
        if m: predicate, rest = (m.group(1) == '!', m.group(2)), m.group(3)
        op, args = _OPCODE.match(rest).groups()
        pieces = op.split('.')
        mods = [m for piece in pieces[1:] for m in piece.split('::')] if '::' in op else pieces[1:]
        yield 'instruction', Instruction(predicate, pieces[0], mods, split_operands(args), line, text), line
