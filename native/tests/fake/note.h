// What all stand-ins do: note calls in the file that the variable LOG names, with the process' number behind its name.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void note(const char* format, ...) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    const char* name = getenv(LOG);
    if (!name) return;
    char path[4096], line[512];
    snprintf(path, sizeof path, "%s.%d", name, (int)getpid());
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    pthread_mutex_lock(&one);
    FILE* file = fopen(path, "a");
    if (file) {
        // At once, since several libraries may note in one file.
        fprintf(file, "%s\n", line);
        fclose(file);
    }
    pthread_mutex_unlock(&one);
}
