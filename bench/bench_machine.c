/* bench/bench_machine.c - what can this machine do? The ceilings that all other benches compare with,
 * each sampled several times: the spread tells how far to trust a figure taken here. */
#include "bench.h"

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "machine", "what can this machine do?", argc, argv)) return 2;
    static const bench_column columns[] = {
        {"best", "G/s"}, {"worst", "G/s"}, {"worst/best", "ratio"}};
    bench_table(&b, columns, 3);
    for (uint32_t which = 0; which < BENCH_CEILINGS; which++) {
        double best = 0, worst = 0;
        for (int i = 0; i < (b.quick ? 3 : 8); i++) {
            double rate = bench_ceiling(&b, which);
            if (i == 0 || rate > best) best = rate;
            if (i == 0 || rate < worst) worst = rate;
        }
        bench_row(&b, bench_ceiling_name(which), best / 1e9, worst / 1e9, worst / best);
    }
    bench_note(&b,
               "memory in GB/s (a copy counts each byte once), FMA in GFLOP/s; all threads");
    return bench_end(&b);
}
