/* Times MPI_Allreduce of floats, sum, out of place, in a table like the one of examples/cpu_latency.rs. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t largest = argc > 1 ? strtoull(argv[1], 0, 10) : (size_t)64 << 20;
    float *send = malloc(largest), *recv = malloc(largest);
    for (size_t i = 0; i < largest / 4; i++) {
        send[i] = (float)(i % 97) + rank;
        recv[i] = 0;
    }
    double *times = malloc(20000 * sizeof *times);
    for (size_t bytes = 8; bytes <= largest; bytes = bytes < 1 << 18 ? bytes * 8 : bytes * 4) {
        int batch = bytes <= 4096 ? 50 : 1;
        int samples = bytes <= 1 << 16 ? 200 : bytes <= 1 << 20 ? 100 : bytes <= 1 << 24 ? 15 : 7;
        for (int s = -2; s < samples; s++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            for (int b = 0; b < batch; b++)
                MPI_Allreduce(send, recv, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            double seconds = (MPI_Wtime() - start) / batch;
            if (s >= 0)
                times[s] = seconds;
        }
        qsort(times, samples, sizeof *times, compare);
        if (rank == 0)
            printf("%12zu %12.2f\n", bytes, times[samples / 2] * 1e6);
    }
    MPI_Finalize();
    return 0;
}
