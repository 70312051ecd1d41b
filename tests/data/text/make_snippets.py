"""Makes snippets.json: what Jinja renders for small templates, set up as the library that chat templates are written
for sets it up. Needs the package `jinja2`. Run it in this folder."""

import json

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = tojson

VALUES = {
    "d": {"b": [1, 2.0, -0.5, None, True], "a": {"x": "é\n\"'\\\t\u0001\u007f😀"}, "e": {}, "l": []},
    "f": [1e16, 1e15, 123456789.125, 1e-4, 1e-5, 3.0, 1e22, 5e-324, 0.1, -0.0, 1.5e300],
    "n": [0, -1, 9007199254740993, 18446744073709551615],
    "s": "  Hello, World\n",
    "m": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
}

SNIPPETS = [
    "{{ d|tojson }}",
    "{{ d|tojson(indent=2) }}",
    "{{ d|tojson(indent=4, sort_keys=true) }}",
    "{{ d|tojson(ensure_ascii=true) }}",
    "{{ d|tojson(separators=(',', ':')) }}",
    "{{ f|tojson }}",
    "{{ n|tojson }} {{ none|tojson }} {{ 'a'|tojson }} {{ true|tojson }}",
    "{{ nothing|tojson }}",
    "{{ none }} {{ true }} {{ false }} {{ 1 }} {{ 2.0 }} {{ nothing }}",
    "{{ d.e }} {{ d.l }} {{ [1, 'a', none, true] }} {{ {'a': 'b'} }} {{ (1, 'x') }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' + none }}",
    "{{ 1 + 2 }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 8 }} {{ 7 / 2 }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ [0] * 3 }}",
    "{% for x in none %}{{ x }}{% endfor %}",
    "{% for x in nothing %}{{ x }}{% else %}empty{% endfor %}",
    "{{ nothing.a }}",
    "{{ m[0].nothing is defined }} {{ m[5] is defined }} {{ none.a is defined }}",
    "{{ m[5].role }}",
    "{{ m is sequence }} {{ d is mapping }} {{ s is string }} {{ none is iterable }} {{ d is iterable }} {{ s is sequence }}",
    "{{ d is sequence }} {{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1.0 is float }} {{ none is none }}",
    "{{ true is boolean }} {{ nothing is iterable }} {{ nothing is none }} {{ m is iterable and m is not string }}",
    "{{ s.strip() }}|{{ s.rstrip() }}|{{ s.lstrip() }}|{{ s.split(',') }}|{{ 'a,b,c'.split(',', 1) }}",
    "{{ 'a b  c'.split() }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }}",
    "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }}",
    "{{ 'abc'.replace('b', 'xx') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'x'.join(['a', 'b']) }} {{ 'aXb'.lower() }}",
    "{{ 'ab cd'.title() }} {{ 'ab'.upper() }} {{ 'AB'.capitalize() }} {{ 'abcabc'.count('b') }} {{ 'abc'.find('c') }}",
    "{{ '{} {}'.format('a', 1) }} {{ '%s-%d' % ('a', 3) if false else 'z' }} {{ '%s'|format('q') }}",
    "{{ 'ab'.ljust(4, '.') }} {{ 'ab'.rjust(4) }} {{ 'ab'.center(5, '*') }} {{ '-7'.zfill(4) }}",
    "{{ d.keys()|list }} {{ d.items()|list|length }} {{ d.get('zz', 'no') }} {{ d.get('zz') }} {{ d.e.values()|list }}",
    "{{ m|map(attribute='role')|join(', ') }} {{ m|selectattr('content')|list|length }} {{ m|rejectattr('content', 'none')|list|length }}",
    "{{ m|selectattr('role', 'equalto', 'user')|map(attribute='content')|first }} {{ m|last }}",
    "{{ s|trim }} {{ s|length }} {{ s|upper|trim }} {{ 'a\nb'|indent(2) }} {{ 'x'|default('y') }} {{ nothing|default('y') }}",
    "{{ none|default('y') }} {{ none|default('y', true) }} {{ ''|default('y', true) }} {{ 5|string + 'a' }} {{ '5'|int + 1 }}",
    "{{ d|items|map('first')|list }} {{ [3, 1, 2]|sort }} {{ [1, 2, 3]|reverse|list }} {{ [1, 2, 2]|unique|list }}",
    "{{ d|dictsort|length }} {{ [1, 2, 3]|sum }} {{ [1, 2, 3]|max }} {{ 'abc'|first }} {{ 'abc'|list }} {{ -3|abs }}",
    "{{ m[-1].role }} {{ m[::-1]|map(attribute='role')|list }} {{ m[1:]|length }} {{ 'hello'[1:3] }} {{ 'hello'[::-1] }}",
    "{{ 'a' if m else 'b' }} {{ 'a' in 'cat' }} {{ 'role' in m[0] }} {{ 'user' not in ['user'] }} {{ not none }}",
    "{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1, 2] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% if loop.nextitem is defined %}n{% endif %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in m if x.content %}{{ x.role }}{% endfor %}",
    "{% macro f(a, b='z') %}<{{ a }}{{ b }}>{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}{{ f('q')|upper }}",
    "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}in{% endcall %}",
    "{% set x %}\n  block {{ 1 }}\n{% endset %}{{ x|trim }}|{% filter upper %}abc{% endfilter %}",
    "{% if true %}\n  yes\n{% endif %}\n  {%- if true %} tight {%- endif %}\n\nend\n",
    "  {# comment #}\n  {{- 'a' -}}  \n  {%+ if true %}b{% endif +%}\nc\n\n",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = [] %}{{ c == [] }}{{ d.e == {} }}{{ 1 == 1.0 }}{{ '1' == 1 }}",
    "{{ 'it''s' }}{{ \"q\" 'r' }}{{ 'tab\\t nl\\n \\u00e9 \\x41 \\\\' }}",
    "{{ 10000000000000000000000 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1f }}",
    "{% for row in [[1, 2], [3]] recursive %}{{ row if row is number else loop(row) }}{% endfor %}",
    "{{ '<b>&'|safe }} {{ '<b>&' }} {{ '<b>'|e }}",
    "{{ [1, 2] is eq [1, 2] }} {{ 4 is even }} {{ 4 is divisibleby 2 }} {{ 'a' is in ['a'] }} {{ 3 > 2 > 1 }}",
    "{% with a = 1 %}{{ a }}{% endwith %}{{ a }}",
    "{{ dict(a=1, b='x') }} {{ dict(a=1)['a'] }} {{ m[0]['role'] }} {{ m.0.role }}",
    "{% set _ = m.append(1) %}",
    "{{ 1 / 0 }}",
    "{{ s|nofilter }}",
    "{{ ''.__class__ }}",
    "{{ f(1) }}",
    "{{ 'a\r\nb' }}|{{ 'ab'|batch(1)|list }} {{ ['a', 'b', 'c']|batch(2, 'z')|list }} {{ range(3)|list }} {{ range(5, 1, -2)|list }}",
    "{{ 'abc'|replace('b', 'd') }} {{ 'a b'|title }} {{ 1.25|round(1) }} {{ 2.5|round|int }} {{ '3.7'|float }} {{ 'x'|int(9) }}",
    "{{ {'b': 1, 'a': 2}|tojson }} {{ ['é']|tojson(ensure_ascii=False) }} {{ '\u2028</script>'|tojson }}",
    "{{ nothing|length }} {{ nothing|count }} {{ m[0].tool_calls|length > 0 }} {{ nothing|first }}{{ nothing|last }}.",
    "{{ none|length }}",
    "{{ none|first }}",
    "{{ 'a b c'.split(' ', maxsplit=1) }} {{ 'a b'.split(sep=' ') }} {{ ' a  b  c '.split(none, 1) }} {{ 'a,b'.split(',', -1) }}",
    "{{ 'a b c'.rsplit(' ', maxsplit=1) }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ ' a  b  c '.rsplit(none, 1) }} {{ ''.split(',') }}",
    "{{ 'abc'.split('') }}",
    "{{ 'abc'.split('b', most=1) }}",
    "{{ 'abcabc'.index('c') }} {{ 'abcabc'.rindex('c') }} {{ 'éabc'.find('a', 1) }} {{ 'abcabc'.find('a', 1) }} {{ 'abcabc'.rfind('z') }}",
    "{{ 'abc'.index('z') }}",
    "{{ 'abcabc'.find('a', -3) }} {{ 'abcabc'.find('a', 1, 3) }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'abcabc'.rfind('a', 0, -3) }}",
    "{{ 'aaa'|replace('a', 'b', 2) }} {{ 'aaa'|replace('a', 'b', none) }} {{ 'aaa'|replace('a', 'b', -1) }} {{ 5|replace('5', '6') }}",
    "{{ d.e.copy() }} {{ m[0].copy().role }} {{ [1, 2].copy() }}",
    "{{ '%s is %d' % ('a', 3) }} {{ '%s' % s }} {{ '%s' % [1, 2] }} {{ '%(a)s-%(b)s' % {'a': 1, 'b': 'c'} }}",
    "{% set f = '%s and %s' %}{{ f % ('x', 'y') }} {{ '%s' % ('one',) }} {{ '%05.2f%%' % 3.14159 }}",
    "{{ '%s %s' % 'x' }}",
    "{{ n[1] % 3 }} {{ n[1] % 2.5 }} {{ 7 % n[1] }} {{ (n[1] - 6) % 3 }} {{ 7 % (n[1] - 3) }} {{ true % 2 }}",
    "{{ 5 % n[0] }}",
    "{{ 'a-b c_d, e'|wordcount }} {{ ''|wordcount }} {{ s|wordcount }}",
    "{{ 'hello big world of words'|truncate(12) }}|{{ 'hello big world of words'|truncate(12, true, '') }}",
    "{{ 'hello big world'|truncate(10, leeway=0, end='~') }}|{{ 'short'|truncate(3) }}|{{ 'short'|truncate }}",
    "{{ 'hello big world'|truncate(2) }}",
    "{{ 'a b/c?\u00e9'|urlencode }} {{ {'a b': 'c/d', 'e': 1}|urlencode }}",
    # Macros, floats and what else the engine has otherwise than Python.
    r'{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m(a=1) }}',
    r'{% macro m(a, b=2) %}{% for v in varargs %}{{ v }},{% endfor %}{% for k, v in kwargs.items() %}{{ k }}={{ v }}{% endfor %}{{ a }}{{ b }}{% endmacro %}{{ m(1, 2, 3, z=3) }}{{ m(b=5, y=[1]) }}',
    r'{% macro m() %}{{ varargs|length }}{% endmacro %}{{ m() }}{{ m(1, (2, 3)) }}',
    r'{% macro m() %}{{ varargs }}{% endmacro %}{{ m(k=1) }}',
    r'{% macro m(a) %}{{ kwargs }}{% endmacro %}{{ m(1, 2) }}',
    r'{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(1) }}',
    r'{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2) }}{{ m.name }}{{ m.arguments }}{{ m.catch_varargs }}{{ m.catch_kwargs }}',
    r'{% macro m(a=[1, (2, 3)]) %}{{ a }}{{ caller(*varargs) }}{% endmacro %}{% call(x, y) m(0, 1, 2) %}{{ x }}-{{ y }}{% endcall %}',
    r'{% macro outer() %}{% macro inner(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ inner(1, 2) }}{% endmacro %}{{ outer() }}',
    r'{% for c in "aé✓" %}{{ loop.last }}{{ loop.first }}{{ loop.length }}{{ loop.revindex }}{{ c }}{% endfor %}',
    r'{% for c in "abc" %}{{ loop.nextitem }}{{ loop.previtem }}{% endfor %}{% for c in "" %}x{% else %}none{% endfor %}',
    r'{{ 1e20 }} {{ 1e16 }} {{ 1e15 }} {{ 1.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1e100 }} {{ -1.5e-7 }} {{ 0.0 }} {{ 1e308 * 10 }}',
    r'''{{ 1e20|string }}{{ [1e20, 0.00001, "a'b", "x", (1e20,), (1, 1e-9), none, true] }}{{ {"a": 1e20, 1e20: [{}]} }}''',
    r'{{ f[6] ~ "" }} {{ "a" ~ [f[4]] }} {{ [1e-7, 2]|join(",") }} {{ "%s" % 1e20 }} {{ 1e20|tojson }} {{ [1e22]|string|length }}',
    r'{{ "a\rb\r\nc\nd".splitlines() }}{{ "a\x0bb\x0cc\x1cd\u2028e\x85f".splitlines() }}{{ "a\n".splitlines() }}{{ "".splitlines() }}{{ "a\r\nb\n".splitlines(True) }}{{ "\n\n".splitlines(keepends=true) }}',
    r'''{{ "they're bill's friends".title() }}{{ "hello wOrld-foo_bar a1b".title() }}{{ "aBc ß".swapcase() }}{{ "Ab Cd".istitle() }}{{ "ab".istitle() }}{{ "12".isdecimal() }}{{ "Straße".casefold() }}''',
    r'{{ "x"|int }}{{ "x"|int(5) }}{{ "3.7"|int }}{{ "z"|float }}{{ "z"|float(2.5) }}{{ [1]|int }}{{ "0x1f"|int(0, 16) }}',
    r'{{ {"b": 1, "A": 2}|dictsort }}{{ {"b": 1, "a": 2}|dictsort(false, "value", true) }}{{ {"b": 1, "A": 2}|dictsort(true) }}{{ {"b": 1, "a": 2}|dictsort(by="value") }}{{ {"b": 1, "a": 2}|dictsort(reverse=true) }}',
    r'{{ dict([("a", 1), ["b", 2]]) }}{{ dict([("a", 1)], b=2) }}{{ dict({"a": 1}, b=2) }}{{ dict() }}{{ dict(x=1) }}',
    r'{{ +1 }} {{ 1 + +2 }} {{ [+1, -1] }} {{ 3 - +1 }} {{ (+2) }}',
    r'{{ 1 is callable }}{{ range is callable }}{{ "a" is callable }}{{ [] is callable }}{{ {} is callable }}{% macro m() %}{% endmacro %}{{ m is callable }}',
    r'{{ [3, 1, 2].index(1) }}{{ ["a"].index("a") }}',
    r'{{ [3].index(1) }}',
    r'{% for start in [none, -9, -3, -2, -1, 0, 1, 2, 3, 9] %}{% for stop in [none, -9, -3, -2, -1, 0, 1, 2, 3, 9] %}{% for step in [none, -2, -1, 1, 2] %}{{ [1, 2, 3][start:stop:step] }}{{ "xyz"[start:stop:step] }}{{ ""[start:stop:step] }}{{ [][start:stop:step] }}{{ (1, 2)[start:stop:step] }}{% endfor %}{% endfor %}{% endfor %}',
    r'{{ m[1:][::-1]|length }}{{ m[2:][::-1]|length }}{{ range(5)[::-2]|list }}{{ "é✓x"[:1] }}{{ "é✓x"[1::2] }}{{ "abc"[-2:] }}',
    r'{{ [1][::0] }}',
    r'{{ [1, 3, 2]|sort(true) }}{{ ["b", "A", "c"]|sort(false, true) }}{{ m|sort(false, false, "role")|map(attribute="role")|list }}{{ ["a", "A"]|unique(true)|list }}{{ ["a", "A"]|unique|list }}{{ ["b", "A"]|min(true) }}{{ ["b", "A"]|max(true) }}{{ m|max(attribute="role") }}',
    r'{{ range(5)|batch(3, fill_with=0)|list }}{{ range(5)|batch(linecount=2)|list }}{{ range(5)|slice(3, fill_with="x")|list }}{{ range(5)|slice(slices=2)|list }}',
    r'{{ d|tojson(true) }}{{ d|tojson(false, 2) }}{{ [1]|tojson(false, none, [",", ":"]) }}',
    r"""{{ "<a href='x'>&\"</a>"|e }}{{ "<"|escape|escape }}{{ "<"|safe|e }}{{ "<"|safe|forceescape }}{{ [1e20, "<"]|e }}""",
    r"""{{ "%r" % s }}{{ "%r %s" % ("a'b", [1]) }}{{ "%r"|format(none) }}{{ "%d|%5d|%-3d|%i" % (3.99, true, -2.5, 7) }}{{ "%d%%" % 5 }}{{ "é%r✓" % "é" }}{{ "%5.1f|%x" % (2.345, 255) }}""",
    r'{% set ns = namespace({"k": 1}, z=3) %}{{ ns.k + ns.z }}{% set ns = namespace({"k": 1}, k=2) %}{{ ns.k }}{% set ns = namespace() %}{{ ns.k is defined }}{% set ns = namespace([["a", 5]]) %}{{ ns.a }}',
    r'{{ " 12 "|int }}{{ "1_000"|int }}{{ "1__0"|int }}{{ "_1"|int }}{{ "\n7.5 "|float }}{{ " ff"|int(0, 16) }}',
]

cases = []
for snippet in SNIPPETS:
    try:
        cases.append({"template": snippet, "text": environment.from_string(snippet).render(**VALUES)})
    except (TemplateError, AssertionError, TypeError, ValueError, ZeroDivisionError) as error:
        cases.append({"template": snippet, "error": f"{type(error).__name__}: {error}"})
with open("snippets.json", "w") as out:
    json.dump({"values": VALUES, "cases": cases}, out, ensure_ascii=True, indent=1)
    out.write("\n")
