// SPDX-License-Identifier: Apache-2.0
/* Called by the generated stubs (tools/gen_stubs.py). */
#include <stdio.h>
extern void nogpu_fail(const char* text) __attribute__((weak));
void nogpu_missing(const char* name) {
  char text[256];
  snprintf(text, sizeof text, "%s is not emulated", name);
  if (nogpu_fail)
    nogpu_fail(text);
  else
    fprintf(stderr, "nogpu: error: %s\n", text);
}
