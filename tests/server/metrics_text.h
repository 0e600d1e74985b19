/* metrics_text.h - reads a text of /metrics strictly: whatever the format does not allow fails the case.
 *
 *     metrics_text_check(text);
 *     double n = metrics_text_value(text, "sheaf_requests_total{outcome=\"failed\"}");
 */
#ifndef SHEAF_TESTS_SERVER_METRICS_TEXT_H
#define SHEAF_TESTS_SERVER_METRICS_TEXT_H

#include <stdbool.h>

/* Text format 0.0.4: each family once, with HELP and TYPE before its samples, no sample twice, counters
 * end in _total and are not negative, buckets ascend and are cumulative, +Inf is the count. */
void metrics_text_check(const char *text);

/* The value of one sample, labels included. It is there. */
double metrics_text_value(const char *text, const char *sample);

/* The same, where it need not be. */
bool metrics_text_find(const char *text, const char *sample, double *value);

#endif
