/* The calling thread's last message. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

static _Thread_local char message[1024];

cuvil_status cuvil_fail(cuvil_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

const char *cuvil_last_error(void)
{
    return message;
}
