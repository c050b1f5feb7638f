// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Broadcast and all-to-all among all processes, timed as the Intel MPI benchmarks do: one process tells how long
 * the slowest took, of each time that it is done. All sizes have their turn again and again, until it is ended.
 *
 *	collectives BYTES...
 *
 * MPI's headers are in a Debian package with a Fortran compiler and 24 others behind it. What is declared here is
 * of the binary interface that MPICH has promised to keep (libmpich.so.12, "MPICH ABI Compatibility Initiative").
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int MPI_Comm, MPI_Datatype, MPI_Op;

#define MPI_COMM_WORLD	0x44000000
#define MPI_BYTE	0x4c00010d
#define MPI_DOUBLE	0x4c00080b
#define MPI_MAX		0x58000001

int MPI_Init(int *argc, char ***argv);
int MPI_Abort(MPI_Comm comm, int status);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Barrier(MPI_Comm comm);
int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Alltoall(const void *out, int out_count, MPI_Datatype out_type,
		 void *in, int in_count, MPI_Datatype in_type, MPI_Comm comm);
int MPI_Reduce(const void *out, void *in, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm);
double MPI_Wtime(void);

/* Bytes of the first exchange: more than what MPICH would send by way of others. */
#define FIRST	1000

static int rank, size;

/* What process `from` sends process `to`. */
static int pattern(int from, int to, int turn)
{
	return (from * 16 + to + turn) & 0xff;
}

static void check(const unsigned char *buffer, int bytes, int expected)
{
	int i;

	for (i = 0; i < bytes; i++) {
		if (buffer[i] != expected) {
			printf("wrong %d\n", rank);
			fflush(stdout);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
}

static double broadcast(unsigned char *out, int bytes, int turn)
{
	int root = turn % size;
	double began;

	memset(out, rank == root ? pattern(root, 0, turn) : 0xff, bytes);
	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
	MPI_Bcast(out, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
	began = MPI_Wtime() - began;
	check(out, bytes, pattern(root, 0, turn));
	return began;
}

static double alltoall(unsigned char *out, unsigned char *in, int bytes, int turn)
{
	double began;
	int i;

	for (i = 0; i < size; i++)
		memset(out + (size_t)i * bytes, pattern(rank, i, turn), bytes);
	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
	MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
	began = MPI_Wtime() - began;
	for (i = 0; i < size; i++)
		check(in + (size_t)i * bytes, bytes, pattern(i, rank, turn));
	return began;
}

static void measure(unsigned char *out, unsigned char *in, int bytes, int turn, int to_all)
{
	double took, slowest;

	took = to_all ? alltoall(out, in, bytes, turn) : broadcast(out, bytes, turn);
	MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%s %d %.6f\n", to_all ? "alltoall" : "broadcast", bytes, slowest);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	int i, turn, bytes, most = FIRST;
	unsigned char *out, *in;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (i = 1; i < argc; i++) {
		bytes = atoi(argv[i]);
		if (bytes > most)
			most = bytes;
	}
	out = malloc((size_t)most * size);
	in = malloc((size_t)most * size);
	if (argc < 2 || !out || !in)
		MPI_Abort(MPI_COMM_WORLD, 2);
	memset(in, 0, (size_t)most * size);
	memset(out, 0, (size_t)most * size);
	/* All connections are made while the cores are not shared. */
	alltoall(out, in, FIRST, 0);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		printf("ready\n");
		fflush(stdout);
	}
	/* Meanwhile they come to be. */
	usleep(300000);
	for (turn = 0;; turn++) {
		for (i = 1; i < argc; i++) {
			bytes = atoi(argv[i]);
			measure(out, in, bytes, turn, 0);
			measure(out, in, bytes, turn, 1);
		}
	}
}
