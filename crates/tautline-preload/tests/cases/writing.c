/* How cases are run, and how they write results: common to the programs for UDP and for packet sockets. */
#include "cases.h"

char buffer[ROOM], large[ROOM];
int own_port = 6000;

void wrote(const char *call, long result, int error)
{
	printf("  %s = %ld %s\n", call, result, error ? strerrorname_np(error) : "-");
}

void value(const char *what, long number)
{
	printf("  %s: %ld\n", what, number);
}

void bytes(const char *what, const void *start, long length)
{
	const unsigned char *byte = start;
	unsigned long sum = 5381;

	for (long index = 0; index < length; index++)
		sum = sum * 33 + byte[index];
	printf("  %s: %ld bytes, sum %lx\n", what, length, length > 0 ? sum : 0);
}

void begin(void)
{
	for (int index = 0; index < ROOM; index++)
		large[index] = (char)(index * 31 + index / 256);
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
}

void run_all(const struct test *tests, char **wanted)
{
	for (; tests->name; tests++) {
		char **name = wanted;

		while (*name && strcmp(*name, tests->name) != 0)
			name++;
		if (*wanted && !*name)
			continue;
		own_port++;
		printf("== %s\n", tests->name);
		fflush(stdout);
		tests->run(tests->argument);
		fflush(stdout);
	}
}
