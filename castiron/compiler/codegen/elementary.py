"""exp, log, tanh, erf, sin and their kin for vectors of float and double.

Polynomials are our own weighted fits (or Taylor series for double), evaluated after the usual
range reductions. Errors are measured in tests/compiler/codegen/test_elementary.py. No call leaves
the function. ``pointwise.py`` maps expression ops to these; softmax and norms use them directly.
"""

from __future__ import annotations

import dataclasses
import math

from castiron.compiler.codegen import loop, vectors
from castiron.compiler.codegen.loop import F32, F64, Function, Value


@dataclasses.dataclass(frozen=True, slots=True)
class _Format:
    """What the functions must know about one float format."""

    mantissa: int
    bias: int
    exp_low: float
    exp_high: float
    min_normal: float
    ln2_hi: float
    ln2_lo: float
    # exp(r) = 1 + r + r^2 * exp_tail(r) for |r| <= log(2) / 2
    exp_tail: tuple[float, ...]
    # sin(r) = r + r^3 * sin_tail(r^2), cos(r) = 1 - r^2 / 2 + r^4 * cos_tail(r^2), |r| <= pi / 4
    sin_tail: tuple[float, ...]
    cos_tail: tuple[float, ...]
    # atan(t) = t + t^3 * atan_tail(t^2) for 0 <= t <= 1
    atan_tail: tuple[float, ...]
    # erf(x) = x + x * erf_small(x^2) for |x| <= 1
    erf_small: tuple[float, ...]
    # log(erfc(x)) = log_erfc((x - erf_centre) * erf_scale) for 1 <= x <= erf_limit
    log_erfc: tuple[float, ...]
    erf_centre: float
    erf_scale: float
    # beyond it erf is 1
    erf_limit: float


_SINGLE = _Format(
    mantissa=23,
    bias=127,
    exp_low=-104.0,
    exp_high=89.0,
    min_normal=2.0**-126,
    ln2_hi=0.693359375,
    ln2_lo=-2.12194440054690583e-4,
    exp_tail=(
        0.4999999403953552, 0.16666515171527863, 0.04166845604777336, 0.008369418792426586,
        0.0013813142431899905,
    ),
    sin_tail=(-0.16666653752326965, 0.008332083001732826, -0.0001950431615114212),
    cos_tail=(0.04166664555668831, -0.0013887243112549186, 2.4423887225566432e-05),
    atan_tail=(
        -0.33333298563957214, 0.19998548924922943, -0.14264240860939026, 0.10952181369066238,
        -0.08403436839580536, 0.05795735865831375, -0.031177613884210587,
        0.010914481244981289, -0.001793593866750598,
    ),
    erf_small=(
        0.12837916612625122, -0.3761262595653534, 0.11283600330352783, -0.026854444295167923,
        0.005189535208046436, -0.0008020841050893068, 7.889119297033176e-05,
    ),
    log_erfc=(
        0.0001880359195638448, -1.1295783519744873, -0.6332198977470398, -0.1084185466170311,
        0.025208240374922752, -0.004204556345939636, 0.00044133534538559616,
        -2.1686772015527822e-05,
    ),
    erf_centre=0.0,
    erf_scale=1.0,
    erf_limit=4.0,
)  # fmt: skip
_DOUBLE = _Format(
    mantissa=52,
    bias=1023,
    exp_low=-746.0,
    exp_high=710.0,
    min_normal=2.0**-1022,
    # The upper 32 bits of log(2), so that small integers times it are exact.
    ln2_hi=math.ldexp(math.floor(math.ldexp(math.log(2), 32)), -32),
    ln2_lo=1.9082149292705877e-10,
    exp_tail=tuple(1 / math.factorial(k) for k in range(2, 15)),
    sin_tail=tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 10)),
    cos_tail=tuple((-1) ** k / math.factorial(2 * k) for k in range(2, 11)),
    atan_tail=(
        -0.3333333333333333, 0.19999999999999554, -0.14285714285648404, 0.11111111107234799,
        -0.09090908969557403, 0.07692305354678655, -0.06666636435777692, 0.05882074956371294,
        -0.05261265735709454, 0.04752086773576656, -0.04308119655330471, 0.03872640214042632,
        -0.033750132001619734, 0.027567942297344678, -0.020238706986393514,
        0.012756172907694298, -0.006575683344151699, 0.002622977891906089,
        -0.0007518472526973822, 0.0001368724853148122, -1.1832505417555692e-05,
    ),
    erf_small=(
        0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
        0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271,
        -1.4925595266831182e-05, 1.6461000484121368e-06, -1.6350312701054695e-07,
        1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
    ),
    log_erfc=(
        -14.112437402148174, -18.165248970912977, -6.042206592138939, -0.08165090971780906,
        0.034128411079749774, -0.01438454833033345, 0.005953704476190262,
        -0.002373997280513564, 0.0008935765855845794, -0.00030781955951396384,
        9.090090217256991e-05, -1.847452395376142e-05, -1.477503599641089e-06,
        4.56596712020318e-06, -3.422294334462001e-06, 1.917889171144331e-06,
        -9.124365065445989e-07, 3.8437394165273846e-07, -1.3611972043197023e-07,
        2.6131458709239564e-08, 3.922377494569264e-09, 1.9305509283414644e-10,
        6.621479020937692e-10, -5.618027658915205e-09, 3.6630997068853925e-09,
        -2.5668825356579424e-10, -2.283670456893158e-10,
    ),
    erf_centre=3.5,
    erf_scale=0.4,
    erf_limit=6.0,
)  # fmt: skip
_FORMATS = {F32: _SINGLE, F64: _DOUBLE}

# log(1 + f) = f - f^2 / 2 + f^3 * tail(f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1
_LOG_TAIL = (
    0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053,
    0.14219550788402557, -0.12405591458082199, 0.11888174712657928, -0.11675640940666199,
    0.06746601313352585,
)  # fmt: skip
# pi / 2 in three parts of 33 bits, so that products with integers below 2^20 are exact.
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21)


def _format(x: Value) -> _Format:
    return _FORMATS[loop.element_of(x.type)]


def _reduce(f: Function, x: Value) -> tuple[Value, Value, Value]:
    """x = n log(2) + r: n as an integer and as a float, and r."""
    form, element = _format(x), loop.element_of(x.type)
    magic = vectors.MAGIC[element]
    shifted = f.fma(x, f.coerce(1 / math.log(2), x.type), f.coerce(magic, x.type))
    n = shifted - magic
    r = f.fma(n, f.coerce(-form.ln2_hi, x.type), x)
    r = f.fma(n, f.coerce(-form.ln2_lo, x.type), r)
    whole = vectors.bits(f, shifted) - vectors.bits(f, f.coerce(magic, x.type))
    return whole, n, r


def _exp_less_one(f: Function, r: Value, terms: int = 99) -> Value:
    """exp(r) - 1 for |r| <= log(2) / 2."""
    tail = vectors.horner(f, r, _format(r).exp_tail[:terms])
    return f.fma(r * r, tail, r)


def _power_of_two(f: Function, whole: Value, element: str) -> Value:
    """2^whole for exponents of normal numbers."""
    form = _FORMATS[element]
    return vectors.from_bits(f, (whole + form.bias) << form.mantissa, element)


def _scale(f: Function, y: Value, whole: Value, n: Value) -> Value:
    """y * 2^n with overflow to infinity and gradual underflow; y is near 1."""
    element, lanes = loop.element_of(y.type), loop.lanes_of(y.type)
    if f.target.name == "avx512" and lanes * (4 if element == F32 else 8) == 64:
        mask = loop.I16 if element == F32 else loop.I8
        suffix = "ps" if element == F32 else "pd"
        args = [y, n, y, f.const(-1, mask), f.const(4, loop.I32)]
        return f.call_intrinsic(f"llvm.x86.avx512.mask.scalef.{suffix}.512", y.type, args)
    half = whole >> 1
    scaled = y * _power_of_two(f, half, element)
    return scaled * _power_of_two(f, whole - half, element)


def exp(f: Function, x: Value) -> Value:
    """e^x: infinity above the range, subnormals and 0 below it, NaN for NaN."""
    return _exp_above(f, vectors.no_more(f, x, _format(x).exp_high), x, _format(x).exp_low)


def exp_of_negative(f: Function, x: Value) -> Value:
    """e^x for x <= 0 (or NaN): one instruction less than ``exp``."""
    return _exp_above(f, x, x, _format(x).exp_low)


def exp_or_zero(f: Function, x: Value) -> Value:
    """e^x for x <= 0 (or NaN), 0 in place of subnormal results: for sums, where they are lost."""
    return _exp_above(f, x, x, math.log(_format(x).min_normal) + 1e-3)


def _exp_above(f: Function, limited: Value, x: Value, low: float) -> Value:
    whole, n, r = _reduce(f, limited)
    y = _scale(f, _exp_less_one(f, r) + 1.0, whole, n)
    # Below the range the above is noise. A limit on x instead would let results underflow, which
    # processors handle hundreds of times slower than anything else here.
    return f.select(x < low, 0.0, y)


def _exp_moderate(f: Function, x: Value, terms: int = 99) -> Value:
    """e^x where e^x is a normal number (or x NaN); no bounds are looked at."""
    whole, _, r = _reduce(f, x)
    near = _exp_less_one(f, r, terms) + 1.0
    return near * _power_of_two(f, whole, loop.element_of(x.type))


def log(f: Function, x: Value) -> Value:
    """The natural logarithm: -inf at zero, NaN below it; subnormals are exact arguments."""
    y = _log_of_positive(f, x)
    special = f.select(x.equals(0.0), f.coerce(-math.inf, x.type), x)
    special = f.select(x < 0.0, f.coerce(math.nan, x.type), special)
    return f.select((x > 0.0) & (x < math.inf), y, special)


def power_of_size(f: Function, base: Value, exponent: Value, *, is_moderate: bool) -> Value:
    """|base| ** exponent for doubles; NaN for 0 to the 0 and for 1 to an infinite power.

    ``is_moderate``: operands come from float32 and so does the result go, so that fewer terms and
    normal numbers suffice.
    """
    size = vectors.absolute(f, base)
    terms = (7, 8) if is_moderate else (99, 99)
    power = _log_of_positive(f, size, terms[0])
    power = f.select(size.equals(0.0), -math.inf, power)
    power = f.select(size < math.inf, power, size) * exponent
    if not is_moderate:
        return exp(f, power)
    # Past these the result leaves float32's range anyway.
    return _exp_moderate(f, vectors.no_less(f, vectors.no_more(f, power, 200.0), -200.0), terms[1])


def _log_of_positive(f: Function, x: Value, terms: int = 99) -> Value:
    form, element = _format(x), loop.element_of(x.type)
    up = form.mantissa + 2
    small = x < form.min_normal
    normal = f.select(small, x * 2.0**up, x)
    root = vectors.bits(f, f.coerce(math.sqrt(0.5), x.type))
    above = vectors.bits(f, normal) - root
    mantissa = vectors.from_bits(f, (above & ((1 << form.mantissa) - 1)) + root, element)
    exponent = f.convert("sitofp", above >> form.mantissa, element)
    exponent = f.select(small, exponent - float(up), exponent)
    return _log_near_one(f, mantissa - 1.0, exponent, terms)


def _log_near_one(f: Function, part: Value, exponent: Value, terms: int = 99) -> Value:
    """log((1 + part) * 2^exponent), 1 + part between sqrt(1/2) and sqrt(2)."""
    form = _format(part)
    if form is _SINGLE:
        square = part * part
        tail = (part * square) * vectors.horner(f, part, _LOG_TAIL)
    else:
        # With s = f / (2 + f): log(1 + f) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + 2 s^2/3 + ...)).
        square = part * part
        s = part / (part + 2.0)
        series = [2 / (2 * k + 3) for k in range(min(terms, 12))]
        rest = (s * s) * vectors.horner(f, s * s, series)
        tail = s * f.fma(square, f.coerce(0.5, part.type), rest)
    low = f.fma(exponent, f.coerce(form.ln2_lo, part.type), tail)
    low = f.fma(square, f.coerce(-0.5, part.type), low)
    return f.fma(exponent, f.coerce(form.ln2_hi, part.type), part + low)


def _log_one_more(f: Function, small: Value) -> Value:
    """log(1 + small) for 0 <= small <= 1, accurate for tiny ones."""
    upper = small > math.sqrt(2) - 1
    halved = f.fma(small, f.coerce(0.5, small.type), f.coerce(-0.5, small.type))
    part = f.select(upper, halved, small)
    exponent = f.select(upper, f.coerce(1.0, small.type), f.coerce(0.0, small.type))
    return _log_near_one(f, part, exponent)


def sigmoid(f: Function, x: Value) -> Value:
    """1 / (1 + e^-x), accurate relative to the result; 0 where that would be subnormal.

    Arithmetic on subnormals costs twenty times as much, and saturated gates are common.
    """
    e = exp_or_zero(f, vectors.negative(f, vectors.absolute(f, x)))
    return f.select(x < 0.0, e, f.coerce(1.0, x.type)) / (e + 1.0)


def softplus(f: Function, x: Value) -> Value:
    """log(1 + e^x); 0 where that would be subnormal."""
    e = exp_or_zero(f, vectors.negative(f, vectors.absolute(f, x)))
    return f.select(x < 0.0, f.coerce(0.0, x.type), x) + _log_one_more(f, e)


def tanh(f: Function, x: Value) -> Value:
    """The hyperbolic tangent, through e^(-2|x|) - 1."""
    element = loop.element_of(x.type)
    doubled = vectors.no_less(f, vectors.absolute(f, x) * -2.0, -80.0)
    whole, _, r = _reduce(f, doubled)
    scale = _power_of_two(f, whole, element)
    less_one = f.fma(scale, _exp_less_one(f, r), scale - 1.0)
    return vectors.copy_sign(f, less_one / (less_one + 2.0), x)


def sin(f: Function, x: Value) -> Value:
    """sin(x); full accuracy to |x| = 1.6e6, absolute error growing beyond."""
    return _wave(f, x, 0)


def cos(f: Function, x: Value) -> Value:
    """cos(x); full accuracy to |x| = 1.6e6, absolute error growing beyond."""
    return _wave(f, x, 1)


def _wave(f: Function, x: Value, quarter: int) -> Value:
    element = loop.element_of(x.type)
    integer = loop.I32 if element == F32 else loop.I64
    wide = f.convert("fpext", x, F64) if element == F32 else x
    magic = vectors.MAGIC[F64]
    shifted = f.fma(wide, f.coerce(2 / math.pi, wide.type), f.coerce(magic, wide.type))
    n = shifted - magic
    for part in _HALF_PI:
        wide = f.fma(n, f.coerce(-part, wide.type), wide)
    # Far outside the range the remainder is noise; it must not leave the polynomial's domain.
    wide = vectors.no_more(f, vectors.no_less(f, wide, -0.8), 0.8)
    quadrant = vectors.bits(f, shifted)
    if element == F32:
        quadrant = f.convert("trunc", quadrant, loop.I32)
    quadrant = quadrant + quarter
    r = f.convert("fptrunc", wide, F32) if element == F32 else wide
    y = _quarter_wave(f, r, (quadrant & 1).differs(0))
    sign = (quadrant & 2) << (30 if integer == loop.I32 else 62)
    return vectors.from_bits(f, vectors.bits(f, y) ^ sign, element)


def _quarter_wave(f: Function, r: Value, is_cosine: Value) -> Value:
    form = _format(r)
    z = r * r
    sine = f.fma(r * z, vectors.horner(f, z, form.sin_tail), r)
    flat = f.fma(z, f.coerce(-0.5, r.type), f.coerce(1.0, r.type))
    cosine = f.fma(z * z, vectors.horner(f, z, form.cos_tail), flat)
    return f.select(is_cosine, cosine, sine)


def atan(f: Function, x: Value) -> Value:
    """The arc tangent, between -pi/2 and pi/2."""
    size = vectors.absolute(f, x)
    is_steep = size > 1.0
    one = f.coerce(1.0, x.type)
    t = f.select(is_steep, one, size) / f.select(is_steep, size, one)
    z = t * t
    y = f.fma(t * z, vectors.horner(f, z, _format(x).atan_tail), t)
    y = f.select(is_steep, f.coerce(math.pi / 2, x.type) - y, y)
    return vectors.copy_sign(f, y, x)


def erf(f: Function, x: Value) -> Value:
    """The error function; float: absolute error below 1.2e-7."""
    form = _format(x)
    size = vectors.no_more(f, vectors.absolute(f, x), form.erf_limit)
    small = f.fma(x, vectors.horner(f, x * x, form.erf_small), x)
    place = size if form.erf_centre == 0.0 else (size - form.erf_centre) * form.erf_scale
    outer = _exp_moderate(f, vectors.horner(f, place, form.log_erfc))
    large = vectors.copy_sign(f, f.coerce(1.0, x.type) - outer, x)
    return f.select(size < 1.0, small, large)
