/* Failure of an example: prints the call that failed and the reason, and ends. */
#ifndef FAIL_H
#define FAIL_H

#include <stdio.h>
#include <stdlib.h>
#include <tautline.h>

static inline void fail(const char *what)
{
    char why[1024] = "";
    tautline_last_error(why, sizeof why);
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

#endif
