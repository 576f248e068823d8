/* Checks of the test programs: the first that fails ends the process. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#define FAIL(...) \
  (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _Exit(1))
#define CHECK(condition) \
  do { \
    if (!(condition)) FAIL("%s", #condition); \
  } while (0)

/* A call that succeeds. */
#define OK(call) \
  do { \
    weft_status status_ = (call); \
    if (status_ != WEFT_OK) FAIL("%s: %s: %s", #call, weft_status_name(status_), weft_last_error()); \
  } while (0)

/* A call that fails with a status and a sentence. */
#define REFUSED(call, wanted, sentence) \
  do { \
    weft_status status_ = (call); \
    if (status_ != (wanted)) FAIL("%s: %s: %s", #call, weft_status_name(status_), weft_last_error()); \
    if (strstr(weft_last_error(), (sentence)) == NULL) FAIL("%s: %s", #call, weft_last_error()); \
  } while (0)

#endif
