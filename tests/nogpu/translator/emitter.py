# SPDX-License-Identifier: Apache-2.0
"""Turns one PTX function into one C++ function. Instructions are looked up in a table that the
ops_*.py modules fill through the @op decorator; this module knows registers, operands and scopes."""
import re
from ptx_types import C_TYPE, SIZE, Untranslated, is_float, unsigned, UINT_OF_SIZE
from ptx_parser import elements, split_operands, statements

HANDLERS = {}


def op(*names):
    def register(function):
        for name in names: HANDLERS[name] = function
        return function
    return register


def c_name(ptx_name):
    """Prefixed, so that no name from inline PTX meets one of the generated code's own."""
    if ptx_name[0] not in '%$': ptx_name = 'N_' + ptx_name
    return re.sub(r'[^A-Za-z0-9_]', '_', ptx_name.replace('%', 'R_').replace('$', 'L_'))


SPECIAL_REGISTER = {
    '%laneid': 'T->lane', '%warpid': 'T->warp', '%nwarpid': '((T->ntid.x*T->ntid.y*T->ntid.z+31)/32)',
    '%lanemask_lt': '((1u<<T->lane)-1)', '%lanemask_le': '((2u<<T->lane)-1)', '%lanemask_eq': '(1u<<T->lane)',
    '%lanemask_gt': '(~((2u<<T->lane)-1))', '%lanemask_ge': '(~((1u<<T->lane)-1))',
    '%dynamic_smem_size': 'T->dynamic_size', '%total_smem_size': 'T->shared_size', '%aggr_smem_size': 'T->shared_size',
    '%clock': '(u32)__builtin_ia32_rdtsc()', '%clock_hi': '(u32)(__builtin_ia32_rdtsc()>>32)',
    '%clock64': '(u64)__builtin_ia32_rdtsc()', '%globaltimer': '(u64)__builtin_ia32_rdtsc()',
    '%globaltimer_lo': '(u32)__builtin_ia32_rdtsc()', '%globaltimer_hi': '(u32)(__builtin_ia32_rdtsc()>>32)',
    '%smid': '0u', '%nsmid': '1u', '%gridid': '0u', '%envreg0': '0u',
    '%envreg1': '(u32)(T->grid_workspace>>32)', '%envreg2': '(u32)T->grid_workspace',
    # A cluster is always one block.
    '%is_explicit_cluster': 'false', '%cluster_ctarank': '0u', '%cluster_nctarank': '1u',
    '%reserved_smem_offset_begin': '0u', '%reserved_smem_offset_end': '0u', '%reserved_smem_offset_cap': '0u',
}
for _axis in 'xyz':
    for _name in ('tid', 'ntid', 'ctaid', 'nctaid'):
        SPECIAL_REGISTER['%%%s.%s' % (_name, _axis)] = 'T->%s.%s' % (_name, _axis)
    SPECIAL_REGISTER['%clusterid.' + _axis] = 'T->ctaid.' + _axis
    SPECIAL_REGISTER['%nclusterid.' + _axis] = 'T->nctaid.' + _axis
    SPECIAL_REGISTER['%cluster_ctaid.' + _axis] = '0u'
    SPECIAL_REGISTER['%cluster_nctaid.' + _axis] = '1u'

_MEMORY = re.compile(r'\[\s*([\w$.%]+)\s*(?:\+\s*(-?\w+))?\s*\]$')
_SYMBOL_PLUS = re.compile(r'([\w$.%]+)\s*([+-]\s*-?\d+)?$')
_INTEGER = re.compile(r'-?(0[xX][0-9a-fA-F]+|\d+)U?$')


class FunctionEmitter:
    def __init__(self, unit, functions):
        self.unit, self.functions = unit, functions
        self.scopes = [{}]        # register name -> C type
        self.local = set()        # .local arrays
        self.call_params = set()  # .param variables of a call sequence
        self.param_base = {}      # a function's own parameters: name -> C++ pointer expression
        self.branch_targets = {}
        self.scope_ids, self.label_scopes = [0], set()  # labels inside { } are local to it
        self.declarations, self.body = [], []
        self.line = 0
        self.in_loop = False      # whether the current instruction may run again (decides about yields)
        self.uses = set()         # features the runtime must know: 'fibers', 'spins'

    # ------------------------------------------------------------ operands
    def register_type(self, name):
        for scope in reversed(self.scopes):
            if name in scope: return scope[name]
        return None

    def read(self, operand, ctype):
        """A C++ expression for the operand's bits seen as ctype."""
        operand = operand.strip()
        rtype = self.register_type(operand)
        if rtype: return self._convert(c_name(operand), rtype, ctype)
        if operand.startswith('!'): return '(!%s)' % self.read(operand[1:], 'bool')
        if operand in SPECIAL_REGISTER: return '(%s)(%s)' % (ctype, SPECIAL_REGISTER[operand])
        if _INTEGER.match(operand):
            value = int(operand.rstrip('U'), 0) if not re.match(r'-?0\d', operand) else int(operand.rstrip('U'), 8)
            if ctype == 'bool': return str(bool(value)).lower()
            if is_float(ctype): return 'bits<%s>((%s)%dLL)' % (ctype, 'u32' if ctype == 'f32' else 'u64', value)
            return '((%s)%s)' % (ctype, '%dLL' % value if value < 2**63 else '%dULL' % value)
        m = re.match(r'(-?)0([fFdD])([0-9a-fA-F]+)$', operand)
        if m: return self._float_literal(m, ctype)
        if re.match(r'-?\d+\.\d*([eE][-+]?\d+)?$', operand): return '(%s)%s' % (ctype, operand)
        m = _SYMBOL_PLUS.match(operand)
        if m:
            address = self.address_of(m.group(1))
            if address: return '((%s)(%s%s))' % (ctype, address, '+(%s)' % m.group(2).lstrip('+') if m.group(2) else '')
        raise Untranslated('operand ' + operand)

    @staticmethod
    def _float_literal(m, ctype):
        single = m.group(2) in 'fF'
        raw = '0x%sULL' % m.group(3)
        value = 'bits<%s>((%s)%s)' % (('f32', 'u32', raw) if single else ('f64', 'u64', raw))
        if ctype == 'f64' and single: value = '(f64)' + value
        elif not is_float(ctype): value = '(%s)%s' % (ctype, raw)
        elif ctype == 'f32' and not single: value = '(f32)' + value
        return ('-' if m.group(1) else '') + value

    def _convert(self, expression, rtype, ctype):
        if rtype == ctype: return expression
        if rtype == 'bool' or ctype == 'bool': return '((%s)%s)' % (ctype, expression)
        if SIZE[rtype] == SIZE[ctype]:
            if is_float(rtype) or is_float(ctype): return 'bits<%s>(%s)' % (ctype, expression)
            return '((%s)%s)' % (ctype, expression)
        if is_float(rtype): expression = 'bits<%s>(%s)' % ('u32' if rtype == 'f32' else 'u64', expression)
        if is_float(ctype): return 'bits<%s>((%s)%s)' % (ctype, 'u32' if ctype == 'f32' else 'u64', expression)
        return '((%s)%s)' % (ctype, expression)

    def write(self, operand, ctype, expression):
        """A statement storing the ctype-valued expression in the operand."""
        operand = operand.strip()
        if operand == '_': return '(void)(%s);' % expression
        rtype = self.register_type(operand)
        if rtype is None: raise Untranslated('destination ' + operand)
        name = c_name(operand)
        if rtype == ctype: return '%s=%s;' % (name, expression)
        if is_float(rtype) or (is_float(ctype) and rtype != 'bool'):
            if SIZE[rtype] == SIZE[ctype]: return '%s=bits<%s>((%s)(%s));' % (name, rtype, ctype, expression)
            if is_float(rtype): raise Untranslated('destination size of ' + operand)
            return '%s=bits<%s>(%s);' % (name, 'u32' if ctype == 'f32' else 'u64', expression)
        return '%s=(%s)(%s)(%s);' % (name, rtype, ctype, expression)

    def address_of(self, name):
        unit = self.unit
        if name in self.local: return '(u64)' + c_name(name)
        if name in self.param_base: return '(u64)' + self.param_base[name]
        if name in self.call_params: return '(u64)' + c_name(name)
        if name in unit.shared: return '(T->shared_begin+%d)' % unit.shared[name]
        if name in unit.dynamic: return '(T->shared_begin+%d)' % unit.static_size
        if name in unit.symbols: return 'T->symbols[%d]' % unit.symbols[name]
        if name in self.functions: return '(u64)&' + c_name(name)
        return None

    def memory(self, operand):
        """The address expression of '[base+offset]'."""
        m = _MEMORY.match(operand)
        if not m: raise Untranslated('address ' + operand)
        base, offset = m.groups()
        rtype = self.register_type(base)
        if rtype: address = '(u64)%s' % self.read(base, 'u64' if SIZE[rtype] == 8 else 'u32')
        else: address = self.address_of(base) or '(u64)' + self.read(base, 'u64')
        return '(%s+(u64)(%s))' % (address, offset) if offset else '(%s)' % address

    def is_param_memory(self, operand):
        m = _MEMORY.match(operand)
        return bool(m) and (m.group(1) in self.param_base or m.group(1) in self.call_params)

    def label(self, name):
        for scope in reversed(self.scope_ids):
            if (scope, name) in self.label_scopes: return c_name(name) + ('_in_%d' % scope if scope else '')
        raise Untranslated('label ' + name)

    def yield_point(self):
        """In a loop this instruction may be waiting for another thread: let the others run."""
        if not self.in_loop: return ''
        self.uses.update(('fibers', 'spins'))
        return 'nogpu_yield(T,%d);' % self.line

    def warp_op(self, name, mask):
        self.uses.add('fibers')
        return 'nogpu_warp(T,%s,%s,%d);' % (name, mask, self.line)

    # ------------------------------------------------------------ statements
    def directive(self, text):
        if text.startswith('.reg'):
            ptx_type, names = re.match(r'\.reg\s*\.(\w+)\s+(.*)', text).groups()
            ctype = C_TYPE[ptx_type]
            for name in names.split(','):
                name = name.strip()
                many = re.fullmatch(r'(%?[\w$]+)<(\d+)>', name)
                expanded = ['%s%d' % (many.group(1), i) for i in range(int(many.group(2)))] if many else [name]
                self.scopes[-1].update((n, ctype) for n in expanded)
                if not expanded: continue
                if len(self.scopes) == 1:
                    self.declarations.append('%s %s;' % (ctype, ','.join(c_name(n) + '=0' for n in expanded)))
                else:  # no initialiser: a goto may jump past the scope's start
                    self.body.append('%s %s;' % (ctype, ','.join(c_name(n) for n in expanded)))
        elif text.startswith(('.local', '.param')):
            space, middle, ptx_type, name, dims = re.match(r'\.(local|param)(.*?)\.(\w+)\s+([\w$]+)\s*((?:\[\d*\])*)$', text).groups()
            align = re.search(r'\.align\s+(\d+)', middle)
            count = 1
            for d in re.findall(r'\[(\d*)\]', dims): count *= int(d or 0)
            code = 'alignas(%d) char %s[%d];' % (max(int(align.group(1)) if align else 1, 16), c_name(name), max(count * SIZE[C_TYPE[ptx_type]], 8))
            if space == 'local':
                self.local.add(name)
                self.declarations.append(code)
            else:
                self.call_params.add(name)
                (self.declarations if len(self.scopes) == 1 else self.body).append(code)
        # .shared inside a body is laid out by the runtime; .pragma, .branchtargets, ... carry no code

    def instruction(self, inst):
        self.line = inst.line
        prefix = ''
        if inst.predicate: prefix = 'if(%s%s)' % ('!' if inst.predicate[0] else '', self.read(inst.predicate[1], 'bool'))
        handler = HANDLERS.get(inst.opcode)
        if not handler: raise Untranslated('instruction ' + inst.opcode)
        code = handler(self, inst)
        self.body.append('%s{%s}' % (prefix, code) if prefix else code)

    def emit_body(self, function):
        """Fills declarations and body. Raises Untranslated naming the statement."""
        items = list(statements(function.body, function.body_line))
        looping, self.label_scopes = _loop_ranges(items), _label_scopes(items)
        opened = 0
        for index, (kind, value, line) in enumerate(items):
            self.in_loop = looping[index] or function.kind == 'func'
            try:
                if kind == 'open':
                    self.scopes.append({})
                    opened += 1
                    self.scope_ids.append(opened)
                    self.body.append('{')
                elif kind == 'close':
                    self.scopes.pop()
                    self.scope_ids.pop()
                    self.body.append('}')
                elif kind == 'label':
                    following = items[index + 1] if index + 1 < len(items) else None
                    if following and following[0] == 'directive' and following[1].startswith(('.branchtargets', '.callprototype')):
                        if following[1].startswith('.branchtargets'):
                            self.branch_targets[value] = split_operands(following[1][len('.branchtargets'):])
                    else: self.body.append('%s:;' % self.label(value))
                elif kind == 'directive': self.directive(value)
                else: self.instruction(value)
            except Untranslated as problem:
                text = value.text if kind == 'instruction' else str(value)
                raise Untranslated('%s  [line %d: %s]' % (problem, line, text)) from None
            except (KeyError, IndexError, AttributeError, StopIteration, ValueError) as problem:
                text = value.text if kind == 'instruction' else str(value)
                raise Untranslated('%r  [line %d: %s]' % (problem, line, text)) from None


def _loop_ranges(items):
    """For every statement: does it lie between a label and a later branch to it?"""
    label_at, looping = {}, [False] * len(items)
    for index, (kind, value, _) in enumerate(items):
        if kind == 'label': label_at[value] = index
        elif kind == 'instruction' and value.opcode in ('bra', 'brx') and value.args[0] in label_at:
            for i in range(label_at[value.args[0]], index + 1): looping[i] = True
    return looping


def _label_scopes(items):
    found, stack, opened = set(), [0], 0
    for kind, value, _ in items:
        if kind == 'open':
            opened += 1
            stack.append(opened)
        elif kind == 'close': stack.pop()
        elif kind == 'label': found.add((stack[-1], value))
    return found
