/* base/dmath.h - functions of our own in double precision, for tables and sums of logarithms.
 *
 * After fdlibm (Sun Microsystems, 1993), polynomials fused. Each is a fixed sequence of exactly
 * rounded operations: the same bits from every compiler and processor, which libm's do not
 * give. Called in the default floating-point environment (base/fpenv.h). Errors stay below one
 * unit in the last place.
 */
#ifndef SHEAF_BASE_DMATH_H
#define SHEAF_BASE_DMATH_H

/* Sine and cosine of |x| <= 2^30; of anything else, NaN. */
void sheaf__dsincos(double x, double *sin, double *cos);
double sheaf__dsin(double x);
double sheaf__dcos(double x);

/* Infinity above 709.78, +0 below -745.13. */
double sheaf__dexp(double x);

/* Natural logarithm: -infinity of zero, NaN below it. */
double sheaf__dlog(double x);

/* x to the power y for x > 0, as exp(y * log(x)): relative error about |y * log(x)| * 2^-52. */
double sheaf__dpow(double x, double y);

#endif
