/* bench.h - the benchmarks of `mindspeed bench`; argv[0] is the benchmark's name. */
#ifndef MS_CLI_BENCH_H
#define MS_CLI_BENCH_H

int ms_bench_step(int argc, char **argv);
int ms_bench_kernels(int argc, char **argv);

#endif
