/* base/dmath_scalar.c - sine, cosine, exponential and logarithm after fdlibm.
 *
 * Built with fused multiply-add where the processor has it, hence the file's name; without,
 * libm's fma gives the same bits slowly.
 */
#include "base/dmath.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/fpenv.h"

_Static_assert(FLT_EVAL_METHOD == 0, "double expressions must be evaluated as double");

#define ROUND 0x1.8p52 /* added and taken away: rounds to the nearest integer */

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Horner's rule by fused steps: c[0] + z (c[1] + z (c[2] + ...)). */
static double polynomial(double z, const double *c, int n)
{
    double p = c[n - 1];
    for (int i = n - 2; i >= 0; i--) p = fma(z, p, c[i]);
    return p;
}

/* x = quarter * pi/2 + r + tail, |r| <= pi/4 and a little. pi/2 in three doubles: the first
 * product leaves an exact difference, because both sides are multiples of 2^-53 below 1; the
 * second's error and the third make the tail. */
static int64_t reduce(double x, double *r, double *tail)
{
    const double half_pi[3] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54,
                               -0x1.f1976b7ed8fbcp-110};
    double n = fma(x, 0x1.45f306dc9c883p-1 /* 2/pi */, ROUND) - ROUND;
    double a = fma(-n, half_pi[0], x);
    double b = n * half_pi[1], b_error = fma(n, half_pi[1], -b);
    double sum = a - b, b_part = a - sum; /* two-sum: sum + (...) = a - b */
    double lost = (a - (sum + b_part)) + (b_part - b);
    *r = sum;
    *tail = fma(-n, half_pi[2], lost - b_error);
    return (int64_t)n;
}

static double kernel_sin(double x, double tail)
{
    static const double c[] = {8.33333333332248946124e-03, -1.98412698298579493134e-04,
                               2.75573137070700676789e-06, -2.50507602534068634195e-08,
                               1.58969099521155010221e-10};
    double z = x * x, v = z * x;
    double r = polynomial(z, c, 5);
    double inner = fma(z, fma(0.5, tail, -(v * r)), -tail);
    return x - fma(-v, -1.66666666666666324348e-01, inner);
}

static double kernel_cos(double x, double tail)
{
    static const double c[] = {4.16666666666666019037e-02, -1.38888888888741095749e-03,
                               2.48015872894767294178e-05, -2.75573143513906633035e-07,
                               2.08757232129817482790e-09, -1.13596475577881948265e-11};
    double z = x * x, half = 0.5 * z;
    double r = z * polynomial(z, c, 6);
    double w = 1.0 - half;
    return w + (((1.0 - w) - half) + fma(z, r, -(x * tail)));
}

void sheaf__dsincos(double x, double *sin, double *cos)
{
    if (!(fabs(x) <= 0x1p30)) {
        *sin = *cos = NAN;
        return;
    }
    double r, tail;
    int64_t quarter = reduce(x, &r, &tail);
    double s = kernel_sin(r, tail), c = kernel_cos(r, tail);
    switch (quarter & 3) {
    case 0:
        *sin = s;
        *cos = c;
        break;
    case 1:
        *sin = c;
        *cos = -s;
        break;
    case 2:
        *sin = -s;
        *cos = -c;
        break;
    default:
        *sin = -c;
        *cos = s;
        break;
    }
}

double sheaf__dsin(double x)
{
    double s, c;
    sheaf__dsincos(x, &s, &c);
    return s;
}

double sheaf__dcos(double x)
{
    double s, c;
    sheaf__dsincos(x, &s, &c);
    return c;
}

static const double ln2_high = 6.93147180369123816490e-01; /* 32 bits: k * ln2_high is exact */
static const double ln2_low = 1.90821492927058770002e-10;

double sheaf__dexp(double x)
{
    static const double c[] = {1.66666666666666019037e-01, -2.77777777770155933842e-03,
                               6.61375632143793436117e-05, -1.65339022054652515390e-06,
                               4.13813679705723846039e-08};
    if (x != x) return x;
    if (x > 709.782712893383973096) return INFINITY;
    if (x < -745.133219101941108420) return 0.0;
    double k = fma(x, 1.44269504088896338700, ROUND) - ROUND;
    double high = fma(-k, ln2_high, x), low = k * ln2_low;
    double r = high - low, t = r * r;
    double p = fma(-t, polynomial(t, c, 5), r);
    double y = 1.0 - ((low - (r * p) / (2.0 - p)) - high);
    /* 2^k in two factors: either end of the range is outside one double */
    int64_t whole = (int64_t)k, first = whole / 2;
    y = y * of_bits((uint64_t)(first + 1023) << 52);
    return y * of_bits((uint64_t)(whole - first + 1023) << 52);
}

double sheaf__dlog(double x)
{
    static const double even[] = {3.999999999940941908e-01, 2.222219843214978396e-01,
                                  1.531383769920937332e-01};
    static const double odd[] = {6.666666666666735130e-01, 2.857142874366239149e-01,
                                 1.818357216161805012e-01, 1.479819860511658591e-01};
    if (x != x || x == INFINITY) return x;
    if (x == 0.0) return -INFINITY;
    if (x < 0.0) return NAN;
    int64_t exponent = 0;
    if (x < DBL_MIN) {
        x *= 0x1p54;
        exponent = -54;
    }
    /* x = 2^exponent * (1 + f), sqrt(1/2) <= 1 + f < sqrt(2) */
    uint64_t u = bits_of(x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    exponent += (int64_t)(u >> 52) - 1023;
    double f = of_bits((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double k = (double)exponent;
    double s = f / (2.0 + f), z = s * s, w = z * z;
    double rest = fma(z, polynomial(w, odd, 4), w * polynomial(w, even, 3));
    double half = 0.5 * f * f;
    return k * ln2_high - ((half - fma(s, half + rest, k * ln2_low)) - f);
}

double sheaf__dpow(double x, double y)
{
    return sheaf__dexp(y * sheaf__dlog(x));
}
